"""What comes at once is begun by turns of the loop, in order, and none of it is lost."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from typing import Any

import pytest

from dynamo.frontend.http.connection_shares import AT_ONCE, RequestStarts

BODY = json.dumps({"model": "m", "prompt": "abc", "max_tokens": 2}).encode()
REQUEST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
MANY = 5 * AT_ONCE


async def test_so_many_in_a_turn_and_in_order() -> None:
    """Whoever comes while others wait waits behind them."""
    starts, begun = RequestStarts(), list[int]()

    def come(number: int) -> None:
        if starts.admit():
            begun.append(number)
        else:
            starts.defer(lambda: begun.append(number))

    for number in range(3 * AT_ONCE):
        come(number)
    assert (len(begun), len(starts)) == (AT_ONCE, 2 * AT_ONCE)
    turns = [len(begun)]
    while starts:
        await asyncio.sleep(0)
        if len(turns) == 1:
            come(3 * AT_ONCE)
        turns.append(len(begun))
    assert max(after - before for before, after in itertools.pairwise(turns)) == AT_ONCE
    assert begun == list(range(3 * AT_ONCE + 1))


async def test_one_at_a_time_never_waits() -> None:
    """A turn later everything is as at first."""
    starts = RequestStarts()
    for _ in range(4 * AT_ONCE):
        assert starts.admit()
        await asyncio.sleep(0)
    assert not starts


async def test_those_whose_connections_are_cut_are_forgotten() -> None:
    """Nothing of them is begun afterwards."""
    starts, begun = RequestStarts(), list[int]()
    for number in range(2 * AT_ONCE):
        if not starts.admit():
            starts.defer(lambda number=number: begun.append(number))  # type: ignore[misc]
    starts.clear()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert begun == []


@pytest.mark.parametrize("leaves", [False, True])
def test_a_burst_is_answered(make_site: Any, echo: Any, leaves: bool) -> None:
    """All of it, also where the frontend is told to leave while most of it waits."""
    site = make_site(shutdown_delay_secs=0.0, graceful_shutdown_timeout_secs=20.0)
    site.worker(echo)
    clients: list[socket.socket] = [site.socket() for _ in range(MANY)]
    try:
        for client in clients:
            client.sendall(REQUEST % (len(BODY), BODY))
        if leaves:
            site.call(site.leaving.signal)
        answers = [client.recv(65536) for client in clients]
    finally:
        for client in clients:
            client.close()
    assert {answer.partition(b"\r\n")[0] for answer in answers} == {b"HTTP/1.1 200 OK"}
