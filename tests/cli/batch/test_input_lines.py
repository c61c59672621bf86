"""What the lines of a batch file are taken for, and what its output and statistics say."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.cli.asgi_client import RequestError
from dynamo.cli.batch import output_lines
from dynamo.cli.batch.input_lines import LONGEST, Asked, Bad, Prompt, Reader, read_entry
from dynamo.cli.batch.output_lines import Outcome, Totals

CHAT = "/v1/chat/completions"
OPENAI = b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"n": 1}}'


def test_both_forms_are_read() -> None:
    """A line with text is a prompt, one with custom_id a request; other keys do no harm."""
    assert read_entry(1, b'{"text": "hi", "response": "old"}') == Prompt(1, "hi")
    assert read_entry(2, OPENAI) == Asked(2, "a", CHAT, {"n": 1})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"hello", "no JSON"),
        (b'{"text": "\xff"}', "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b'["text"]', "no JSON object"),
        (b'{"txt": "hi"}', 'neither "text" nor'),
        (b'{"text": 7}', '"text" must be a string'),
        (b'{"custom_id": ""}', '"custom_id" must be'),
        (OPENAI.replace(b"POST", b"GET"), '"method" must be'),
        (OPENAI.replace(b"chat", b"cat"), '"url" must be one of'),
        (OPENAI.replace(b'{"n": 1}', b"1"), '"body" must be an object'),
        (b'"' + b"x" * LONGEST + b'"', "longer than 64 MiB"),
    ],
)
def test_a_bad_line_says_why(line: bytes, reason: str) -> None:
    """What can't be asked is an entry all the same, with the reason."""
    entry = read_entry(3, line)
    assert isinstance(entry, Bad)
    assert reason in entry.reason


@given(st.binary(max_size=40))
def test_no_line_is_too_strange(line: bytes) -> None:
    """Whatever the bytes, a line is an entry and never an exception."""
    assert read_entry(1, line).number == 1


def test_lines_are_numbered_and_names_are_unique() -> None:
    """Blank lines count but ask nothing; a byte order mark is no part of the text; a custom_id counts once."""
    file = b'\xef\xbb\xbf{"text": "a"}\n\n  \n' + OPENAI + b"\n" + OPENAI
    first, second, third = Reader(io.BytesIO(file))
    assert (first, second) == (Prompt(1, "a"), Asked(4, "a", CHAT, {"n": 1}))
    assert isinstance(third, Bad)
    assert (third.number, third.custom_id) == (5, "a")


def test_a_prompt_is_answered_in_the_known_keys() -> None:
    """The line has NVIDIA Dynamo's keys, in its order."""
    completion = {
        "choices": [{"message": {"content": "Paris."}, "finish_reason": "stop"}], "usage": {"completion_tokens": 2}
    }  # fmt: skip
    outcome = output_lines.of_prompt(1, "France?", completion, 3, 17)
    assert list(outcome.line.items()) == [
        ("text", "France?"), ("response", "Paris."), ("tokens_in", 3), ("tokens_out", 2), ("elapsed_ms", 17),
        ("finish_reason", "stop"),
    ]  # fmt: skip


def test_failures_keep_the_form_of_their_line() -> None:
    """A prompt's failure has text and error; a request's has OpenAI's response or error."""
    error = RequestError(400, "no", "bad")
    assert output_lines.of_failure(Prompt(1, "hi"), error).line == {"text": "hi", "error": "no", "status": 400}
    request = output_lines.of_failure(Asked(2, "a", CHAT, {}), error).line
    assert (request["custom_id"], request["response"]["status_code"], request["error"]) == ("a", 400, None)
    assert output_lines.of_bad(Bad(3, "no JSON")).line == {"line": 3, "error": "no JSON"}
    assert output_lines.of_bad(Bad(4, "url", "b")).line["error"]["message"] == "line 4: url"


def test_the_statistics_are_those_of_nvidia_dynamo() -> None:
    """Rates are over whole seconds, at least one."""
    totals = Totals()
    totals.add(Outcome(1, {}, 10, 100))
    totals.add(Outcome(2, {}, failed="x"))
    assert output_lines.statistics(totals, 0.5) == "Ran 2 files in 500ms. Tokens in: 10 (10/s). Tokens out: 100 (100/s)"
    assert output_lines.statistics(totals, 2.9).endswith("in 2s 900ms. Tokens in: 10 (5/s). Tokens out: 100 (50/s)")
    assert [output_lines.duration(seconds) for seconds in (0, 3661, 0.0004)] == ["0ms", "1h 1m 1s", "0ms"]
