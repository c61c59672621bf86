"""What threads of an engine say arrives on the loop, in order, whatever becomes of one of them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from tests.waiting import until

from dynamo.worker.engines.support.loop_bridge import ToLoop


async def test_all_arrive_in_order() -> None:
    """Of one thread's in its order; a failure is told, and holds up nothing that was said after it."""
    values: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: values.append(about["exception"]))
    there, heard = ToLoop(), list[int]()

    def broken() -> None:
        raise ValueError("one request's")

    def speak() -> None:
        for number in range(1000):
            there.tell(*((broken,) if number == 500 else (heard.append, number)))

    thread = threading.Thread(target=speak)
    thread.start()
    thread.join()  # the loop turns only now: all of it comes in one turn
    await until("all have been heard", lambda: len(heard) == 999)
    assert heard == [number for number in range(1000) if number != 500]
    assert [str(error) for error in values] == ["one request's"]
