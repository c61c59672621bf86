"""A frontend with gRPC, and Triton's own client for it."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton


class Caller:
    """Triton's client with what these tests ask of it."""

    def __init__(self, address: str, **options: Any) -> None:
        self.client = triton.InferenceServerClient(address, **options)

    @staticmethod
    def text(text: str) -> Any:
        """The input `text_input`."""
        return Caller.tensor("text_input", text.encode(), "BYTES")

    @staticmethod
    def tensor(name: str, value: Any, datatype: str) -> Any:
        """An input of one element."""
        infer_input = triton.InferInput(name, [1], datatype)
        infer_input.set_data_from_numpy(np.array([value], dtype=np.object_ if datatype == "BYTES" else None))
        return infer_input

    def infer(self, text: str = "hello", *, model: str = "m", more: list[Any] | None = None, **options: Any) -> Any:
        """A whole answer; `options` are the client's, `more` other inputs."""
        return self.client.infer(model, [self.text(text), *(more or [])], **options)

    def say(self, text: str = "hello", **options: Any) -> str:
        """Its text."""
        return words(self.infer(text, **options))[0]

    @contextmanager
    def stream(self, **options: Any) -> Iterator[Stream]:
        """A call of ModelStreamInfer."""
        stream = Stream(self.client)
        self.client.start_stream(callback=stream.take, **options)
        try:
            yield stream
        finally:
            self.client.stop_stream()


class Stream:
    """What comes on one call."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._came: queue.Queue[Any] = queue.Queue()

    def take(self, result: Any, error: Any) -> None:
        self._came.put(error if result is None else result)

    def ask(self, text: str = "hello", *, model: str = "m", streaming: bool = True, **options: Any) -> None:
        flag = triton.InferInput("streaming", [1], "BOOL")
        flag.set_data_from_numpy(np.array([streaming]))
        self._client.async_stream_infer(model, [Caller.text(text), flag], **options)

    def next(self, within: float = 10) -> Any:
        """The next answer, or the error that came instead."""
        return self._came.get(timeout=within)

    def answer(self, within: float = 10) -> list[Any]:
        """All answers up to the last one of a request; an error is raised."""
        values: list[Any] = []
        while not values or not is_last(values[-1]):
            message = self.next(within)
            if isinstance(message, Exception):
                raise message
            values.append(message)
        return values


def is_last(result: Any) -> bool:
    """Triton's mark of the last answer of a request."""
    return bool(result.get_response().parameters["triton_final_response"].bool_param)


def words(result: Any, name: str = "text_output") -> list[str]:
    """An output of text."""
    return [entry.decode() for entry in result.as_numpy(name)]


@pytest.fixture
def kserve(make_site: Callable[..., Any]) -> Callable[..., Any]:
    """Makes frontends with gRPC."""

    def make(**settings: Any) -> Any:
        return make_site(**{"kserve_grpc_server": True, "grpc_metrics_port": 0, **settings})

    return make


@pytest.fixture
def call() -> Iterator[Callable[..., Caller]]:
    """Makes clients, and closes them."""
    made: list[Caller] = []

    def make(site: Any, **options: Any) -> Caller:
        made.append(Caller(site.grpc, **options))
        return made[-1]

    yield make
    for item in made:
        item.client.close()
