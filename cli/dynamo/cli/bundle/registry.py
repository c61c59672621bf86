"""A registry that images are pushed to, by the OCI distribution specification 1.1.

Of our own, since oras, the library for it, takes files only and reads a layer whole into memory; ours lie in a bundle.
"""

from __future__ import annotations

import itertools
import json
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from types import MappingProxyType, TracebackType
from typing import Any, Final, NamedTuple, TypeVar

import httpx2

from dynamo.cli.bundle.errors import BundleError
from dynamo.cli.bundle.layout import MANIFEST_TYPE, Blob
from dynamo.cli.bundle.registry_login import Login, read_challenge

_TRIES: Final = 3
_PAUSE_SECONDS: Final = 1.0
_TIMEOUT: Final = httpx2.Timeout(60.0, connect=10.0)
_LAYER_TIMEOUT: Final = httpx2.Timeout(600.0, connect=10.0)
"""A registry may take minutes to put a large layer where it belongs, once it has all of it."""
_ANSWER_SECONDS: Final = 60.0
_MOST_SAID: Final = 1 << 20
_THERE: Final = (HTTPStatus.OK, HTTPStatus.FOUND, HTTPStatus.TEMPORARY_REDIRECT)
"""Some registries send who asks for a blob to a store beside them."""
_FORGOTTEN: Final = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
"""How a registry says that it knows nothing of an upload's session any more."""
Value = TypeVar("Value")
Content = Callable[[], Iterable[bytes]]


class Answer(NamedTuple):
    """What a registry said to one request; at most `_MOST_SAID` bytes of it."""

    status: int
    headers: httpx2.Headers
    body: bytes
    url: httpx2.URL
    method: str

    def json(self) -> Any:
        """Return what it says as JSON. ValueError where it doesn't."""
        try:
            return json.loads(self.body)
        except RecursionError as error:
            raise ValueError(str(error)) from None


class Address(NamedTuple):
    """Where images go: `host[:port]` and the path below it."""

    host: str
    path: str

    def repository(self, name: str) -> str:
        """Return the repository of an image there."""
        return f"{self.path}/{name}" if self.path else name

    def __str__(self) -> str:
        """Return it as `global.imageRegistry` has it."""
        return f"{self.host}/{self.path}" if self.path else self.host


class Registry:
    """A registry at an address. BundleError says what it refuses, and what to do."""

    def __init__(
        self, address: Address, login: Login | None, *, plain_http: bool = False, ca_file: str | None = None
    ) -> None:
        self._base = httpx2.URL(f"{'http' if plain_http else 'https'}://{address.host}")
        self._plain = plain_http
        self._login = login
        self._host = address.host
        self._tokens: dict[str, str] = {}
        try:
            verify = ssl.create_default_context(cafile=ca_file) if ca_file else True
        except (OSError, ssl.SSLError) as error:
            raise BundleError(f"{ca_file} can't be read as certificates: {error}. Give a file in PEM form") from None
        self._client = httpx2.Client(timeout=_TIMEOUT, verify=verify, follow_redirects=False)

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()

    def has(self, repository: str, blob: Blob) -> bool:
        """Tell whether a repository has a blob."""
        answer = _tried(partial(self._once, _Ask("HEAD", self._url(repository, f"blobs/{blob.digest}"), repository)))
        return self._expect(answer, *_THERE, HTTPStatus.NOT_FOUND).status in _THERE

    def upload(self, repository: str, blob: Blob, content: Content, known_in: str = "") -> bool:
        """Give a repository a blob, or let it take it from another one that has it; tell whether it was sent.

        A session that broke can't be used again, so another try begins from the start.
        """
        tries = itertools.count()

        def once() -> bool:
            arrived = next(tries) > 0 and self.has(repository, blob)
            return arrived or self._upload(repository, blob, content, known_in)

        return _tried(once)

    def name(self, repository: str, tag: str, manifest: bytes) -> None:
        """Give an image its name; all that it lists must be there."""
        url = self._url(repository, f"manifests/{tag}")
        headers = {"Content-Type": MANIFEST_TYPE, "Content-Length": str(len(manifest))}
        ask = _Ask("PUT", url, repository, lambda: [manifest], headers)
        self._expect(_tried(partial(self._once, ask)), HTTPStatus.CREATED)

    def _upload(self, repository: str, blob: Blob, content: Content, known_in: str) -> bool:
        url = self._url(repository, "blobs/uploads/")
        if known_in:
            url = url.copy_merge_params({"mount": blob.digest, "from": known_in})
        begun = self._expect(
            self._once(_Ask("POST", url, repository, more=known_in)), HTTPStatus.ACCEPTED, HTTPStatus.CREATED
        )
        if begun.status == HTTPStatus.CREATED:
            return False
        place = self._read_url(str(begun.url), begun.headers.get("location", ""))
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(blob.size)}
        ask = _Ask("PUT", place.copy_merge_params({"digest": blob.digest}), repository, content, headers)
        answer = self._once(ask)
        if answer.status in _FORGOTTEN:
            raise _TryAgainError(self._refusal(answer))
        self._expect(answer, HTTPStatus.CREATED)
        return True

    def _url(self, repository: str, rest: str) -> httpx2.URL:
        return self._base.join(f"/v2/{repository}/{rest}")

    def _read_url(self, base: str, text: str) -> httpx2.URL:
        """Return an address that the registry names."""
        try:
            return httpx2.URL(base).join(text)
        except (httpx2.InvalidURL, ValueError):
            raise BundleError(f"{self._host} names {text[:200]!r}, which is no address: ask who runs it") from None

    def _once(self, ask: _Ask) -> Answer:
        """Ask, and sign in where the registry wants that. _TryAgainError where it may be otherwise in a moment."""
        answer = self._signed(ask)
        if answer.status == HTTPStatus.UNAUTHORIZED and self._is_home(answer.url) and self._sign_in(answer, ask):
            answer = self._signed(ask)
        if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR or answer.status == HTTPStatus.TOO_MANY_REQUESTS:
            raise _TryAgainError(self._refusal(answer))
        return answer

    def _is_home(self, url: httpx2.URL) -> bool:
        base = self._base
        return (url.scheme, url.host, url.port) == (base.scheme, base.host, base.port)

    def _signed(self, ask: _Ask) -> Answer:
        """Ask with what signs in, which a store beside the registry doesn't get."""
        if ask.url.scheme not in ("http", "https") or (ask.url.scheme == "http" and not self._plain):
            raise BundleError(
                f"{self._host} wants uploads at {ask.url.scheme}://{ask.url.host}, without TLS: nothing is sent there. "
                "If that is the registry itself, its external URL must begin with https"
            )
        is_known = self._is_home(ask.url) and ask.repository in self._tokens
        signed = {"Authorization": self._tokens[ask.repository]} if is_known else {}
        body = _whole(ask.content) if ask.content else None
        timeout = _LAYER_TIMEOUT if ask.content else _TIMEOUT
        request = self._client.build_request(
            ask.method, ask.url, content=body, headers={**ask.headers, **signed}, timeout=timeout
        )
        return self._send(request, self._host)

    def _send(self, request: httpx2.Request, host: str) -> Answer:
        try:
            answer = self._client.send(request, stream=True)
            try:
                return Answer(answer.status_code, answer.headers, _beginning(answer), answer.url, request.method)
            finally:
                answer.close()
        except httpx2.HTTPError as error:
            raise _TryAgainError(_unreachable(host, error)) from None

    def _sign_in(self, answer: Answer, ask: _Ask) -> bool:
        """Get what opens a repository; tell whether it is worth another try."""
        challenge = read_challenge(answer.headers.get("www-authenticate", ""))
        if challenge.scheme == "basic" and self._login is not None:
            signed = self._login.header()
        elif challenge.scheme == "bearer" and challenge.realm:
            signed = f"Bearer {self._token(challenge.realm, challenge.service, ask)}"
        else:
            return False
        is_new = self._tokens.get(ask.repository) != signed
        self._tokens[ask.repository] = signed
        return is_new

    def _token(self, realm: str, service: str, ask: _Ask) -> str:
        place = self._read_url(realm, "")
        if place.scheme != "https" and not (self._plain and place.scheme == "http"):
            raise BundleError(
                f"{self._host} asks for the password at {realm[:200]!r} without TLS: nothing is sent there"
            )
        scopes = [f"repository:{ask.repository}:pull,push", *([f"repository:{ask.more}:pull"] if ask.more else [])]
        query = [*([("service", service)] if service else []), *(("scope", scope) for scope in scopes)]
        place = place.copy_with(params=[*place.params.multi_items(), *query])
        headers = {"Authorization": self._login.header()} if self._login else {}
        answer = self._send(self._client.build_request("GET", place, headers=headers), place.host)
        try:
            said = answer.json() if answer.status == HTTPStatus.OK else {}
            token = said.get("token") or said.get("access_token")
        except (ValueError, AttributeError):
            token = None
        if not (isinstance(token, str) and token.isascii() and token.isprintable()):
            raise BundleError(f"{place.host} gives no token ({answer.status}): docker login {self._host}")
        return token

    def _expect(self, answer: Answer, *statuses: int) -> Answer:
        if answer.status in statuses:
            return answer
        if answer.status == HTTPStatus.UNAUTHORIZED:
            raise BundleError(f"{self._host} wants you to sign in: docker login {self._host}")
        if answer.status == HTTPStatus.FORBIDDEN:
            raise BundleError(f"{self._host} doesn't let you write to {answer.url.path}: ask for the right to push")
        raise BundleError(self._refusal(answer))

    def _refusal(self, answer: Answer) -> str:
        return f"{self._host} answered {answer.status} to {answer.method}: {_said(answer)}"


class _Ask(NamedTuple):
    """A request about a repository; `more` is another one that it may read."""

    method: str
    url: httpx2.URL
    repository: str
    content: Content | None = None
    headers: Mapping[str, str] = MappingProxyType({})
    more: str = ""


class _TryAgainError(Exception):
    """Something that may be otherwise in a moment."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def _tried(once: Callable[[], Value]) -> Value:
    """Do something, and again where the connection breaks or the server is busy."""
    for left in reversed(range(_TRIES)):
        try:
            return once()
        except _TryAgainError as error:
            if not left:
                raise BundleError(error.text) from None
        time.sleep(_PAUSE_SECONDS)
    raise AssertionError("the last try returns or raises")


def _whole(content: Content) -> Iterator[bytes]:
    yield from content()


def _beginning(answer: httpx2.Response) -> bytes:
    """Return the first of an answer's bytes: as many as an answer may have, as long as it may take."""
    end, body = time.monotonic() + _ANSWER_SECONDS, b""
    for chunk in answer.iter_bytes():
        body += chunk
        if len(body) > _MOST_SAID:
            break
        if time.monotonic() > end:
            raise httpx2.ReadTimeout(f"it took more than {_ANSWER_SECONDS} s to answer")
    return body[:_MOST_SAID]


def _unreachable(host: str, error: httpx2.HTTPError) -> str:
    text = str(error) or type(error).__name__
    hint = ""
    if "WRONG_VERSION_NUMBER" in text or "record layer failure" in text.lower():
        hint = " It doesn't speak TLS there: --plain-http, where the network is yours"
    elif "CERTIFICATE_VERIFY_FAILED" in text:
        hint = " Name its authority: --ca-file FILE"
    return f"{host} can't be reached: {text}.{hint}"


def _said(answer: Answer) -> str:
    """Return what a registry says of an error, as the specification has it, else the beginning of its answer."""
    try:
        said = answer.json()["errors"][0]
        return f"{said['code']} {said.get('message') or ''}".strip()[:300]
    except (ValueError, LookupError, TypeError, AttributeError):
        return " ".join(answer.body[:1000].decode(errors="replace").split())[:300] or "nothing more"
