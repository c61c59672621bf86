"""`/v1/rerank` and `/v1/score`: orders, forms, names, and what the route of embeddings refuses."""

from __future__ import annotations

from typing import Any

import pytest

from dynamo.llm.processing.embeddings import packed
from dynamo.runtime.request_plane.server import Incoming


@pytest.fixture
def embedding(site: Any) -> Any:
    """A frontend with a model whose vectors point further up the later their first letter comes."""

    def engine(incoming: Incoming) -> None:
        for index, ids in enumerate(incoming.payload["token_ids"]):
            incoming.send([index, packed([10.0, float(ids[0] - ord("a"))])])
        incoming.finish()

    site.worker(engine, "v", model_types=["embedding"])
    return site


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_the_nearest_documents_come_first(embedding: Any, path: str) -> None:
    """Documents are ordered by their cosine with the query, as many as were asked for, with or without texts."""
    body = {"model": "v", "query": "a", "documents": ["z", {"text": "b"}, "a"]}
    answer = embedding.post(path, body | {"top_n": 2, "foo": 1})
    results = answer.json()["results"]
    assert [(result["index"], result["document"]["text"]) for result in results] == [(2, "a"), (1, "b")]
    assert results[0]["relevance_score"] == pytest.approx(1.0)
    assert results[1]["relevance_score"] == pytest.approx(100 / (10 * 101**0.5))
    assert answer.json()["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    assert answer.headers["x-dynamo-ignored-fields"] == "foo"
    bare = embedding.post(path, body | {"return_documents": False}).json()["results"]
    assert [sorted(one) for one in bare] == [["index", "relevance_score"]] * 3


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
def test_pairs_are_scored(embedding: Any, path: str) -> None:
    """One text is compared with all, several each with its own."""
    one = embedding.post(path, {"model": "v", "text_1": "a", "text_2": ["a", "k"]}).json()["data"]
    assert [entry["score"] for entry in one] == pytest.approx([1.0, 0.5**0.5])
    pairs = embedding.post(path, {"model": "v", "text_1": ["a", "k"], "text_2": ["k", "k"]}).json()["data"]
    assert [(entry["index"], entry["object"]) for entry in pairs] == [(0, "score"), (1, "score")]
    assert [entry["score"] for entry in pairs] == pytest.approx([0.5**0.5, 1.0])


def test_a_cosine_is_no_more_than_one(site: Any) -> None:
    """Of texts that are the same, or opposite, whatever rounding makes of them."""

    def engine(incoming: Incoming) -> None:
        for index, ids in enumerate(incoming.payload["token_ids"]):
            sign = -1 if bytes(ids[-1:]) == b"-" else 1
            incoming.send([index, packed([sign * 0.1 * (at + 1) * int(bytes(ids[:2])) for at in range(3)])])
        incoming.finish()

    site.worker(engine, "v", model_types=["embedding"])
    left = [f"{number}" for number in range(10, 70)]
    for end, whole in (("", 1.0), ("-", -1.0)):
        right = [f"{text}{end}" for text in left]
        scored = site.post("/v1/score", {"model": "v", "text_1": left, "text_2": right}).json()["data"]
        scores = [entry["score"] for entry in scored]
        assert scores == pytest.approx([whole] * len(left))
        assert all(-1 <= score <= 1 for score in scores)


def test_what_embeddings_refuse(embedding: Any, echo: Any) -> None:
    """Models that aren't there, or make no vectors, are refused as by embeddings; texts are bounded by the context."""
    embedding.worker(echo, "chat")
    body = {"query": "a", "documents": ["b"]}
    for model, status, code in (("w", 404, "model_not_found"), ("chat", 404, "model_not_found")):
        answer = embedding.post("/v1/rerank", body | {"model": model})
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    long = embedding.post("/v1/score", {"model": "v", "text_1": "a", "text_2": "b" * 2000})
    assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
    many = embedding.post("/v1/rerank", {"model": "v", "query": "a", "documents": ["b"] * 513})
    assert (many.status_code, many.json()["error"]["param"]) == (400, "documents")


def test_a_client_that_leaves_frees_the_engine(site: Any, within: Any) -> None:
    """Nobody wants the vectors any more: the engine is told."""
    cancelled: list[bool] = []

    def engine(incoming: Incoming) -> None:
        incoming.on_cancel(lambda: cancelled.append(True))

    site.worker(engine, "v", model_types=["embedding"])
    body = b'{"model":"v","query":"a","documents":["b"]}'
    with site.socket() as sock:
        sock.sendall(b"POST /rerank HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        within("the engine has it", lambda: site.metric("inflight_requests", model="v") == 1)
    within("the engine is free", lambda: cancelled == [True])
