"""Answers of the two hot routes as one JSON body, by one encode."""

from __future__ import annotations

from typing import Any

import msgspec

from dynamo.frontend.generation.choice import Choice
from dynamo.frontend.responses.response import Identity, Response, usage_dict
from dynamo.frontend.routing.report import Route, given, spliced, worker_id
from dynamo.llm.protocols import PreprocessedRequest, TextRequest


class JsonResponse(Response):
    """One JSON body, folded from the same deltas."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._texts: list[list[str]] = [[] for _ in range(self.options.choices)]
        self._rows: list[list[Any]] = [[] for _ in range(self.options.choices)]
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
        assert self._logprobs is not None, "they were asked for"
        self._rows[index] += self._logprobs.of(choice, ids, offsets, extras, not self._seen[index])
        self._seen[index] = True
        self.text(choice, text)

    def finished(self, choice: Choice) -> None:
        self._left -= 1
        if self._left:
            return
        make = chat_answer if self.options.chat else completion_answer
        bodies = [self._choice(each) for each in self.choices]
        body = make(self.who, bodies, usage_dict(*self.usage()))
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
        return body


def chat_answer(who: Identity, choices: list[dict[str, Any]], usage: dict[str, Any]) -> bytes:
    """Return a whole chat answer."""
    return _answer(who, "chat.completion", choices, usage)


def completion_answer(who: Identity, choices: list[dict[str, Any]], usage: dict[str, Any]) -> bytes:
    """Return a whole completion answer."""
    return _answer(who, "text_completion", choices, usage)


def _answer(who: Identity, kind: str, choices: list[dict[str, Any]], usage: dict[str, Any]) -> bytes:
    body = {"id": who.id, "object": kind, "created": who.created, "model": who.model}
    return msgspec.json.encode({**body, "system_fingerprint": who.fingerprint, "choices": choices, "usage": usage})


def query_answer(
    who: Identity, kind: str, request: PreprocessedRequest | TextRequest, route: Route, computed: Route | None = None
) -> bytes:
    """Return the answer to a request that only asks where it would go; with its tokens, for who sends it on."""
    nvext: dict[str, Any] = {"worker_id": worker_id(route, computed), "routing": given(msgspec.to_builtins(route))}
    if isinstance(request, PreprocessedRequest):
        nvext["token_ids"] = request.token_ids
    head = {"id": who.id, "object": kind, "created": who.created, "model": who.model}
    return msgspec.json.encode({**head, "choices": [], "nvext": nvext})
