"""Who is refused for having been with workers that died, and who isn't: pure."""

from __future__ import annotations

import pytest

from dynamo.frontend.errors import TakesWorkersDown
from dynamo.frontend.limits.deadly_requests import BLAMED, MOST, SECONDS, Suspects, digest_of
from dynamo.llm.processing.embeddings import EmbeddingRequest
from dynamo.llm.protocols import ImageInput, PreprocessedRequest, SamplingOptions, TextRequest
from dynamo.runtime.names import EndpointPath, InstanceKey

PATH = EndpointPath("n", "c", "e")


def worker(number: int) -> InstanceKey:
    return InstanceKey(PATH, number)


def asking(*tokens: int, seed: int | None = None, **more: object) -> PreprocessedRequest:
    return PreprocessedRequest(
        model="m", token_ids=list(tokens), sampling_options=SamplingOptions(seed=seed), **more  # type: ignore[arg-type]
    )  # fmt: skip


def chat(**body: object) -> TextRequest:
    return TextRequest(model="m", kind="chat", body=body)


def showing(data: bytes) -> TextRequest:
    """A chat with an image."""
    image = ImageInput(data=data, format="png", digest=data.hex() * 16, width=1, height=1)
    return TextRequest(model="m", kind="chat", body={}, images=[image])


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def suspects(clock: Clock) -> Suspects:
    return Suspects(clock)


def refused(suspects: Suspects, request: PreprocessedRequest | TextRequest | EmbeddingRequest) -> bool:
    digest = suspects.known(request)
    if digest is None or not suspects.seconds_left(digest):
        return False
    with pytest.raises(TakesWorkersDown, match="refused for"):
        suspects.check(digest)
    return True


def test_two_workers_and_a_minute(suspects: Suspects, clock: Clock) -> None:
    """The second one that dies with it has it refused, for a minute; one worker twice is one worker."""
    assert not suspects.kept
    request = asking(1, 2)
    suspects.lost(request, worker(1), 0.0)
    suspects.lost(request, worker(1), 1.0)
    assert suspects.kept
    assert not refused(suspects, request)
    suspects.lost(request, worker(2), 2.0)
    assert refused(suspects, request)
    assert not refused(suspects, asking(1, 3))
    assert suspects.known(asking(1, 2, 3)) is None
    clock.now = SECONDS + 0.1
    assert not refused(suspects, request)
    assert not suspects.kept


def test_an_answer_clears_it(suspects: Suspects) -> None:
    """It was merely there when a worker died: the next one answers, and nothing is held against it."""
    request, said = asking(1, 2), []
    digest = suspects.lost(request, worker(1), 0.0)
    suspects.trial(digest, worker(2), lambda data, last: said.append((data, last)))(7, False)
    assert said == [(7, False)]
    suspects.lost(request, worker(3), 5.0)
    assert not refused(suspects, request)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (asking(1, seed=1), asking(1, seed=2), True),
        (asking(1), asking(1, annotations=["x"], dp_rank=3), True),
        (asking(1), asking(2), False),
        (asking(1), asking(1, mdc_sum="other"), False),
        (chat(a=1, seed=1), chat(a=1, seed=2), True),
        (chat(a=1), chat(a=2), False),
        (showing(b"a"), showing(b"a"), True),
        (showing(b"a"), showing(b"b"), False),
        (EmbeddingRequest(model="m", token_ids=[[1]]), EmbeddingRequest(model="m", token_ids=[[1]]), True),
    ],
)  # fmt: skip
def test_what_is_the_same_request(one: PreprocessedRequest, other: PreprocessedRequest, same: bool) -> None:
    """Choices of one body, and a second try of it; what routing adds doesn't count."""
    assert (digest_of(one) == digest_of(other)) is same


def test_one_worker_at_a_time(suspects: Suspects) -> None:
    """What is suspected isn't tried by two workers at once, nor two suspects by one where there are others."""
    there = {worker(n) for n in range(4)}
    first, second = suspects.lost(asking(1), worker(9), 0.0), suspects.lost(asking(2), worker(9), 0.0)
    assert suspects.excluded(first, there) == set()
    suspects.trial(first, worker(0), lambda data, last: None)
    assert suspects.excluded(first, there) == there - {worker(0)}
    assert suspects.excluded(second, there) == {worker(0)}
    assert suspects.excluded(second, {worker(0)}) == set(), "where there is no other, it is that one"
    suspects.left(first, worker(1))
    assert suspects.excluded(first, there), "another one never had it"
    suspects.left(first, worker(0))
    assert suspects.excluded(first, there) == set()
    assert suspects.excluded(b"unknown", there) == set()


def test_a_crowd_is_not_blamed(suspects: Suspects) -> None:
    """Two workers die with thirty requests that wait: those that they were sent last are suspected, the others not."""
    waiting = [asking(number) for number in range(30)]
    for dead in (1, 2):
        for at, request in enumerate(waiting):
            suspects.lost(request, worker(dead), float(at))
    assert [request for request in waiting if refused(suspects, request)] == waiting[-BLAMED:]


def test_memory_is_bounded(suspects: Suspects) -> None:
    """Whoever sends ever new bodies pushes out the oldest."""
    for number in range(2 * MOST):
        suspects.lost(asking(number), worker(number), 0.0)
    assert suspects.known(asking(0)) is None
    assert suspects.known(asking(2 * MOST - 1)) is not None
    assert len(suspects.kept) == len(suspects._deaths) == MOST
    assert sum(suspects._sizes.values()) == MOST
