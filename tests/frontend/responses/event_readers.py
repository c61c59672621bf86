"""What clients of each API put together of an answer, brought to one form."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from dynamo.frontend.openai.chunks import Identity
from dynamo.frontend.openai.constraints import Parsing
from dynamo.frontend.responses.event_answer import EventAnswer
from dynamo.frontend.responses.json_response import JsonResponse
from dynamo.frontend.responses.messages_writer import MessagesWriter
from dynamo.frontend.responses.parsed_response import ParsedStream, ParsedWhole
from dynamo.frontend.responses.response import Response, ResponseOptions, SseResponse
from dynamo.frontend.responses.responses_writer import ResponsesWriter, response_of

WHO = Identity("id-1", 1700000000, "m", "fp_1")


class Said(msgspec.Struct):
    """What an answer says, whoever wrote it down."""

    reasoning: str = ""
    text: str = ""
    calls: list[tuple[str, str]] = []
    finish: str = ""
    usage: tuple[int, int, int] = (0, 0, 0)


class Output:
    """Where an answer's bytes go."""

    dirty = True

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.append = self.parts.append

    def head(self, status: int, headers: Any) -> None:
        assert status == 200, self.parts

    def end(self) -> None:
        """Nothing waits for it."""

    def touch(self, output: Any) -> None:
        """As a `BatchWriter`."""

    def events(self) -> list[dict[str, Any]]:
        lines = b"".join(self.parts).split(b"\n\n")
        datas = [part for line in lines for part in line.split(b"\n") if part.startswith(b"data: ")]
        return [json.loads(data[6:]) for data in datas if data != b"data: [DONE]"]

    def whole(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(b"".join(self.parts))
        return body


class Spoken:
    """As a `Choice`: counts a token per character."""

    index, prompt_tokens, cached = 0, 7, 3
    stop_reason, knows_cached, prefix = None, True, b""

    def __init__(self, finish: str) -> None:
        self._finish, self.finish_reason = finish, None if finish == "none" else finish
        self.tokens = 0


def answer(form: Callable[..., Response], parsing: Parsing | None, pieces: Iterable[str], finish: str) -> Output:
    """Have the answer of a form written, of a text in pieces."""
    output = Output()
    options = ResponseOptions(chat=True, choices=1, parsing=parsing, include_usage=True)
    made = form(WHO, options, output, output, headers=[], meter=None, first_token=lambda: None)
    choice: Any = Spoken(finish)
    made.choices = [choice]
    for piece in pieces:
        choice.tokens += len(piece)
        made.text(choice, piece)
    made.finished(choice)
    return output


def chat_stream(parsing: Parsing | None, pieces: Iterable[str], finish: str) -> Said:
    said = Said()
    for chunk in answer(SseResponse if parsing is None else ParsedStream, parsing, pieces, finish).events():
        for choice in chunk["choices"]:
            delta = choice["delta"]
            said.text += delta.get("content") or ""
            said.reasoning += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    said.calls.append((call["function"]["name"], ""))
                name, arguments = said.calls[call["index"]]
                said.calls[call["index"]] = name, arguments + call["function"]["arguments"]
            said.finish = choice["finish_reason"] or said.finish
        if chunk.get("usage"):
            said.usage = _chat_usage(chunk["usage"])
    return said


def chat_whole(parsing: Parsing | None, pieces: Iterable[str], finish: str) -> Said:
    body = answer(JsonResponse if parsing is None else ParsedWhole, parsing, pieces, finish).whole()
    message = body["choices"][0]["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    return Said(
        message.get("reasoning_content", ""), message["content"] or "", calls, body["choices"][0]["finish_reason"],
        _chat_usage(body["usage"]),
    )  # fmt: skip


def _chat_usage(usage: dict[str, Any]) -> tuple[int, int, int]:
    return usage["prompt_tokens"], usage["completion_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def responses_form(streams: bool) -> Callable[..., Response]:
    def form(who: Identity, emit: Any) -> ResponsesWriter:
        return ResponsesWriter(response_of(who.id, who.created, who.model, {}), emit, lambda: 1700000001.0)

    return lambda *args, **options: EventAnswer(*args, form=form, streams=streams, **options)


def responses_stream(parsing: Parsing | None, pieces: Iterable[str], finish: str) -> Said:
    """By the deltas alone; and what the events of ends repeat is what the deltas said."""
    events = answer(responses_form(True), parsing, pieces, finish).events()
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    said, open_text = Said(), ""
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["item"]["status"] == "in_progress"
            open_text = ""
            if event["item"]["type"] == "function_call":
                said.calls.append((event["item"]["name"], ""))
        elif kind == "output_text.delta":
            said.text += event["delta"]
            open_text += event["delta"]
        elif kind == "reasoning_text.delta":
            said.reasoning += event["delta"]
            open_text += event["delta"]
        elif kind == "function_call_arguments.delta":
            name, arguments = said.calls[-1]
            said.calls[-1] = name, arguments + event["delta"]
            open_text += event["delta"]
        elif kind.endswith(("_text.done", "arguments.done")):
            assert event.get("text", event.get("arguments")) == open_text
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    final = events[-1]["response"]
    assert done == final["output"]
    return _of_response(final, said)


def responses_whole(parsing: Parsing | None, pieces: Iterable[str], finish: str) -> Said:
    body = answer(responses_form(False), parsing, pieces, finish).whole()
    said = Said()
    for item in body["output"]:
        if item["type"] == "function_call":
            said.calls.append((item["name"], item["arguments"]))
        elif item["type"] == "message":
            said.text += item["content"][0]["text"]
        else:
            said.reasoning += item["content"][0]["text"]
    return _of_response(body, said)


def _of_response(body: dict[str, Any], said: Said) -> Said:
    cut = body["status"] == "incomplete"
    assert cut == (body["incomplete_details"] is not None)
    called = any(item["type"] == "function_call" for item in body["output"])
    said.finish = "length" if cut else "tool_calls" if called else "stop"
    usage = body["usage"]
    said.usage = usage["input_tokens"], usage["output_tokens"], usage["input_tokens_details"]["cached_tokens"]
    return said


def messages_stream(parsing: Parsing | None, pieces: Iterable[str], finish: str) -> Said:
    """By the deltas alone: each block is opened, grows and is closed before the next."""
    events = answer(messages_form(True), parsing, pieces, finish).events()
    assert [event["type"] for event in events[:2] + events[-2:]] == [
        "message_start", "ping", "message_delta", "message_stop",
    ]  # fmt: skip
    said, at, is_open = Said(), -1, False
    for event in events[2:-2]:
        kind = event["type"]
        at += kind == "content_block_start"
        assert (event["index"], is_open) == (at, kind != "content_block_start")
        is_open = kind != "content_block_stop"
        if kind == "content_block_start" and event["content_block"]["type"] == "tool_use":
            said.calls.append((event["content_block"]["name"], ""))
        elif kind == "content_block_delta":
            delta = event["delta"]
            said.text += delta.get("text", "")
            said.reasoning += delta.get("thinking", "")
            if "partial_json" in delta:
                said.calls[-1] = said.calls[-1][0], said.calls[-1][1] + delta["partial_json"]
    assert not is_open
    return _of_message({**events[-2], **events[-2]["delta"]}, said)


def messages_whole(parsing: Parsing | None, pieces: Iterable[str], finish: str) -> Said:
    body = answer(messages_form(False), parsing, pieces, finish).whole()
    said = Said()
    for block in body["content"]:
        if block["type"] == "tool_use":
            said.calls.append((block["name"], json.dumps(block["input"], ensure_ascii=False)))
        elif block["type"] == "text":
            said.text += block["text"]
        else:
            said.reasoning += block["thinking"]
            assert block["signature"]
    return _of_message(body, said)


def messages_form(streams: bool) -> Callable[..., Response]:
    return lambda *args, **options: EventAnswer(*args, form=MessagesWriter, streams=streams, **options)


def _of_message(body: dict[str, Any], said: Said) -> Said:
    reasons = {"end_turn": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
    usage = body["usage"]
    cached = usage["cache_read_input_tokens"]
    said.finish = reasons[body["stop_reason"]]
    said.usage = usage["input_tokens"] + cached, usage["output_tokens"], cached
    return said


READERS: list[Callable[[Parsing | None, Iterable[str], str], Said]] = [
    chat_stream, chat_whole, responses_stream, responses_whole, messages_stream,
    messages_whole,
]  # fmt: skip
