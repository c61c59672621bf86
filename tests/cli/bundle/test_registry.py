"""`dynamo bundle push` and registries with a bad day or bad will; e2e/longer/test_bundle.py has a real one."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import Result

from dynamo.cli.bundle import registry
from dynamo.cli.bundle.errors import BundleError
from dynamo.cli.bundle.push import read_address
from dynamo.cli.bundle.registry_login import Login, find_login, read_challenge

pytestmark = pytest.mark.servers
Run = Callable[..., Result]
Say = tuple[int, dict[str, str], bytes]


class Script:
    """A registry that takes everything but what a test has it answer otherwise, and remembers what it was asked.

    An upload's session can be used once, whatever came of it, as a real one's.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str | None]] = []
        self._sessions = 0
        self._open: set[str] = set()
        self.otherwise: Callable[[str, str, str | None], Say | None] = lambda method, path, login: None
        script = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                login = self.headers.get("Authorization")
                script.asked.append((self.command, self.path, login))
                usual = script.usual(self.command, self.path)
                status, headers, body = script.otherwise(self.command, self.path, login) or usual
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_HEAD = do_GET = do_POST = do_PUT = answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def usual(self, method: str, path: str) -> Say:
        """A registry that has nothing, takes all, and mounts what another repository has."""
        if method == "POST" and "mount=" not in path:
            self._sessions += 1
            self._open.add(session := f"/v2/uploads/{self._sessions}?_state=x%3D%3D")
            return 202, {"Location": session}, b""
        if method == "PUT" and "/uploads/" in path:
            session = path.partition("&digest=")[0]
            known = session in self._open
            self._open.discard(session)
            return (201, {}, b"") if known else (404, {}, b'{"errors": [{"code": "BLOB_UPLOAD_INVALID"}]}')
        return (404 if method == "HEAD" else 201), {}, b""

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Script]:
    monkeypatch.setattr(registry, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    script = Script()
    yield script
    script.close()


def sign_in(tmp_path: Path, host: str, *, auth: str = "dTpw") -> None:
    """Leave what `docker login` leaves for user u with password p."""
    folder = tmp_path / "docker"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))


def pushed(run: Run, made: Path, script: Script) -> Result:
    return run("push", made, f"{script.host}/team", "--plain-http")


def layers(script: Script) -> Counter[str]:
    """How often each blob was sent."""
    sent = [path for method, path, _ in script.asked if method == "PUT" and "/uploads/" in path]
    return Counter(path.partition("digest=")[2] for path in sent)


def test_each_layer_once(made: Path, run: Run, script: Script) -> None:
    """The layer that images share is sent once, and asked for from there by the others; manifests come last."""
    done = pushed(run, made, script)
    assert done.exit_code == 0, done.output
    assert f"global.imageRegistry={script.host}/team" in done.output
    mounts = [path for method, path, _ in script.asked if method == "POST" and "mount=" in path]
    assert len(mounts) == 4
    assert all("from=team%2Fdynamo-pipelines" in path for path in mounts)
    named = [path for method, path, _ in script.asked if method == "PUT" and "/manifests/" in path]
    assert "/v2/team/coreos/etcd/manifests/v3.6.16" in named
    assert len(named) == 7
    assert {*layers(script).values()} == {1}
    states = {path for method, path, _ in script.asked if method == "PUT" and "/uploads/" in path}
    assert all("_state=x%3D%3D&digest=sha256" in path for path in states)


def test_a_registry_that_does_not_mount(made: Path, run: Run, script: Script) -> None:
    """It gets the shared layer for each repository, and what was sent counts that."""

    def answers(method: str, path: str, login: str | None) -> Say | None:
        return script.usual("POST", "") if method == "POST" else None

    script.otherwise = answers
    done = pushed(run, made, script)
    assert done.exit_code == 0, done.output
    assert sorted(layers(script).values())[-1] == 5


def test_what_is_there_is_left(made: Path, run: Run, script: Script) -> None:
    script.otherwise = lambda method, path, login: (200, {}, b"") if method == "HEAD" else None
    done = pushed(run, made, script)
    assert "sent 0 B" in done.output
    assert {method for method, _, _ in script.asked} == {"HEAD", "PUT"}


def test_a_bad_moment(made: Path, run: Run, script: Script) -> None:
    """Each first request fails; the second is served."""
    seen: set[tuple[str, str]] = set()

    def flaky(method: str, path: str, login: str | None) -> Say | None:
        ask = method, path.partition("digest=")[2] or path
        known = ask in seen
        seen.add(ask)
        return None if known else (503, {}, b"")

    script.otherwise = flaky
    done = pushed(run, made, script)
    assert done.exit_code == 0, done.output


def test_a_session_that_broke(made: Path, run: Run, script: Script) -> None:
    """Once its PUT has failed, a new one is begun, and what arrived all the same isn't sent again."""
    arrived = {"one": ""}

    def breaks(method: str, path: str, login: str | None) -> Say | None:
        if method == "PUT" and "/uploads/" in path and not arrived["one"]:
            arrived["one"] = path.partition("digest=")[2].replace("%3A", ":")
            return 503, {}, b""
        return (200, {}, b"") if method == "HEAD" and arrived["one"] and arrived["one"] in path else None

    script.otherwise = breaks
    done = pushed(run, made, script)
    assert done.exit_code == 0, done.output
    assert {*layers(script).values()} == {1}


def test_basic_sign_in(made: Path, run: Run, script: Script, tmp_path: Path) -> None:
    """Nobody signed in: the command that does; then the password is sent, and not printed."""

    def asks(method: str, path: str, login: str | None) -> Say | None:
        return None if login == "Basic dTpw" else (401, {"WWW-Authenticate": 'Basic realm="x"'}, b"")

    script.otherwise = asks
    assert f"docker login {script.host}" in pushed(run, made, script).output
    sign_in(tmp_path, script.host)
    done = pushed(run, made, script)
    assert done.exit_code == 0, done.output
    assert "dTpw" not in done.output


def test_a_token(made: Path, run: Run, script: Script, tmp_path: Path) -> None:
    """The password goes to the realm, its token to the registry, for each repository and where it mounts from."""
    sign_in(tmp_path, script.host)

    def asks(method: str, path: str, login: str | None) -> Say | None:
        if path.startswith("/token"):
            assert login == "Basic dTpw"
            return 200, {}, b'{"token": "t"}'
        challenge = f'Bearer realm="http://{script.host}/token",service="s",scope="repository:x:pull"'
        return None if login == "Bearer t" else (401, {"WWW-Authenticate": challenge}, b"")

    script.otherwise = asks
    assert pushed(run, made, script).exit_code == 0
    scopes = [path for _, path, _ in script.asked if path.startswith("/token")]
    assert "service=s&scope=repository%3Ateam%2Fcoreos%2Fetcd%3Apull%2Cpush" in "".join(scopes)


def test_a_realm_without_tls_gets_no_password(script: Script, tmp_path: Path) -> None:
    there = registry.Registry(registry.Address("registry.example.com", ""), Login("u", "p"))
    with there, pytest.raises(BundleError, match="without TLS: nothing is sent"):
        there._token(f"http://{script.host}/token", "", registry._Ask("GET", httpx2.URL("http://x"), "a"))
    assert script.asked == []


def test_a_store_beside_the_registry_gets_no_password(made: Path, run: Run, script: Script, tmp_path: Path) -> None:
    """Uploads may lead to another host; what signs in stays here."""
    sign_in(tmp_path, script.host)
    store = Script()

    def asks(method: str, path: str, login: str | None) -> Say | None:
        if login is None:
            return 401, {"WWW-Authenticate": 'Basic realm="x"'}, b""
        return (202, {"Location": f"http://{store.host}/put"}, b"") if method == "POST" else None

    script.otherwise = asks
    store.otherwise = lambda method, path, login: (201, {}, b"")
    try:
        assert pushed(run, made, script).exit_code == 0
        challenge = {"WWW-Authenticate": f'Bearer realm="http://{store.host}/token"'}
        store.otherwise = lambda method, path, login: (401, challenge, b"")
        assert pushed(run, made, script).exit_code == 1
        assert {method for method, _, _ in store.asked} == {"PUT"}
        assert {login for _, _, login in store.asked} == {None}
    finally:
        store.close()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((403, {}, b""), "ask for the right to push"),
        ((400, {}, b'{"errors": [{"code": "NAME_INVALID", "message": "no"}]}'), "400 to POST: NAME_INVALID no"),
        ((404, {}, b"<html>a proxy"), "404 to POST: <html>a proxy"),
        ((500, {}, b'{"errors": []}'), "500 to POST"),
        ((200, {}, b""), "200 to POST: nothing more"),
        ((418, {}, b"x" * (2 << 20)), "418 to POST: xxx"),
        ((401, {"WWW-Authenticate": "Bearer"}, b""), "docker login"),
        ((401, {"WWW-Authenticate": 'Bearer realm="http://[::1"'}, b""), "which is no address"),
        ((202, {"Location": "http://[::1"}, b""), "which is no address"),
        ((202, {"Location": "file:///etc/passwd"}, b""), "without TLS: nothing is sent there"),
        ((404, {}, b'{"errors": [{"code": "\x1b]0;x", "message": "\x07"}]}'), "404 to POST"),
        ((401, {"WWW-Authenticate": 'Bearer realm="ftp://a/"'}, b""), "without TLS"),
    ],
)
def test_refusals(made: Path, run: Run, script: Script, answer: Say, said: str) -> None:
    """What it said, cut, and what to do."""
    script.otherwise = lambda method, path, login: answer if method == "POST" else None
    done = pushed(run, made, script)
    assert (done.exit_code, said in done.output) == (1, True), done.output
    assert len(done.output) < 2000
    assert done.output.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "token", [b"", b"[]", b'{"token": 1}', b'{"token": "\xc3\xa9"}', b'{"token": "a\\nb"}', b'{"a":' * 50_000]
)
def test_a_realm_that_gives_none(made: Path, run: Run, script: Script, token: bytes) -> None:
    challenge = {"WWW-Authenticate": f'Bearer realm="http://{script.host}/token"'}
    script.otherwise = lambda method, path, login: (200, {}, token) if "/token" in path else (401, challenge, b"")
    assert "gives no token" in pushed(run, made, script).output


def test_nobody_there(made: Path, run: Run, script: Script) -> None:
    """Refused, or TLS where there is none."""
    assert "--plain-http" in run("push", made, script.host).output
    script.close()
    assert "can't be reached" in pushed(run, made, script).output


@pytest.mark.parametrize("text", ["", "https://a", "a b", "a/B", "a/../b", "-a", "a:b", "user@a", "a/b:c"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(BundleError):
        read_address(text)


@pytest.mark.parametrize("text", ["a", "localhost:5000", "a.b/c/d", "[::1]:5000/x"])
def test_addresses(text: str) -> None:
    assert str(read_address(text)) == text


def test_challenges() -> None:
    assert read_challenge('Bearer realm="https://a/t",service="s",scope="x"') == ("bearer", "https://a/t", "s", "x")
    assert read_challenge("") == ("", "", "", "")
    assert read_challenge("Basic").scheme == "basic"
    assert read_challenge('Negotiate, Basic realm="x"').scheme == "basic"
    assert read_challenge("Bearer realm=https://a/t, service=s") == ("bearer", "https://a/t", "s", "")
    assert read_challenge("Digest qop=auth").scheme == ""


def logins(tmp_path: Path, config: Any, host: str = "h:5000", path: str = "") -> Login | None:
    (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return find_login(host, path, {"DOCKER_CONFIG": str(tmp_path), "HOME": str(tmp_path)})


def test_logins(tmp_path: Path) -> None:
    """docker's and podman's files, Docker Hub's old name, and what can't be used."""
    assert find_login("h", "", {"HOME": str(tmp_path)}) is None
    assert logins(tmp_path, {"auths": {"h:5000": {"auth": "dTpw"}}}) == Login("u", "p")
    assert logins(tmp_path, {"auths": {"https://h:5000": {"auth": "dTpw"}}}) == Login("u", "p")
    hub = {"auths": {"https://index.docker.io/v1/": {"auth": "dTpw"}}}
    assert logins(tmp_path, hub, "docker.io") == Login("u", "p")
    assert logins(tmp_path, hub) is None
    broken: list[Any] = [[], {"auths": []}, *({"auths": {"h:5000": {"auth": text}}} for text in ("?", "dQ=="))]
    for nothing in broken:
        assert logins(tmp_path, nothing) is None
    podman = tmp_path / "containers/auth.json"
    podman.parent.mkdir()
    podman.write_text('{"auths": {"h": {"auth": "dTpw"}}}')
    assert find_login("h", "", {"HOME": "/nowhere", "XDG_RUNTIME_DIR": str(tmp_path)}) == Login("u", "p")
    scoped = {"auths": {"h:5000": {"auth": "dTpw"}, "h:5000/team": {"auth": "dDpx"}}}
    assert logins(tmp_path, scoped, path="team/a") == Login("t", "q")
    assert logins(tmp_path, scoped, path="teams") == Login("u", "p")
    with pytest.raises(BundleError, match="identity token"):
        logins(tmp_path, {"auths": {"h:5000": {"auth": "dTpw", "identitytoken": "x"}}})
    with pytest.raises(BundleError, match="can't be read as docker's settings"):
        logins(tmp_path, "{")


def test_helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docker's programs for keychains; one that fails, or isn't there, is named."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    program = tmp_path / "docker-credential-fake"
    settings = {"credHelpers": {"h:5000": "fake"}}
    with pytest.raises(BundleError, match="docker-credential-fake, which docker's settings name"):
        logins(tmp_path, settings)
    for script, login in {
        'read host; echo "{\\"Username\\": \\"$host\\", \\"Secret\\": \\"p\\"}"': Login("h:5000", "p"),
        "echo credentials not found in native keychain; exit 1": None,
    }.items():
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        assert logins(tmp_path, settings) == login
    program.write_text("#!/bin/sh\necho locked; exit 1\n")
    with pytest.raises(BundleError, match="docker-credential-fake"):
        logins(tmp_path, settings)
    assert logins(tmp_path, {"credsStore": "../../bin/sh"}) is None


def test_certificates_that_are_none(made: Path, run: Run, script: Script, tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("no certificate")
    assert "can't be read as certificates" in run("push", made, script.host, "--ca-file", tmp_path / "ca").output
