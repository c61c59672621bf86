"""How calls end: clients that leave, time limits, engines that fail, frontends that leave, ports and certificates."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
import trustme
from tests.frontend.conftest import Loud
from tests.frontend.kserve.conftest import words
from tritonclient.utils import InferenceServerException

from dynamo.frontend.kserve.inference_pb2 import ModelInferRequest
from dynamo.frontend.settings import FrontendSettings, problem
from dynamo.runtime.errors import EngineError, InvalidArgument
from dynamo.runtime.request_plane.server import Incoming


def test_a_client_that_leaves_frees_the_engine(kserve: Any, call: Any, engines: Any, within: Any) -> None:
    """Cancelled in mid-answer, or in mid-stream: the engine's slot is free, and nothing is counted as running."""
    site = kserve()
    engine = engines(delay=0.05)
    site.worker(engine)
    caller = call(site)
    with caller.stream() as stream:
        stream.ask("x" * 200, parameters={"max_tokens": 200})
        stream.next()
        caller.client.stop_stream(cancel_requests=True)
    within("the engine is free", lambda: (engine.cancelled, engine.running) == (1, 0))
    within("nothing runs", lambda: site.metric("inflight_requests") == 0)


def test_a_client_that_does_not_read_is_cut_off(kserve: Any, within: Any) -> None:
    """After --write-timeout-secs, or a megabyte: the engine is freed, others aren't held back."""
    site = kserve(write_timeout_secs=1.0)
    engine = Loud()
    site.worker(engine, context_length=1 << 28)
    request = ModelInferRequest(model_name="m")
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1], contents={"bytes_contents": [b"x" * 1000]})
    request.inputs.add(name="streaming", datatype="BOOL", shape=[1], contents={"bool_contents": [True]})
    request.parameters["max_tokens"].int64_param = 100_000_000
    with grpc.insecure_channel(site.grpc) as channel:
        method = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        answers = method(iter([request.SerializeToString()]))
        within("the engine is free", lambda: (engine.cancelled, engine.running) == (1, 0), 30)
        with pytest.raises(grpc.RpcError) as caught:
            for _ in answers:
                pass
    assert caught.value.code() is grpc.StatusCode.ABORTED


def test_deadlines(kserve: Any, call: Any, engines: Any, within: Any) -> None:
    """The call's own, and the parameter of Triton's client; the worker learns of both."""
    site = kserve()
    engine = engines(delay=0.05)
    site.worker(engine)
    caller = call(site)
    limits: list[dict[str, Any]] = [{"client_timeout": 0.5}, {"timeout": 500_000}]
    for count, limit in enumerate(limits, 1):
        with pytest.raises(InferenceServerException) as caught:
            caller.infer("x" * 200, parameters={"max_tokens": 200}, **limit)
        assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
        within("the engine is free", lambda wanted=count: (engine.cancelled, engine.running) == (wanted, 0))


def test_an_engine_that_fails_in_mid_answer(kserve: Any, call: Any, engines: Any) -> None:
    """In a stream a message says so, and the stream goes on; a whole answer is INTERNAL."""

    class Failing(engines):  # type: ignore[misc]
        async def speak(self, incoming: Incoming, payload: dict[str, Any]) -> None:
            if len(payload["token_ids"]) != 4:
                await super().speak(incoming, payload)
                return
            incoming.send(self.say(payload, 65, None))
            await asyncio.sleep(0.05)
            incoming.fail(EngineError("the engine broke"))

    site = kserve()
    site.worker(Failing())
    caller = call(site)
    with caller.stream() as stream:
        stream.ask("fail", request_id="1")
        assert words(stream.next()) == ["A"]
        assert "the engine broke" in str(stream.next())
        stream.ask("hello", request_id="2", parameters={"max_tokens": 5})
        assert "".join(words(one)[0] for one in stream.answer()) == "hello"
    with pytest.raises(InferenceServerException) as caught:
        caller.infer("fail")
    assert caught.value.status() == "StatusCode.INTERNAL"


def test_a_refusal_ends_its_stream(kserve: Any, call: Any, engines: Any) -> None:
    """With its status, once what was begun is answered; one that can't be read lets nothing behind it begin."""
    site = kserve()
    engine = engines(delay=0.01)
    site.worker(engine)
    for wrong, code in (({"model": "other"}, "NOT_FOUND"), ({"parameters": {"stream": "maybe"}}, "INVALID_ARGUMENT")):
        with call(site).stream() as stream:
            stream.ask("hello", request_id="1", parameters={"max_tokens": 5})
            stream.ask("hello", request_id="2", **wrong)
            came = [stream.next()]
            while not isinstance(came[-1], Exception):
                came.append(stream.next())
        error = came.pop()
        assert "".join(words(one)[0] for one in came) == "hello"
        assert (type(error), error.status()) == (InferenceServerException, f"StatusCode.{code}")
    assert len(engine.seen) == 2


def test_a_frontend_that_leaves(kserve: Any, call: Any, engines: Any, within: Any) -> None:
    """What runs ends well, a stream that waits is told to go elsewhere, and new calls find nobody."""
    site = kserve(graceful_shutdown_timeout_secs=10.0)
    engine = engines(delay=0.05)
    site.worker(engine)
    caller, idle = call(site), call(site)
    with idle.stream() as waiting, caller.stream() as stream:
        waiting.ask("hello", parameters={"max_tokens": 5})
        waiting.answer()
        stream.ask("x" * 30, parameters={"max_tokens": 30})
        stream.next()
        site.call(site.leaving.signal)
        assert len("".join(words(one)[0] for one in stream.answer())) == 29
        error = waiting.next()
    assert error.status() == "StatusCode.UNAVAILABLE"
    with pytest.raises(InferenceServerException) as caught:
        call(site).infer()
    assert caught.value.status() == "StatusCode.UNAVAILABLE"


def test_a_port_that_is_taken(kserve: Any) -> None:
    """The sentence names the flag; a second server doesn't get a share of the port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidArgument, match="choose another --http-port"):
            kserve(http_port=port)
        with pytest.raises(InvalidArgument, match="choose another --grpc-metrics-port"):
            kserve(grpc_metrics_port=port)
    first = kserve()
    with pytest.raises(InvalidArgument, match="another process listens there"):
        kserve(http_port=int(first.grpc.rpartition(":")[2]))


def test_settings_that_can_not_be() -> None:
    """One sentence each."""
    for settings, says in (
        ({"grpc_metrics_port": 8000}, "gRPC's own port"),
        ({"workers": 2}, "one process"),
        ({"grpc_metrics_port": 70000}, "--grpc-metrics-port must be between"),
    ):
        assert says in str(problem(FrontendSettings(kserve_grpc_server=True, **settings)))  # type: ignore[arg-type]
    assert problem(FrontendSettings(kserve_grpc_server=True)) is None


def test_certificates(kserve: Any, call: Any, echo: Any, tmp_path: Path) -> None:
    """The flags of HTTPS hold for gRPC: only who trusts us gets through, and only whom we trust."""
    authority = trustme.CA()
    mine, client = authority.issue_cert("127.0.0.1", "localhost"), authority.issue_cert("someone@example.org")
    paths = {name: str(tmp_path / f"{name}.pem") for name in ("cert", "key", "ca", "client", "client_key")}
    mine.cert_chain_pems[0].write_to_path(paths["cert"])
    mine.private_key_pem.write_to_path(paths["key"])
    authority.cert_pem.write_to_path(paths["ca"])
    client.cert_chain_pems[0].write_to_path(paths["client"])
    client.private_key_pem.write_to_path(paths["client_key"])
    site = kserve(
        tls_cert_path=paths["cert"], tls_key_path=paths["key"], tls_client_ca_cert_path=paths["ca"],
    )  # fmt: skip
    site.worker(echo, wait=False)
    known = call(
        site, ssl=True, root_certificates=paths["ca"], private_key=paths["client_key"],
        certificate_chain=paths["client"],
    )  # fmt: skip
    assert known.client.is_server_live()
    for options in ({}, {"ssl": True, "root_certificates": paths["ca"]}):
        with pytest.raises(InferenceServerException) as caught:
            call(site, **options).client.is_server_live()
        assert caught.value.status() == "StatusCode.UNAVAILABLE"
