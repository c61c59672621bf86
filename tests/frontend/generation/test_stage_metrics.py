"""Metrics by NVIDIA Dynamo's names that say where requests are: stages, the tokenizer, workers, failures."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx

TEXT = "/v1/completions"
HELLO = {"model": "m", "prompt": "hello", "max_tokens": 4}


def test_a_request_moves_each_stage_and_its_worker(served: Any, within: Any) -> None:
    """One answer is counted in each stage and with the tokenizer, and its worker has its latest figures."""
    assert served.post(TEXT, HELLO).status_code == 200
    within("it is counted", lambda: served.metric("requests_total", status="success") == 1)
    stages = ("preprocess", "route", "dispatch")
    assert [served.metric("stage_duration_seconds_count", stage=stage) for stage in stages] == [1, 1, 1]
    assert served.metric("tokenizer_latency_ms_count", operation="tokenize") == 1
    assert [served.metric(f"{name}_seconds_count") for name in ("tokenize", "template")] == [1, 0]
    worker = {"worker_id": str(served.instances()[0]), "dp_rank": "0", "worker_type": "decode"}
    assert served.metric("worker_last_input_sequence_tokens", **worker) == 5
    assert served.metric("worker_last_time_to_first_token_seconds", **worker) > 0
    assert served.metric("worker_last_inter_token_latency_seconds", **worker) > 0
    assert served.metric("worker_active_prefill_tokens", **worker) == 0


def test_a_chat_has_a_template(served: Any, within: Any) -> None:
    """Rendering it is counted apart from its tokens; both are parts of the whole."""
    chat = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    assert served.post("/v1/chat/completions", chat).status_code == 200
    within("it is counted", lambda: served.metric("requests_total", status="success") == 1)
    assert [served.metric(f"{name}_seconds_count") for name in ("tokenize", "template")] == [1, 1]
    parts = sum(served.metric(f"{name}_seconds_sum") for name in ("tokenize", "template"))
    assert 0 < parts * 1000 <= served.metric("tokenizer_latency_ms_sum") * 1.001


def test_a_loop_that_is_kept_busy_is_late(served: Any, within: Any) -> None:
    """How late it is is measured all the time, and whoever keeps it busy shows."""
    within("it is looked at", lambda: served.metric("event_loop_delay_seconds_count") > 1)
    served.call(lambda: time.sleep(0.6))
    within("that is seen", lambda: served.metric("event_loop_delay_seconds_sum") > 0.3)
    assert served.metric("event_loop_stall_total") >= 1


def test_refusals_are_failures(served: Any) -> None:
    """A body that is wrong, and a model that isn't there, are failures by their error type."""
    assert served.post(TEXT, {**HELLO, "temperature": 9}).status_code == 400
    assert served.post(TEXT, {**HELLO, "model": "nobody"}).status_code == 404
    assert served.metric("failures_total", endpoint="completions", error_type="validation") == 1
    assert served.metric("failures_total", model="unknown_model", error_type="not_found") == 1
    assert "dynamo_frontend_worker_active_decode_blocks" in httpx.get(f"{served.url}/metrics").text


def test_a_request_without_a_token_is_dispatched(served: Any, echo: Any, within: Any) -> None:
    """Until the first token a request counts as dispatched, and as nothing afterwards."""
    echo.hold = asyncio.Event()
    with served.socket() as client:
        body = json.dumps(HELLO).encode()
        head = (
            f"POST {TEXT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        client.sendall(head.encode() + body)
        within("it is dispatched", lambda: served.metric("stage_requests", stage="dispatch") == 1)
        assert served.metric("stage_requests", stage="preprocess") == 0
        served.call(echo.hold.set)
        within("it is over", lambda: served.metric("requests_total", status="success") == 1)
    assert served.metric("stage_requests") == 0
