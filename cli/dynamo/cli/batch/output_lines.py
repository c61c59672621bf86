"""The lines of a batch's output, and the words at its end. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dynamo.cli.asgi_client import RequestError
from dynamo.cli.batch.input_lines import Asked, Bad, Entry


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one entry: a line of the output, and what it adds to the statistics."""

    number: int
    line: dict[str, Any]
    tokens_in: int = 0
    tokens_out: int = 0
    failed: str = ""
    """Why there is no answer."""


@dataclass
class Totals:
    """The statistics of a run."""

    entries: int = 0
    failed: int = 0
    tokens_in: int = 0
    tokens_out: int = 0

    def add(self, outcome: Outcome) -> None:
        self.entries += 1
        self.failed += bool(outcome.failed)
        self.tokens_in += outcome.tokens_in
        self.tokens_out += outcome.tokens_out


def of_prompt(number: int, text: str, answer: dict[str, Any], tokens_in: int, elapsed_ms: int) -> Outcome:
    """Return NVIDIA Dynamo's line: `answer` is a chat completion; `tokens_in` are those of the bare text."""
    choice = answer["choices"][0]
    tokens_out = (answer.get("usage") or {}).get("completion_tokens", 0)
    line = {
        "text": text, "response": choice["message"].get("content") or "", "tokens_in": tokens_in,
        "tokens_out": tokens_out, "elapsed_ms": elapsed_ms, "finish_reason": choice.get("finish_reason"),
    }  # fmt: skip
    return Outcome(number, line, tokens_in, tokens_out)


def of_request(entry: Asked, answer: dict[str, Any]) -> Outcome:
    """Return OpenAI's line: the response's body under the `custom_id`."""
    usage = answer.get("usage") or {}
    response = {"status_code": 200, "request_id": answer.get("id", ""), "body": answer}
    return Outcome(
        entry.number, _openai(entry, response, None), usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    )


def of_failure(entry: Entry, error: RequestError) -> Outcome:
    """Return the line of an entry that the frontend refused or an engine failed."""
    if isinstance(entry, Asked):
        body = {"error": {"message": str(error), "code": error.code or None}}
        response = {"status_code": error.status, "request_id": "", "body": body}
        return Outcome(entry.number, _openai(entry, response, None), failed=str(error))
    text = getattr(entry, "text", "")
    return Outcome(entry.number, {"text": text, "error": str(error), "status": error.status}, failed=str(error))


def of_bad(entry: Bad) -> Outcome:
    """Return the output line of an input line that asks nothing."""
    if entry.custom_id is None:
        return Outcome(entry.number, {"line": entry.number, "error": entry.reason}, failed=entry.reason)
    error = {"code": "invalid_line", "message": f"line {entry.number}: {entry.reason}"}
    line = {"id": _id(entry.number), "custom_id": entry.custom_id, "response": None, "error": error}
    return Outcome(entry.number, line, failed=entry.reason)


def _openai(entry: Asked, response: dict[str, Any], error: dict[str, Any] | None) -> dict[str, Any]:
    return {"id": _id(entry.number), "custom_id": entry.custom_id, "response": response, "error": error}


def _id(number: int) -> str:
    return f"batch_req_{number}"


def statistics(totals: Totals, seconds: float) -> str:
    """Return NVIDIA Dynamo's line; its rates are over whole seconds, one at least."""
    over = max(1, int(seconds))
    ins, outs = totals.tokens_in, totals.tokens_out
    return (
        f"Ran {totals.entries} files in {duration(seconds)}. Tokens in: {ins} ({ins // over}/s). "
        f"Tokens out: {outs} ({outs // over}/s)"
    )


def duration(seconds: float) -> str:
    """Return `1h 2m 3s 40ms`, without the parts that are nought."""
    millis = round(seconds * 1000)
    parts = []
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, millis = divmod(millis, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts) or "0ms"
