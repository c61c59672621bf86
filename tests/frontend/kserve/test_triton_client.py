"""What Triton's own client gets: whole answers, streams, and what there is to know of models."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import tritonclient.grpc.model_config_pb2 as of_models
from tests.frontend.kserve.conftest import words
from tritonclient.grpc import InferRequestedOutput
from tritonclient.utils import InferenceServerException


def test_a_whole_answer(kserve: Any, call: Any, echo: Any) -> None:
    """Text in, text out, with the finish reason and the request's id; HTTP beside it counts it."""
    site = kserve()
    site.worker(echo)
    result = call(site).infer("hello", request_id="r-1", parameters={"max_tokens": 5})
    assert (words(result), words(result, "finish_reason")) == (["hello"], ["length"])
    said = result.get_response()
    assert (said.id, said.model_name, said.model_version) == ("r-1", "m", "1")
    assert site.metric("requests_total", model="m", endpoint="completions", request_type="unary") == 1
    assert httpx.post(f"{site.url}/v1/completions", json={"model": "m", "prompt": "hello"}).status_code == 200


def test_sampling_parameters_reach_the_engine(kserve: Any, call: Any, echo: Any) -> None:
    """Wherever the client has put them."""
    site = kserve()
    site.worker(echo)
    caller = call(site)
    more = [
        caller.tensor("sampling_parameters", b'{"temperature": 0.25}', "BYTES"), caller.tensor("top_k", 7, "INT64"),
    ]  # fmt: skip
    result = caller.infer("abc", more=more, parameters={"max_tokens": 2, "top_p": "0.5", "n": 2})
    assert words(result) == ["ab", "ab"]
    sampling = echo.seen[0]["sampling_options"]
    assert (sampling["temperature"], sampling["top_p"], sampling["top_k"]) == (0.25, 0.5, 7)


def test_a_stream(kserve: Any, call: Any, echo: Any) -> None:
    """Pieces that make the same text; the last one says why it ended. Without `streaming`, one whole answer."""
    site = kserve()
    site.worker(echo)
    with call(site).stream() as stream:
        stream.ask("hello", request_id="7", parameters={"max_tokens": 5})
        pieces = stream.answer()
        assert "".join(words(piece)[0] for piece in pieces) == "hello"
        reasons = [words(piece, "finish_reason")[0] for piece in pieces]
        assert (set(reasons[:-1]) <= {""}, reasons[-1]) == (True, "length")
        assert {piece.get_response().id for piece in pieces} == {"7"}
        stream.ask("abc", streaming=False, parameters={"max_tokens": 3})
        assert [words(item) for item in stream.answer()] == [["abc"]]


def test_requests_of_one_stream(kserve: Any, call: Any, engines: Any) -> None:
    """Those with ids run side by side; one without waits for those before it, and those behind it for it."""
    site = kserve()
    engine = engines(delay=0.02)
    site.worker(engine)
    with call(site).stream() as stream:
        for name in ("a", "b"):
            stream.ask(name * 5, request_id=name, parameters={"max_tokens": 5})
        stream.ask("ccc", parameters={"max_tokens": 3})
        stream.ask("ddd", parameters={"max_tokens": 3})
        pieces = [item for _ in range(4) for item in stream.answer()]
    order = "".join(words(piece)[0] for piece in pieces)
    assert (sorted(order[:10]), order[10:]) == ([*"aaaaabbbbb"], "cccddd")
    assert order[:10] not in ("aaaaabbbbb", "bbbbbaaaaa"), "they ran one after the other"


def test_what_there_is(kserve: Any, call: Any, echo: Any, within: Any) -> None:
    """The server and its models describe themselves."""
    site = kserve()
    client = call(site).client
    assert client.is_server_live()
    assert client.is_server_ready()
    assert not client.is_model_ready("m")
    site.worker(echo)
    assert client.is_model_ready("m")
    assert client.get_server_metadata().name == "dynamo"
    about = client.get_model_metadata("m")
    assert (about.name, about.platform, list(about.versions)) == ("m", "dynamo", ["1"])
    assert [(entry.name, entry.datatype, list(entry.shape)) for entry in (*about.inputs, *about.outputs)] == [
        ("text_input", "BYTES", [1]), ("streaming", "BOOL", [1]), ("text_output", "BYTES", [-1]),
        ("finish_reason", "BYTES", [-1]),
    ]  # fmt: skip
    config = client.get_model_config("m").config
    assert (config.name, config.backend, config.max_batch_size) == ("m", "dynamo", 0)
    assert config.model_transaction_policy.decoupled
    assert [entry.data_type for entry in config.input] == [of_models.TYPE_STRING, of_models.TYPE_BOOL]
    assert [entry.optional for entry in config.input] == [False, True]
    assert [(model.name, model.state) for model in client.get_model_repository_index().models] == [("m", "READY")]


def test_outputs_that_are_named(kserve: Any, call: Any, echo: Any) -> None:
    """Others don't come."""
    site = kserve()
    site.worker(echo)
    result = call(site).infer(outputs=[InferRequestedOutput("finish_reason")])
    assert result.as_numpy("text_output") is None
    assert words(result, "finish_reason") == ["length"]


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ({"model": "other"}, "NOT_FOUND", "The model 'other' does not exist"),
        ({"model": "vectors"}, "NOT_FOUND", "is not asked over gRPC: it answers embedding"),
        ({"parameters": {"temperature": 9}}, "INVALID_ARGUMENT", "temperature: "),
        ({"parameters": {"stream": True}}, "INVALID_ARGUMENT", "ask ModelStreamInfer"),
        ({"text": "x" * 5000}, "INVALID_ARGUMENT", "1024"),
        ({"text": "x" * 200_000}, "RESOURCE_EXHAUSTED", "larger than max"),
    ],
)
def test_refusals(kserve: Any, call: Any, echo: Any, options: Any, code: str, says: str) -> None:
    """gRPC's own codes, and sentences that name the field."""
    site = kserve(body_limit_mb=0.1)
    site.worker(echo)
    site.worker(echo, "vectors", path="test.vectors.generate", model_types=["embedding"])
    with pytest.raises(InferenceServerException) as caught:
        call(site).infer(**options)
    assert caught.value.status() == f"StatusCode.{code}"
    assert says in caught.value.message()


def test_no_worker(kserve: Any, call: Any, echo: Any) -> None:
    """UNAVAILABLE, while nobody is there and when the last one has left; the client may try again."""
    site = kserve()
    caller = call(site)
    for _ in range(2):
        with pytest.raises(InferenceServerException) as caught:
            caller.infer()
        assert caught.value.status() == "StatusCode.UNAVAILABLE"
        if not site.workers:
            site.stop_worker(site.worker(echo))


def test_bounds_hold_over_grpc_too(kserve: Any, call: Any, engines: Any, within: Any) -> None:
    """One request more than may be here is RESOURCE_EXHAUSTED."""
    site = kserve(max_concurrent_requests=1)
    engine = engines(delay=0.05)
    site.worker(engine)
    caller = call(site)
    with caller.stream() as stream:
        stream.ask("x" * 100, parameters={"max_tokens": 100})
        stream.next()
        with pytest.raises(InferenceServerException) as caught:
            caller.infer()
        assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
        caller.client.stop_stream(cancel_requests=True)
    within("the engine is free", lambda: engine.cancelled == 1)
