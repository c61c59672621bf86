"""What a stream needs to go on with another worker: the tokens that it has got, and the request for the rest. Pure.

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

TEXT: Final = "engines that take text can't go on with what another one began"
GUIDED: Final = "guided decoding can't go on elsewhere, since the next engine would begin its grammar anew"
TOO_LONG: Final = "it is longer than what is kept to go on elsewhere (--migration-max-seq-len)"
USED_UP: Final = "its migration limit of {} is used up"


class MigrationState:
    """The tokens of one choice since it was sent last, while it may go on elsewhere."""

    __slots__ = ("_made", "_on_long", "_room", "add", "barred")

    def __init__(
        self, request: AnyRequest, settings: MigrationSettings, on_long: Callable[[], object] = lambda: None
    ) -> None:
        """Begin; `on_long` is called once, where prompt and answer have become longer than the settings allow."""
        self._made, self._on_long = array("q"), on_long
        self._room = 0
        self.barred = ""
        """Why it can't go on elsewhere, whatever the limit."""
        self.add: Callable[[int], None] | None = None
        """To be called with each token; None: nothing is kept."""
        if settings.limit > 0:
            self._begin(request, settings.max_seq_len)

    def _begin(self, request: AnyRequest, longest: int | None) -> None:
        if not isinstance(request, PreprocessedRequest):
            self.barred = TEXT
        elif request.sampling_options.guided_decoding:
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
        """Return `request` for what comes after those that came since it was sent.

        None where it can't go on elsewhere.
        """
        if self.barred or not isinstance(request, PreprocessedRequest):
            return None
        return rest_of(request, self.take())

    def take(self) -> list[int]:
        """Return those that came since the request was sent last; from now on the next ones are kept."""
        made = self._made.tolist()
        del self._made[:]
        return made


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
