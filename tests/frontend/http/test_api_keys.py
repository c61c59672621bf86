"""API keys: how a file is read and read again, what is asked for one, and that no key is seen anywhere else."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.fixtures_etcd import free_ports
from tests.waiting import eventually

from dynamo.frontend.http import api_keys
from dynamo.frontend.http.api_keys import ApiKeys, entries_in, keys_of, tenant_of
from dynamo.frontend.kserve import inference_pb2 as messages
from dynamo.frontend.limits.tenant_usage import MOST_SERIES, TenantUsage
from dynamo.runtime.errors import InvalidArgument

ASKED: dict[str, Any] = {"model": "m", "prompt": "hello", "max_tokens": 2}
KEY, OTHER = "sk-first-0123456789", "sk-second-987654321"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of two keys, as a mounted Secret shows it: behind two links, of which one is swapped."""
    for name, text in (("..1", f"# of team a\n{KEY}\r\n\n  {OTHER}  \n"), ("..2", f"{OTHER}\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "keys").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "keys").symlink_to("..data/keys")
    return tmp_path / "keys"


def swap(file: Path, name: str) -> None:
    """As the kubelet does it."""
    fresh = file.parent / "..fresh"
    fresh.symlink_to(name)
    os.rename(fresh, file.parent / "..data")


class Clock:
    """A clock that tests put forward."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def bearer(key: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", b"Bearer " + key.encode())]


def test_the_keys_of_a_file() -> None:
    """One a line; comments, blanks and line ends of any system aren't keys; a tenant's name may follow."""
    entries = entries_in(b"# no\n\na\r\n  b \n#c\nd#e\nf\ttenant=team.a-1\n")
    assert entries == [(b"a", b""), (b"b", b""), (b"d#e", b""), (b"f", b"team.a-1")]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n \n",
        b"# a\n",
        b"a b\n",
        b"a\tb",
        b"\xff\xfe",
        b"k" * 513,
        b"a\x00b",
        b"\n".join([b"k"] * 10_001),
        b"a tenant=",
        b"a tenant=b tenant=c",
        b"a tenant=b c",
        b"tenant=b a",
        b"a tenant=-b",
        b"a tenant=" + b"b" * 64,
        b"a Tenant=b",
        b'a tenant="',
        b"a tenant=\xc3\xa4",
        b"tenant=b",
        b"a tenant=other",
        b"a tenant=b\na tenant=c",
        b"a tenant=b\na",
    ],
)
def test_a_file_that_cannot_be_meant(text: bytes) -> None:
    """It is refused, and what is said of it shows no key."""
    with pytest.raises(InvalidArgument) as said:
        entries_in(text)
    assert len(said.value.message) < 200
    assert "a b" not in said.value.message


def test_how_a_key_is_shown() -> None:
    """By either header, in any case of `Bearer`; a few of them are looked at."""
    fields = [(b"authorization", b"bearer  a "), (b"x-api-key", b" b"), (b"authorization", b"Basic c"), (b"x", b"d")]
    assert keys_of(fields) == [b"a", b"b"]
    assert len(keys_of([(b"x-api-key", b"k")] * 100)) == 4
    assert keys_of([(b"authorization", b"Bearer"), (b"x-api-key", b"")]) == []


def test_keys_are_read_again(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A swapped Secret counts a second later; a file that is gone or empty changes nothing, and is said once."""
    clock = Clock()
    keys = ApiKeys(str(file), clock)
    assert keys.caller(bearer(KEY)) is not None
    assert keys.caller(bearer(KEY)) != keys.caller(bearer(OTHER)) is not None
    assert keys.caller(bearer("no")) is None
    swap(file, "..2")
    assert keys.caller(bearer(KEY)) is not None
    clock.now += 1
    assert keys.caller(bearer(KEY)) is None
    assert keys.caller(bearer(OTHER)) is not None
    for broken in ("", "a b\n"):
        (file.parent / "..2" / "keys").write_text(broken)
        for _ in range(3):
            clock.now += 1
            assert keys.caller(bearer(OTHER)) is not None
    file.unlink()
    clock.now += 1
    assert keys.caller(bearer(OTHER)) is not None
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(said) == 3
    assert not any(key in text for text in (*said, repr(vars(keys))) for key in (KEY, OTHER))


def test_a_tenant_is_one_caller(tmp_path: Path) -> None:
    """By all of its keys, of which none is the name of another caller's."""
    file = tmp_path / "keys"
    file.write_text(f"{KEY} tenant=team-a\n{OTHER} tenant=team-a\ntenant-team-a\n")
    keys = ApiKeys(str(file))
    first, second, unnamed = (keys.caller(bearer(key)) for key in (KEY, OTHER, "tenant-team-a"))
    assert first == second == b"\0tenant-team-a"
    assert unnamed is not None
    assert [tenant_of(caller) for caller in (first, unnamed)] == ["team-a", ""]


def test_no_client_can_take_a_callers_name(make_site: Any, tmp_path: Path) -> None:
    """A frontend without keys takes what `authorization` says, and would find a tenant's responses by its name."""
    site = make_site()
    for name in (b"tenant-team-a", b"key-0"):
        head = b"GET /live HTTP/1.1\r\nhost: x\r\nauthorization: \0" + name + b"\r\nconnection: close\r\n\r\n"
        with site.socket() as sock:
            sock.sendall(head)
            assert sock.recv(100).startswith(b"HTTP/1.1 400")
    (tmp_path / "keys").write_text(f"{KEY} tenant=a\n{OTHER}\n")
    keys = ApiKeys(str(tmp_path / "keys"))
    for key in (KEY, OTHER):
        assert (keys.caller(bearer(key)) or b"").startswith(b"\0")


def test_a_name_is_derived_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes milliseconds, on the event loop: not again when the file changes."""
    made: list[bytes] = []
    real = api_keys._name_of

    def counted(key: bytes) -> bytes:
        made.append(key)
        return real(key)

    monkeypatch.setattr(api_keys, "_name_of", counted)
    file, clock = tmp_path / "keys", Clock()
    file.write_text(f"{KEY}\n")
    keys = ApiKeys(str(file), clock)
    for text in (f"{KEY}\n{OTHER}\n", f"{OTHER}\n# of nobody else\n", f"{KEY} tenant=a\n{OTHER}\n"):
        before = keys.caller(bearer(KEY))
        file.write_text(text)
        clock.now += 1
        keys.caller(bearer(OTHER))
    assert before is None
    assert keys.caller(bearer(KEY)) == b"\0tenant-a"
    assert made == [KEY.encode(), OTHER.encode()]


def test_a_key_has_one_name_everywhere(file: Path) -> None:
    """Processes find each other's stored responses by it; it shows nothing of the key, and no two share one."""
    names = {key: {ApiKeys(str(file)).caller(bearer(key)) for _ in range(2)} for key in (KEY, OTHER)}
    first, second = (name or b"" for of_key in names.values() for name in of_key)
    assert first != second
    assert not any(key.encode() in name for name in (first, second) for key in (KEY, OTHER))


def test_what_tenants_use(make_site: Any, echo: Any, tmp_path: Path) -> None:
    """Counted by their names for who runs the frontend; no tenant sees another's, and no key is anywhere."""
    (tmp_path / "keys").write_text(f"{KEY} tenant=team-a\n{OTHER}\n")
    (port,) = free_ports(1)
    site = make_site(api_keys_file=str(tmp_path / "keys"), system_port=port)
    site.worker(echo, wait=False)
    listed: dict[str, Any] = {"url": f"{site.url}/v1/models", "headers": {"x-api-key": KEY}}
    eventually("the model is served", lambda: httpx.get(**listed).json()["data"])
    for key in (KEY, OTHER):
        answer = httpx.post(f"{site.url}/v1/completions", json=ASKED, headers={"authorization": f"Bearer {key}"})
        assert answer.status_code == 200, answer.text
    httpx.post(f"{site.url}/v1/completions", json={**ASKED, "max_tokens": -1}, headers={"x-api-key": KEY})
    used, text = answer.json()["usage"], httpx.get(f"http://127.0.0.1:{port}/metrics").text
    lines = {line for line in text.splitlines() if line.startswith("dynamo_frontend_tenant_")}
    requests, tokens = "dynamo_frontend_tenant_requests_total", "dynamo_frontend_tenant_tokens_total"
    assert lines >= {
        f'{tokens}{{tenant="team-a",model="m",type="prompt"}} {used["prompt_tokens"]}',
        f'{tokens}{{tenant="team-a",model="m",type="output"}} 2',
        f'{requests}{{tenant="team-a",model="m",status="success"}} 1',
        f'{requests}{{tenant="team-a",model="m",status="error"}} 1',
    }
    assert all('tenant="team-a"' in line for line in lines)
    assert not any(key in text for key in (KEY, OTHER))


def test_tenants_beyond_the_bound_are_one() -> None:
    """However many names a file has, the metrics stay short."""
    usage = TenantUsage()
    for number in range(MOST_SERIES + 50):
        usage.ended(f"\0tenant-{number}".encode(), 'a "model"\\', failed=False, tokens=(1, 1, 0))
    text = usage.text().decode()
    read = {family.name: family.samples for family in text_string_to_metric_families(text)}
    assert {len(samples) for samples in read.values()} == {2 * (MOST_SERIES + 1), 3 * (MOST_SERIES + 1)}
    assert read["dynamo_frontend_tenant_requests"][0].labels["model"] == 'a "model"\\'
    assert 'dynamo_frontend_tenant_requests_total{tenant="other",model="other",status="success"} 50\n' in text
    assert text.count("\n") < 5 * (MOST_SERIES + 1) + 10


def test_a_file_that_is_not_there(make_site: Any, tmp_path: Path) -> None:
    """A frontend doesn't start without the keys that it was told to ask for."""
    (tmp_path / "empty").write_text("# none yet\n")
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("missing", "can't be read"), ("empty", "no key"), (".", "no file"), ("pipe", "no file")):
        with pytest.raises(InvalidArgument, match=f"--api-keys-file.*{why}"):
            make_site(api_keys_file=str(tmp_path / name))


ROUTES = [
    ("POST", "/v1/chat/completions"), ("POST", "/v1/completions"), ("POST", "/v1/embeddings"), ("GET", "/v1/models"),
    ("GET", "/v1/models/m"), ("POST", "/tokenize"), ("POST", "/detokenize"), ("GET", "/metrics"), ("GET", "/version"),
    ("GET", "/openapi.json"), ("GET", "/docs"), ("GET", "/busy_threshold"), ("POST", "/busy_threshold"),
    ("DELETE", "/busy_threshold/m"), ("GET", "/nowhere"), ("OPTIONS", "/v1/models"), ("POST", "/live"),
    ("HEAD", "/v1/models"), ("GET", "/"), ("POST", "/v1/rerank"), ("POST", "/v1/score"), ("GET", "/tokenizer_info"),
]  # fmt: skip


def test_everything_asks_for_a_key(make_site: Any, file: Path) -> None:
    """Without one, or with a wrong one: 401 in OpenAI's form, which repeats nothing; with one it is another answer."""
    site = make_site(api_keys_file=str(file))
    wrong: tuple[dict[str, str], ...] = (
        {},
        {"authorization": "Bearer sk-wrong"},
        {"x-api-key": KEY + "x"},
        {"authorization": KEY},
    )
    with httpx.Client(base_url=site.url) as client:
        for method, path in ROUTES:
            for headers in wrong:
                answer = client.request(method, path, headers=headers)
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), path
                if method != "HEAD":
                    error = answer.json()["error"]
                    assert (error["code"], error["type"]) == ("invalid_api_key", "invalid_request_error")
                    assert "sk-" not in answer.text
            for headers in ({"authorization": f"Bearer {KEY}"}, {"x-api-key": OTHER}):
                assert client.request(method, path, headers=headers).status_code != 401, path
        figures = client.get("/metrics", headers={"x-api-key": KEY}).text
    assert f'rejected_requests_total{{model="",reason="invalid_api_key"}} {len(ROUTES) * len(wrong)}.0' in figures


def test_probes_ask_for_none(make_site: Any, file: Path) -> None:
    """`/live` and a word of `/health` are for everybody; the details of it for who shows a key."""
    site = make_site(api_keys_file=str(file))
    assert httpx.get(f"{site.url}/live").status_code == 200
    plain = httpx.get(f"{site.url}/health")
    assert (plain.status_code, set(plain.json())) == (200, {"status", "message"})
    whole = httpx.get(f"{site.url}/health", headers={"x-api-key": KEY}).json()
    assert {"instances", "models", "endpoints"} <= set(whole)


def test_nobody_without_a_key_has_a_body_read(make_site: Any, file: Path) -> None:
    """The 401 comes with the head of the request, and the client that sends on can read it."""
    site = make_site(api_keys_file=str(file))
    with site.socket() as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 4000000\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 401 ")


def test_openai_s_client_works_with_a_key(
    make_site: Any, file: Path, engines: Any, within: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """With its key it is answered, streamed and listed to; with another one it raises its own error."""
    caplog.set_level(logging.DEBUG)
    site = make_site(api_keys_file=str(file))
    engine = engines()
    site.worker(engine, wait=False)
    client = openai.OpenAI(base_url=f"{site.url}/v1", api_key=KEY, max_retries=0, timeout=20)
    within("the model is there", lambda: [entry.id for entry in client.models.list()] == ["m"])
    assert client.completions.create(**ASKED).usage.completion_tokens == 2
    assert len(list(client.completions.create(**ASKED, stream=True))) >= 1
    with pytest.raises(openai.AuthenticationError) as said:
        openai.OpenAI(base_url=f"{site.url}/v1", api_key="sk-no", max_retries=0).models.list()
    assert said.value.code == "invalid_api_key"
    assert not any(KEY in record.getMessage() for record in caplog.records)
    assert KEY not in json.dumps(engine.seen, default=str)


def test_the_key_is_the_caller(make_site: Any, file: Path, engines: Any, within: Any) -> None:
    """A bound per caller counts the key that was checked, whatever tenant or second key a client makes up."""
    site = make_site(api_keys_file=str(file), max_requests_per_client=1)
    engine = engines(delay=0.05)
    site.worker(engine, wait=False)
    mine = {"authorization": f"Bearer {KEY}"}
    within("it serves", lambda: site.post("/v1/completions", ASKED, headers=mine).status_code == 200)
    long = {**ASKED, "max_tokens": 500, "stream": True}
    with httpx.stream("POST", f"{site.url}/v1/completions", json=long, headers=mine | {"x-tenant-id": "a"}):
        for made_up in ({"x-tenant-id": "b"}, {"x-api-key": "other"}, {}):
            assert site.post("/v1/completions", ASKED, headers=mine | made_up).status_code == 429
        assert site.post("/v1/completions", ASKED, headers={"x-api-key": OTHER}).status_code == 200


def test_a_browser_may_ask_before_it_shows_its_key(make_site: Any, file: Path) -> None:
    """A preflight carries no key: it is answered, and a 401 can be read by the page."""
    site = make_site(api_keys_file=str(file), cors_origin=["https://app.example"])
    asks = {"origin": "https://app.example", "access-control-request-method": "POST"}
    assert httpx.options(f"{site.url}/v1/completions", headers=asks).status_code == 204
    refused = httpx.post(f"{site.url}/v1/completions", json=ASKED, headers={"origin": "https://app.example"})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://app.example"


def test_grpc_asks_for_the_same_keys(make_site: Any, file: Path, engines: Any, within: Any) -> None:
    """Every method but ServerLive, before its message is read."""
    site = make_site(api_keys_file=str(file), kserve_grpc_server=True, grpc_metrics_port=0)
    with grpc.insecure_channel(site.grpc) as channel:

        def ask(method: str, **metadata: str) -> Any:
            path = f"/inference.GRPCInferenceService/{method}"
            request, response = (getattr(messages, f"{method}{kind}") for kind in ("Request", "Response"))
            call = channel.unary_unary(path, request.SerializeToString, response.FromString)
            named = [(name.replace("_", "-"), value) for name, value in metadata.items()]
            return call(request(), metadata=named, timeout=10)

        assert ask("ServerLive").live
        for method in ("ServerReady", "ServerMetadata", "ModelInfer", "RepositoryIndex"):
            for metadata in ({}, {"authorization": "Bearer no"}):
                with pytest.raises(grpc.RpcError) as said:
                    ask(method, **metadata)
                assert said.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert ask("ServerReady", authorization=f"Bearer {KEY}").ready
        assert ask("ServerReady", x_api_key=OTHER).ready
