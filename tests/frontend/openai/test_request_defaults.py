"""What requests get that leave it out, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from dynamo.frontend.openai.request_defaults import RequestDefaults

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = [{"role": "user", "content": "hello"}]
DEFAULTS = RequestDefaults(model="m", temperature=0.25, max_completion_tokens=3)


@pytest.mark.parametrize(
    ("path", "body", "temperature", "length"),
    [
        (CHAT, {"messages": MESSAGES}, 0.25, 3),
        (CHAT, {"messages": MESSAGES, "model": "", "temperature": None, "max_tokens": None}, 0.25, 3),
        (CHAT, {"messages": MESSAGES, "temperature": 0, "max_completion_tokens": 5}, 0, 5),
        (CHAT, {"messages": MESSAGES, "max_tokens": 4}, 0.25, 4),
        (TEXT, {"prompt": "hello"}, 0.25, 3),
        (TEXT, {"prompt": "hello", "temperature": 1, "max_tokens": 2}, 1, 2),
    ],
)
def test_what_is_left_out_is_filled_in(
    make_site: Any, echo: Any, path: str, body: dict[str, Any], temperature: float, length: int
) -> None:
    """Model, temperature and length; what a request says wins, zero included. Fields stay as strict as they are."""
    site = make_site(request_defaults=DEFAULTS, strict_fields=True)
    site.worker(echo)
    answer = site.post(path, body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == length
    assert echo.seen[0]["sampling_options"]["temperature"] == temperature


def test_another_model_is_not_replaced(make_site: Any, echo: Any) -> None:
    """A request for a model that nobody serves is refused as ever."""
    site = make_site(request_defaults=DEFAULTS)
    site.worker(echo)
    assert site.post(TEXT, {"prompt": "hello", "model": "other"}).status_code == 404


def test_without_defaults_a_model_is_required(served: Any) -> None:
    """Nothing is filled in that nobody asked for."""
    assert served.post(TEXT, {"prompt": "hello"}).status_code == 400
