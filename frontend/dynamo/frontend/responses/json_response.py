"""Answers of the two hot routes as one JSON body, by one encode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dynamo.frontend.generation.choice import Choice
from dynamo.frontend.openai.chunks import Identity
from dynamo.frontend.responses.generation_events import usage_dict
from dynamo.frontend.responses.response import Response
from dynamo.frontend.routing.report import Route, given, spliced, worker_id
from dynamo.llm.protocols import PreprocessedRequest, TextRequest

NOTHING_MORE: Final[Mapping[str, Any]] = {}


class JsonResponse(Response):
    """One JSON body, folded from the same deltas."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._texts: list[list[str]] = [[] for _ in range(self.options.choices)]
        self._rows: list[list[Any]] = [[] for _ in range(self.options.choices)]
        self._ids: list[list[int]] = [[] for _ in range(self.options.choices)]
        self._timed = False

    def text(self, choice: Choice, text: str) -> None:
        if not self._timed:
            self._timed = True
            self._first_token()
        self._texts[choice.index].append(text)

    def tokens(
        self, choice: Choice, text: str, ids: list[int], offsets: list[int], extras: dict[str, Any] | None
    ) -> None:
        index = choice.index
        if (scores := self.options.scores) is not None:
            scores.take(index, ids, extras, first=not self._seen[index])
        if self._logprobs is not None:
            self._rows[index] += self._logprobs.of(choice, ids, offsets, extras, not self._seen[index])
        if self.options.token_ids:
            self._ids[index] += ids
        self._seen[index] = True
        self.text(choice, text)

    def finished(self, choice: Choice) -> None:
        self._left -= 1
        if self._left:
            return
        make = chat_answer if self.options.chat else completion_answer
        scores, choices = self.options.scores, self.choices
        answers = choices if scores is None else scores.best(choices, self.options.prompts)
        bodies = [self._choice(answer) for answer in answers]
        more = NOTHING_MORE if scores is None else scores.add(bodies, answers, self.options)
        if self.options.token_ids and self.options.chat:
            more = {**more, "prompt_token_ids": self.options.prompt_ids[0]}
        body = make(self.who, bodies, usage_dict(*self.usage(), self.reasoning()), more)
        if (explanation := self.options.explanation) is not None:
            body = spliced(body, explanation.late(0), b"}")
        self._whole(200, body, [])
        self._end()

    def _choice(self, choice: Choice) -> dict[str, Any]:
        index, text, rows = choice.index, "".join(self._texts[choice.index]), self._rows[choice.index]
        if self.options.unanswered:
            text, rows = "", rows[: len(self.options.prompt_ids[index])] if self.options.prompt_ids else []
        body: dict[str, Any] = {"index": index}
        if self.options.chat:
            body["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            body["text"] = (self.options.echo[index] if self.options.echo else "") + text
        body["logprobs"] = None if self._logprobs is None else self._logprobs.render(rows)
        body["finish_reason"] = choice.finish_reason or "stop"
        if choice.stop_reason is not None:
            body["stop_reason"] = choice.stop_reason
        if self.options.token_ids:
            body["token_ids"] = [] if self.options.unanswered else self._ids[index]
            if not self.options.chat:
                body["prompt_token_ids"] = self.options.prompt_ids[index]
        return body


def chat_answer(
    who: Identity, choices: list[dict[str, Any]], usage: dict[str, Any], more: Mapping[str, Any] = NOTHING_MORE
) -> bytes:
    """Return a whole chat answer."""
    return msgspec.json.encode({**who.head("chat.completion"), "choices": choices, "usage": usage, **more})


def completion_answer(
    who: Identity, choices: list[dict[str, Any]], usage: dict[str, Any], more: Mapping[str, Any] = NOTHING_MORE
) -> bytes:
    """Return a whole completion answer."""
    return msgspec.json.encode({**who.head("text_completion"), "choices": choices, "usage": usage, **more})


def query_answer(
    who: Identity, kind: str, request: PreprocessedRequest | TextRequest, route: Route, computed: Route | None = None
) -> bytes:
    """Return the answer to a request that only asks where it would go; with its tokens, for who sends it on."""
    nvext: dict[str, Any] = {"worker_id": worker_id(route, computed), "routing": given(msgspec.to_builtins(route))}
    if isinstance(request, PreprocessedRequest):
        nvext["token_ids"] = request.token_ids
    head = {"id": who.id, "object": kind, "created": who.created, "model": who.model}
    return msgspec.json.encode({**head, "choices": [], "nvext": nvext})
