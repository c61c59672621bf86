"""A user's own Python file as an engine: `out=pystr:FILE`, `out=pytok:FILE`, `engine: python`.

The file defines `async def generate(request)`, which yields the answer piece by piece: OpenAI chunks in text mode,
token ids in tokens mode. It runs in this process, on the worker's event loop, one task per request. `loading.py` loads
it, reads what it yields and says what is wrong with it in terms of its own lines.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from dynamo.llm.protocols import PreprocessedRequest, TextRequest
from dynamo.runtime.errors import EngineError, EngineShutdown, InvalidArgument
from dynamo.runtime.http.engine_routes import Callback
from dynamo.worker.engine import GUIDED, Abort, EngineFacts, EngineLoad, Sink, nothing_wanted
from dynamo.worker.engines.python.answer import FileResponse
from dynamo.worker.engines.python.limits import wanted_nothing
from dynamo.worker.engines.python.loading import InThread, UserFile, file_arguments, load, patiently, takes_arguments
from dynamo.worker.engines.python.loop_watchdog import StandstillWatch
from dynamo.worker.engines.python.tracebacks import Home, explained, users_traceback
from dynamo.worker.engines.support.request_checks import check_open

if TYPE_CHECKING:
    from dynamo.llm import LocalModel
    from dynamo.worker.settings import WorkerSettings

log = logging.getLogger(__name__)
STOP_SECONDS: Final = 5.0
"""How long the file's generators may take to end when the engine stops."""
_SLOW_SECONDS: Final = 10.0


class Python:
    """Run a user's Python file as an engine."""

    def __init__(self, settings: WorkerSettings, model: LocalModel) -> None:
        if not settings.python_file:
            raise InvalidArgument("engine python needs --python-file, a file with an async def generate(request)")
        path = Path(settings.python_file).expanduser().absolute()
        if not path.is_file():
            raise InvalidArgument(f"--python-file {settings.python_file}: there is no such file")
        self._home = Home(path)
        self._text = settings.python_mode == "text"
        self._arguments = file_arguments(settings, str(model.path or settings.model_path))
        self._card = model.card
        self._loaded: UserFile | None = None
        self._watch = StandstillWatch(self._home)
        self._answers: dict[asyncio.Task[None], FileResponse] = {}
        self._died: asyncio.Future[BaseException] | None = None

    async def start(self) -> EngineFacts:
        self._died = asyncio.get_running_loop().create_future()
        thread = InThread(lambda: load(self._home.file, self._arguments))
        loaded: UserFile = await patiently(thread.run(), lambda: self._still_loading(thread.frame()))
        self._loaded = loaded
        self._watch.start()
        if loaded.initialize is not None:
            await self._initialize(loaded.initialize)
        # Constraints reach the file as they came; whether it keeps to them is its own affair.
        return EngineFacts() if self._text else EngineFacts(context_length=self._card.context_length, guided=GUIDED)

    def _still_loading(self, frame: FrameType | None) -> str:
        place = self._home.innermost(frame)
        return f"{self._home.file.name} is still being loaded" + (f": {place} ({place.code})" if place else "")

    async def _initialize(self, initialize: Callable[..., Any]) -> None:
        waiting = f"{self._home.file.name}: initialize has not ended yet"
        await patiently(self._initialized(initialize), lambda: waiting)

    async def _initialized(self, initialize: Callable[..., Any]) -> None:
        """Run `initialize` in a task of its own, where all that it raises must be caught.

        `sys.exit` would end the loop.
        """
        arguments = (self._arguments,) if takes_arguments(initialize) else ()
        try:
            if asyncio.iscoroutinefunction(initialize):
                await initialize(*arguments)
            else:
                result = await asyncio.to_thread(initialize, *arguments)
                if isinstance(result, Awaitable):
                    await result
        except (Exception, SystemExit) as error:
            log.debug("%s", users_traceback(error, self._home))
            raise InvalidArgument(explained(error, self._home)) from error

    async def stop(self) -> None:
        self._watch.stop()
        tasks = list(self._answers)
        for answer in self._answers.values():
            answer.fail(EngineShutdown())
        for task in tasks:
            task.cancel()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=STOP_SECONDS)
            for task in left:
                log.warning("%s; the worker ends without it", self._answers[task].unwilling())
        if self._loaded is not None:
            self._loaded.replaced.restore()

    async def failed(self) -> BaseException:
        """Wait until the file ends the process (`sys.exit`)."""
        assert self._died is not None
        return await asyncio.shield(self._died)

    def routes(self) -> Mapping[str, Callback]:
        return {} if self._loaded is None else self._loaded.routes

    def load(self) -> EngineLoad:
        return EngineLoad(running=len(self._answers))

    def submit(self, request: PreprocessedRequest | TextRequest, sink: Sink) -> Abort:
        if wanted_nothing(request):
            return nothing_wanted(sink)
        check_open(len(self._answers))
        assert self._loaded is not None
        answer = FileResponse(self._loaded, request, sink, self._end_process)
        loop = asyncio.get_running_loop()
        task = loop.create_task(answer.run(), name=f"{self._home.file.name} generate")
        self._answers[task] = answer
        task.add_done_callback(self._ended)

        def abort() -> None:
            if answer.close():
                task.cancel()
                loop.call_later(_SLOW_SECONDS, self._still_there, task)

        return abort

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._answers.pop(task, None)

    def _still_there(self, task: asyncio.Task[None]) -> None:
        if task in self._answers:
            log.warning("%s, %g s after its request was cancelled", self._answers[task].unwilling(), _SLOW_SECONDS)

    def _end_process(self, error: SystemExit) -> None:
        assert self._died is not None
        if not self._died.done():
            self._died.set_result(EngineError(f"{explained(error, self._home)} ended the engine"))
