"""mistral.rs in process (`mistralrs`): GGUF files and folders of safetensors, quantised while they load if wanted.

Its Python interface blocks a thread per stream (`engines/support/request_threads.py`) and has traps, each marked
below with the reason for what is done about it; `docs/how-to/serve/engines/mistralrs.md` tells them to users.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dynamo.llm.model_card import TOKENIZER
from dynamo.llm.protocols import EOS, LENGTH, STOP, STOP_REASON, PreprocessedRequest
from dynamo.llm.tokenizer import card_file, load_tokenizer
from dynamo.runtime.errors import EngineError, InvalidArgument
from dynamo.runtime.process.extras import install_hint
from dynamo.worker.engine import GUIDED, Abort, EngineFacts, EngineLoad, Sink, nothing_wanted
from dynamo.worker.engines.mistralrs.requests import (
    TokenReader,
    extras_of,
    options,
    plain_tokenizer,
    prompt_text,
    wishes,
)  # fmt: skip
from dynamo.worker.engines.support.request_checks import left, room_for, stop_reasons
from dynamo.worker.engines.support.request_threads import RequestThreads, ThreadedRequest
from dynamo.worker.settings import checked_arguments

if TYPE_CHECKING:
    from dynamo.llm import LocalModel
    from dynamo.worker.settings import WorkerSettings

log = logging.getLogger(__name__)

DEFAULTS: Final[dict[str, Any]] = {
    "max_seqs": 8,
    "max_waiting": 256,
    "in_situ_quant": "",
    "dtype": "auto",
    "paged_attn": False,
    "prefix_cache_n": 0,
    "seed": -1,
}
LOWEST: Final = {"max_seqs": 1, "seed": -1}
_AS_IT_IS: Final = "{% for message in messages %}{{ message.content }}{% endfor %}"
_INNER_BYTES: Final = bytes(range(0x80, 0xC0))
"""Of characters that began before."""
_CONTEXT: Final = 4096
"""Tokens, where neither model nor user says less or more."""


class MistralRs:
    """Run mistral.rs in this process.

    Engine arguments: `max_seqs` (streams at once), `max_waiting`, `in_situ_quant` (`Q4K`, `Q8_0`, …; empty: as the
    file is), `dtype` (`auto`, `bf16`, `f16`, `f32`), `paged_attn`, `prefix_cache_n`, `seed` (-1: none).
    """

    def __init__(self, settings: WorkerSettings, model: LocalModel) -> None:
        if model.path is None:
            raise InvalidArgument(
                "engine mistralrs needs --model-path with a .gguf file or a folder of safetensors (or package://NAME)"
            )
        self._path, self._model = model.path, model
        self._given = checked_arguments("mistralrs", settings.arguments(), DEFAULTS, LOWEST)
        self._context = settings.context_length or model.card.context_length or _CONTEXT
        self._threads = RequestThreads("mistral.rs", self._given["max_seqs"], self._given["max_waiting"], self._answer)
        self._entrance = threading.Lock()

    async def start(self) -> EngineFacts:
        log.info("loading %s", self._path.name)
        await asyncio.to_thread(self._load)
        self._threads.start()
        return EngineFacts(context_length=self._context, max_num_seqs=self._given["max_seqs"], guided=GUIDED)

    def _load(self) -> None:
        # It writes to stdout, which is for our `ready` line; RUST_LOG is its own filter, and the user's word counts.
        os.environ.setdefault("RUST_LOG", "info" if log.isEnabledFor(logging.DEBUG) else "error")
        try:
            import mistralrs
        except ImportError as error:
            hint = install_hint("mistralrs")
            raise InvalidArgument(f"engine mistralrs can't be loaded ({error}): {hint}") from error
        self._request = mistralrs.ChatCompletionRequest
        with tempfile.TemporaryDirectory(prefix="dynamo-mistralrs-") as folder:
            tokenizer, template = self._files(Path(folder))
            # Trap 1: what it makes itself of the tokenizer in a GGUF file splits Gemma's texts into characters. It gets
            # the one that frontends have, without what would be added to a prompt a second time.
            # `default`: fastokens takes seconds to load, and encoding faster saves nothing beside computing prompts.
            self._tokenizer = load_tokenizer(self._model.card, {TOKENIZER: tokenizer}, "default")
            try:
                self._runner = _runner(mistralrs, self._path, self._given, tokenizer, template)
            except Exception as error:  # ValueError for most, whatever else the extension raises
                raise InvalidArgument(f"mistral.rs can't load {str(self._path)!r}: {error}") from error
        self._reader = TokenReader(self._tokenizer)
        self._context = min(self._context, self._runner.max_sequence_length() or self._context)

    def _files(self, folder: Path) -> tuple[Path, Path]:
        source = card_file(self._model.card, self._model.files, TOKENIZER)
        if source is None:
            raise InvalidArgument(f"engine mistralrs needs a tokenizer.json, and {self._path.name!r} has none")
        tokenizer, template = folder / "tokenizer.json", folder / "as-it-is.jinja"
        tokenizer.write_bytes(plain_tokenizer(source.read_bytes()))
        template.write_text(_AS_IT_IS)
        return tokenizer, template

    async def failed(self) -> BaseException:
        return await self._threads.failed()

    async def stop(self) -> None:
        await self._threads.stop()
        self._runner = None

    def on_step(self, flush: Callable[[], None]) -> None:
        self._threads.on_step(flush)

    def load(self) -> EngineLoad:
        return self._threads.load()

    def submit(self, request: PreprocessedRequest, sink: Sink) -> Abort:
        room_for(request, self._context)
        wanted = wishes(request)  # refuses what can't be asked, now
        if request.stop_conditions.max_tokens == 0:
            return nothing_wanted(sink)
        return self._threads.submit(ThreadedRequest(request, sink, _Progress(request, wanted)))

    # -- in the threads

    def _answer(self, job: ThreadedRequest) -> None:
        """Stream a request, below `min_tokens` with its ends banned; then what follows, as a prompt of its own."""
        conditions = job.request.stop_conditions
        if conditions.ignore_eos:
            self._stream(job, self._own_ends(job))
        else:
            if conditions.min_tokens:
                self._stream(job, self._own_ends(job), conditions.min_tokens)
            if job.wanted:
                self._stream(job, [])
        if job.wanted:
            raise EngineError("mistral.rs ended a stream without saying why")

    def _own_ends(self, job: ThreadedRequest) -> list[int]:
        """Return the tokens at which mistral.rs stops by itself.

        Where it is told to ignore them it makes them without showing them, so they are banned instead, as
        llama.cpp does.
        """
        chosen = job.request.stop_conditions.stop_token_ids
        return [token for token in self._model.card.eos_token_ids if token not in chosen]

    def _stream(self, job: ThreadedRequest, banned: list[int], floor: int | None = None) -> None:
        """Stream until the end, or until there are `floor` tokens and no character is half made."""
        state, asked = job.state, self._asked(job, banned)
        # Trap 2: a second thread that submits meets "Already borrowed". Trap 4: on a CPU, two prompts in one step fail;
        # so one at a time comes in, until its first token is there.
        with self._entrance:
            if not job.wanted:
                return
            stream = self._begin(asked)
        for chunk in stream:
            if not job.wanted or self._hear(job, chunk):
                # Left to the garbage, the stream is cancelled: mistral.rs ends a sequence that nobody hears
                # at its next token. A prompt that is being computed can't be broken off.
                return
            if floor is not None and state.made >= floor and state.whole(self._tokenizer):
                return

    def _asked(self, job: ThreadedRequest, banned: list[int]) -> Any:
        """Make a request that goes on where it is, in mistral.rs' words."""
        state = job.state
        text = prompt_text(self._tokenizer, state.ids, job.request.answered_tokens + state.made)
        most = left(job.request, self._context - len(state.ids) + state.made) - state.made
        # Trap 3: completion requests can't stream, so each prompt is one user's message, through a template that
        # leaves it as it is.
        message = [{"role": "user", "content": text}]
        return self._request(message, "default", **options(state.wishes, most, banned))

    def _begin(self, asked: Any) -> Iterator[Any]:
        """Begin a request; returns its chunks with the first of them."""
        stream = self._runner.send_chat_completion_request(asked)
        try:
            first = next(stream)
        except ValueError as error:  # a schema, say, that it can't read: the caller's, before any output
            raise InvalidArgument(f"mistral.rs: {str(error).splitlines()[0]}") from error
        return itertools.chain([first], stream)

    def _hear(self, job: ThreadedRequest, chunk: Any) -> bool:
        """Take one chunk; True once the request has ended."""
        choice = chunk.choices[0]
        reason, logprob = choice.finish_reason, choice.logprobs  # each look makes them anew
        if reason not in (None, "stop", "length"):
            raise EngineError(f"mistral.rs ended the stream with {reason!r}")
        token = self._token(job, reason, logprob)
        produced = None
        if token is not None:
            job.state.add(token)
            produced = ([token], extras_of(logprob, job.request.output_options.logprobs))
        ending = self._ending(job, token) or (reason and (EOS if reason == "stop" else LENGTH,))
        if ending:
            self._threads.finish(job, *ending, produced=produced)
        elif produced is not None:
            self._threads.push(job, *produced)
        return bool(ending)

    def _token(self, job: ThreadedRequest, reason: str | None, logprob: Any) -> int | None:
        """Return the token that a chunk is of. An end is counted and not shown; which of several it was isn't told."""
        if logprob is not None:
            return self._reader.token(logprob)
        ends = job.request.eos_token_ids
        return ends[0] if reason == "stop" and ends else None

    def _ending(self, job: ThreadedRequest, token: int | None) -> tuple[Any, ...] | None:
        """Return how this token ends the request, which mistral.rs can't be told: it takes stop texts, no ids."""
        reason = None if token is None else job.state.stops.get(token)
        if reason is None or job.state.made < (job.request.stop_conditions.min_tokens or 0):
            return None
        return reason, {STOP_REASON: token} if reason == STOP else None


class _Progress:
    """Progress of a request."""

    def __init__(self, request: PreprocessedRequest, wishes: dict[str, Any]) -> None:
        self.ids, self.wishes, self.stops = list(request.token_ids), wishes, stop_reasons(request)
        self.made = 0

    def add(self, token: int) -> None:
        self.ids.append(token)
        self.made += 1

    def whole(self, tokenizer: Any) -> bool:
        """Tell whether the last character is complete."""
        data = b"".join(map(tokenizer.token_bytes, self.ids[-8:]))
        try:
            data.lstrip(_INNER_BYTES).decode()
        except UnicodeDecodeError:
            return False
        return True


def _runner(mistralrs: Any, path: Path, given: dict[str, Any], tokenizer: Path, template: Path) -> Any:
    dtypes = {kind.lower(): getattr(mistralrs.ModelDType, kind) for kind in ("Auto", "BF16", "F16", "F32")}
    if given["dtype"] not in dtypes:
        raise InvalidArgument(f"mistralrs argument 'dtype' must be one of {', '.join(dtypes)}, got {given['dtype']!r}")
    which: dict[str, Any] = {"tokenizer_json": str(tokenizer), "dtype": dtypes[given["dtype"]]}
    if path.is_dir():
        model = mistralrs.Which.Plain(model_id=str(path), **which)
    else:
        model = mistralrs.Which.GGUF(quantized_model_id=str(path.parent), quantized_filename=path.name, **which)
    return mistralrs.Runner(
        which=model,
        max_seqs=given["max_seqs"],
        # Trap 5: with its own default for cached prefixes, streams at once collapse to 3 tokens a second on a CPU.
        prefix_cache_n=given["prefix_cache_n"],
        jinja_explicit=str(template),
        in_situ_quant=given["in_situ_quant"] or None,
        paged_attn=given["paged_attn"],
        seed=None if given["seed"] < 0 else given["seed"],
        token_source="none",
    )
