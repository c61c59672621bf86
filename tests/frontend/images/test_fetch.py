"""The fetcher against real servers on this machine, which a resolver of the test's calls public."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.frontend.images.samples import png

from dynamo.frontend.images.addresses import is_public
from dynamo.frontend.images.fetch import ByteRoom, FetchError, ImageFetcher, TooLargeError, target_of

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
MB = 1 << 20


def answer(body: bytes, *headers: str, status: str = "200 OK", length: bool = True) -> Serve:
    """A server that reads a request's head and says this."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        lines = [f"HTTP/1.1 {status}", *headers, *([f"Content-Length: {len(body)}"] if length else []), "", ""]
        writer.write("\r\n".join(lines).encode() + body)
        await writer.drain()
        writer.close()

    return serve


class World:
    """Servers by name, and who was asked for what."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.addresses: dict[str, list[str]] = {}

    async def resolve(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        if host not in self.addresses:
            raise OSError("no such host")
        return self.addresses[host]


def fetched(serve: Serve, url: str = "http://images.test:{port}/a.png", most: int = MB, **addresses: list[str]) -> Any:
    """What comes of one fetch: bytes, or the error; and the hosts that were looked up."""
    world = World()
    world.addresses = {"images.test": ["127.0.0.1"], **{name.replace("_", "."): at for name, at in addresses.items()}}

    async def main() -> Any:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        # The one address of this machine that the tests serve at; all others are judged as always.
        fetcher = ImageFetcher(world.resolve, lambda address: address == "127.0.0.1" or is_public(address))
        try:
            async with asyncio.timeout(5):
                return await fetcher.fetch(url.format(port=port), ByteRoom(most))
        except FetchError as error:
            return error
        finally:
            server.close()
            fetcher.close()

    return asyncio.run(main()), world.asked


def test_an_image_comes_whole() -> None:
    """By its length, until the connection ends, and in chunks."""
    data = png(50, 50)
    chunks = b"%x\r\n" % 10 + data[:10] + b"\r\n" + b"%x\r\n" % (len(data) - 10) + data[10:] + b"\r\n0\r\n\r\n"
    for serve in (
        answer(data, "Content-Type: image/png"),
        answer(data, length=False),
        answer(chunks, "Transfer-Encoding: chunked", length=False),
    ):
        assert fetched(serve)[0] == data


@pytest.mark.parametrize(
    "addresses",
    [
        ["10.0.0.1"], ["169.254.169.254"], ["8.8.8.8", "127.0.0.2"], ["::1"], ["::ffff:127.0.0.2"], ["fd00:ec2::254"],
        ["0.0.0.0"], [],
    ],
)  # fmt: skip
def test_private_addresses_are_never_connected_to(addresses: list[str]) -> None:
    """One that isn't public spoils a host, and the words are those of a host that isn't there."""
    error, _ = fetched(answer(b"secret"), "http://inner.test:{port}/", inner_test=addresses)
    unknown, _ = fetched(answer(b"secret"), "http://nowhere.test:{port}/")
    assert isinstance(error, FetchError)
    assert str(error) == str(unknown) == "its host has no public address"


def test_the_name_is_looked_up_once_per_hop() -> None:
    """So an answer that changes between the look and the connection (rebinding) changes nothing."""
    _, asked = fetched(answer(png()))
    assert asked == ["images.test"]


@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/latest/meta-data", "http://inner.test/", "//inner.test/x", "file:///etc/passwd",
        "gopher://images.test/", "http://user@images.test/", "http://images.test:22/", "data:image/png;base64,AAAA",
    ],
)  # fmt: skip
def test_each_redirect_is_looked_at(location: str) -> None:
    """A public server leads nowhere where the client couldn't have gone by itself."""
    more: Any = {"169_254_169_254": ["169.254.169.254"], "inner_test": ["10.0.0.7"]}
    error, _ = fetched(answer(b"", f"Location: {location}", status="302 Found"), **more)
    assert isinstance(error, FetchError)
    assert "answers 200" not in str(error)


def test_redirects_end() -> None:
    """Three are followed; a circle is not."""
    data = png()
    count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        step = answer(data) if count == 4 else answer(b"", "Location: /next", status="307 Again")
        await step(reader, writer)

    assert fetched(serve)[0] == data
    circle, asked = fetched(answer(b"", "Location: /", status="301 Moved"))
    assert "more than 3 times" in str(circle)
    assert len(asked) == 4


def test_size_is_bounded_as_announced_and_as_it_comes() -> None:
    """A length that is too large ends it at once; one that lies, or is missing, when it is over."""
    sent = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not writer.transport.is_closing() and sent < 64 * MB:
            writer.write(bytes(65536))
            sent += 65536
            try:
                await writer.drain()
            except OSError:
                return

    assert isinstance(fetched(answer(bytes(1000)), most=999)[0], TooLargeError)
    assert isinstance(fetched(endless, most=MB)[0], TooLargeError)
    assert sent < 32 * MB
    heads = fetched(answer(b"", *[f"X-{number}: {'y' * 4000}" for number in range(60)]))[0]
    assert isinstance(heads, FetchError)


@pytest.mark.parametrize(
    ("serve", "said"),
    [
        (answer(b"no", status="404 Not Found"), "answers 404"),
        (answer(b"\x1f\x8b", "Content-Encoding: gzip"), "compresses"),
        (answer(b"short", "Content-Length: 10", length=False), "ended the connection"),
        (answer(b"", status="302 Found"), "redirected to nowhere"),
        (answer(b"", status="nonsense"), "can't be read"),
    ],
)
def test_answers_that_are_none(serve: Serve, said: str) -> None:
    """Each is told in words."""
    assert said in str(fetched(serve)[0])


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a.test/", "http:///x", "http://a.test:99999/", "http://a.test:25/", "http://[::1", "http://a b.test/",
        "http://u:p@a.test/", "http://ä.test/", "http://a.test/\r\nX: y", f"http://a.test/{'x' * 5000}", "javascript:1",
    ],
)  # fmt: skip
def test_urls_that_are_not_asked(url: str) -> None:
    """Other schemes, users, odd ports, and characters that would end the request's line."""
    with pytest.raises(FetchError):
        target_of(url)


def test_what_is_asked() -> None:
    """The path with its query, and the host as the URL has it; a fragment stays here."""
    assert target_of("https://A.test/x/y.png?z=1#f") == (True, "a.test", 443, "/x/y.png?z=1", "a.test")
    assert target_of("http://[2606:4700::1111]:8080") == (False, "2606:4700::1111", 8080, "/", "[2606:4700::1111]:8080")
