"""One request on its way through a user's file: what the file yields is read, cut, and passed on to the sink."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from dynamo.llm.protocols import LOG_PROBS, PROMPT_LOGPROBS, STOP, TOP_LOGPROBS, PreprocessedRequest, TextRequest
from dynamo.llm.serving.handler_io import Mistake, Piece, read_chunk, read_output, text_request, tokens_request
from dynamo.runtime.context import Context
from dynamo.runtime.errors import DynamoException, EngineError
from dynamo.worker.engine import Sink, context_of
from dynamo.worker.engines.python.limits import Limits, TextLimits, TokenLimits
from dynamo.worker.engines.python.loading import UserFile
from dynamo.worker.engines.python.tracebacks import explained, users_traceback

log = logging.getLogger(__name__)
_PER_PIECE: Final = (LOG_PROBS, TOP_LOGPROBS, PROMPT_LOGPROBS)
"""Extras that belong to the tokens beside them, not to the end."""
_TURN_SECONDS: Final = 0.01


class FileResponse:
    """Carry one request through a user's file; `run` ends the sink exactly once, unless `close` came first."""

    def __init__(
        self, file: UserFile, request: PreprocessedRequest | TextRequest, sink: Sink,
        end_process: Callable[[SystemExit], None],
    ) -> None:  # fmt: skip
        """Begin an answer; `end_process` is what to do where the file calls `sys.exit`.

        `InvalidArgument`: the request can't be meant.
        """
        self._file, self._sink, self._end_process = file, sink, end_process
        self._limits: Limits
        if isinstance(request, TextRequest):
            self._given, self._read, self._limits = text_request(request), read_chunk, TextLimits(request)
        else:
            self._given, self._read, self._limits = tokens_request(request), read_output, TokenLimits(request)
        self._context: Context = context_of(sink)
        self._output: AsyncIterator[Any] | None = None
        self._open = True
        self._finish: str | None = None
        self._extras: dict[str, Any] = {}

    def close(self) -> bool:
        """Send nothing more to the sink; tells whether something could have gone there."""
        was, self._open = self._open, False
        return was

    def fail(self, error: Exception) -> None:
        if self.close():
            self._sink.fail(error)

    def unwilling(self) -> str:
        """Say that it goes on although it was told to end, and where."""
        line = self._line()
        where = self._file.home.file.name if line is None else f"{self._file.home.file.name}:{line}"
        return f"{where}: generate still runs; let CancelledError pass, and yield nothing in 'finally'"

    def _line(self) -> int | None:
        frame = getattr(self._output, "ag_frame", None)
        return frame.f_lineno if frame is not None else None

    async def run(self) -> None:
        try:
            await self._produce()
        except asyncio.CancelledError:
            self.fail(EngineError(f"{self._file.home.file.name}: generate cancelled itself"))
        except SystemExit as error:
            self._broke(error)
            self._end_process(error)
        except Exception as error:  # whatever the file raises belongs to this request alone
            self._broke(error)

    async def _produce(self) -> None:
        output, read = self._file.open(self._given, self._context), self._read
        self._output, turn = output, time.monotonic()
        try:
            async for item in output:
                if not self._open or self._take(read(item)):
                    break
                if (now := time.monotonic()) - turn > _TURN_SECONDS:  # files that never await hold up nobody else
                    await asyncio.sleep(0)
                    turn = now
            else:
                self._end()
        except Mistake as mistake:
            line = self._line()
            where = self._file.home.file.name + ("" if line is None else f":{line}")
            raise Mistake(f"{where}: {mistake}" if not str(mistake).startswith(where) else str(mistake)) from mistake
        finally:
            await self._leave(output)

    def _take(self, piece: Piece) -> bool:
        """Pass one piece on; True where the answer is complete, whatever the file still has."""
        (produced, finish, extras), complete = self._limits.cut(piece)
        if self._finish is not None:
            if produced:
                raise Mistake(f"yields more output after finish_reason {self._finish!r}: yield it before")
            self._extras |= extras or {}
            return False
        if finish is None:
            if produced or extras:
                self._sink.push(produced, extras)
            return False
        if produced:
            self._sink.push(produced, {k: v for k, v in (extras or {}).items() if k in _PER_PIECE} or None)
        self._finish = finish
        self._extras |= {k: v for k, v in (extras or {}).items() if not produced or k not in _PER_PIECE}
        if complete:
            self._end()
        return complete  # where the file itself has said the end, usage may follow

    def _end(self) -> None:
        """End: the file has no more."""
        if not self._open:
            return
        if self._finish is None and (rest := self._limits.rest()):
            self._sink.push(rest)
        if self.close():
            self._sink.finish(self._finish or STOP, self._extras or None)

    def _broke(self, error: BaseException) -> None:
        home = self._file.home
        if not self._open:  # it was cancelled; what it said of that is only for who looks closely
            log.debug("[%s] after its end: %s", self._context.id(), explained(error, home))
            return
        if isinstance(error, DynamoException):
            self.fail(error)
            return
        sentence = explained(error, home)
        log.error("[%s] %s", self._context.id(), sentence)
        if not isinstance(error, Mistake):
            log.debug("%s", users_traceback(error, home))
        self.fail(EngineError(sentence))

    async def _leave(self, output: AsyncIterator[Any]) -> None:
        close = getattr(output, "aclose", None)
        if close is None:
            return
        try:
            await close()
        except (Exception, SystemExit) as error:
            if self._open:
                raise
            log.warning("[%s] at its end: %s", self._context.id(), explained(error, self._file.home))
