"""What a stream needs to go on with another worker: the tokens that it has got, and the request for the rest. Pure.

An answer that keeps to a grammar can't be continued by most engines, which begin the grammar with their first token.
Where the same request makes the same answer (no temperature, or a seed), another worker makes it anew, and what the
client has is compared and dropped (`Replay`).

`choice.py` has one `MigrationState` per choice that may move, `retries.py` asks it. Tokens are kept as they come, one
append each, and go behind the prompt when their worker is lost: the next one computes them like any prompt, and makes
the token after them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final

import msgspec

from dynamo.frontend.limits.settings import MigrationSettings
from dynamo.frontend.routing.model_set import AnyRequest
from dynamo.llm.protocols import PreprocessedRequest
from dynamo.runtime.errors import EngineError

TEXT: Final = "engines that take text can't go on with what another one began"
GUIDED: Final = (
    "guided decoding goes on elsewhere only where the answer can be made anew: with temperature 0 or a seed, and "
    "without log probabilities"
)
OTHER: Final = "the worker that took over makes another answer than the one that was lost; send the request again"
TOO_LONG: Final = "it is longer than what is kept to go on elsewhere (--migration-max-seq-len)"
USED_UP: Final = "its migration limit of {} is used up"


class MigrationState:
    """The tokens of one choice since it was sent last, while it may go on elsewhere."""

    __slots__ = ("_made", "_on_long", "_replays", "_room", "_sent", "add", "barred")

    def __init__(
        self, request: AnyRequest, settings: MigrationSettings, on_long: Callable[[], object] = lambda: None,
        *, resumes: bool = False,
    ) -> None:  # fmt: skip
        """Begin; `on_long` is called once, where prompt and answer have become longer than the settings allow.

        `resumes`: the model's engines go on within the constraint of an answer.
        """
        self._made, self._on_long = array("q"), on_long
        self._room = 0
        self._replays = not resumes and is_guided(request)
        """Another worker makes the answer anew."""
        self._sent: list[int] = []
        """The tokens that it must begin with then."""
        self.barred = ""
        """Why it can't go on elsewhere, whatever the limit."""
        self.add: Callable[[int], None] | None = None
        """To be called with each token; None: nothing is kept."""
        if settings.limit > 0:
            self._begin(request, settings.max_seq_len)

    def _begin(self, request: AnyRequest, longest: int | None) -> None:
        if not isinstance(request, PreprocessedRequest):
            self.barred = TEXT
        elif self._replays and not makes_the_same(request):
            self.barred = GUIDED
        elif longest is None:
            self.add = self._made.append
        elif request.prompt_tokens > longest:
            self._give_up()
        else:
            self._room, self.add = longest - request.prompt_tokens, self._add_some

    def _add_some(self, token: int) -> None:
        self._room -= 1
        if self._room >= 0:
            self._made.append(token)
        elif not self.barred:
            self._give_up()

    def _give_up(self) -> None:
        self.barred = TOO_LONG
        del self._made[:]
        self._on_long()

    def rest(self, request: AnyRequest) -> PreprocessedRequest | None:
        """Return the request that another worker gets: for what comes after those that came, or for all of it anew.

        None where it can't go on elsewhere.
        """
        if self.barred or not isinstance(request, PreprocessedRequest):
            return None
        if not self._replays:
            return rest_of(request, self.take())
        self._sent += self.take()
        return None if rest_of(request, self._sent) is None else request

    def replay(self) -> Replay | None:
        """Return what the next attempt's tokens are compared with; None: they go on where the last ones ended."""
        return Replay(self._sent.copy()) if self._sent else None

    def take(self) -> list[int]:
        """Return those that came since the request was sent last; from now on the next ones are kept."""
        made = self._made.tolist()
        del self._made[:]
        return made


class Replay:
    """An answer that is made anew, whose first tokens the client has."""

    def __init__(self, sent: list[int]) -> None:
        self._sent, self._at = sent, 0

    @property
    def over(self) -> bool:
        """Tell whether all that the client has came again."""
        return self._at == len(self._sent)

    def new(self, ids: list[int]) -> list[int]:
        """Return those of the next tokens that the client doesn't have; raises where they differ from what it has."""
        known = self._sent[self._at : self._at + len(ids)]
        if ids[: len(known)] != known:
            raise EngineError(OTHER)
        self._at += len(known)
        return ids[len(known) :]


def is_guided(request: AnyRequest) -> bool:
    """Tell whether something constrains the answer to a request for tokens."""
    return isinstance(request, PreprocessedRequest) and bool(request.sampling_options.guided_decoding)


def makes_the_same(request: PreprocessedRequest) -> bool:
    """Tell whether two workers make the same answer to it, of tokens alone."""
    sampling, output = request.sampling_options, request.output_options
    drawn = sampling.temperature != 0 and sampling.seed is None and sampling.top_k != 1
    return not drawn and output.logprobs is None and output.prompt_logprobs is None


def rest_of(request: PreprocessedRequest, made: list[int]) -> PreprocessedRequest | None:
    """Return the request for what comes after `made`; None where nothing may come after it."""
    ends, output = request.stop_conditions, request.output_options
    if ends.max_tokens is not None and ends.max_tokens <= len(made):
        return None
    rest = msgspec.structs.replace(
        ends,
        max_tokens=None if ends.max_tokens is None else ends.max_tokens - len(made),
        min_tokens=None if ends.min_tokens is None else max(0, ends.min_tokens - len(made)),
    )
    return msgspec.structs.replace(
        request,
        token_ids=request.token_ids + made,
        answered_tokens=request.answered_tokens + len(made),
        stop_conditions=rest,
        # Those of the prompt came with the first token.
        output_options=msgspec.structs.replace(output, prompt_logprobs=None) if made else output,
    )
