"""Two pipelines of one name in two namespaces never meet, neither in what is found nor in who answers."""

from __future__ import annotations

from collections.abc import Callable

import openai
import pytest
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import answers, asking, pipeline, say, workers

NAME = "same"


def test_apart(new_namespace: Callable[[], Namespace]) -> None:
    """Same pipeline name, other models: each frontend knows and answers for its own only."""
    here, there = new_namespace(), new_namespace()
    for namespace, model in ((here, "left"), (there, "right")):
        namespace.apply(pipeline(NAME, model={"name": model}))
    assert here.wait_ready(NAME)["status"]["namespace"] != there.wait_ready(NAME)["status"]["namespace"]
    with asking(here, NAME) as left, asking(there, NAME) as right:
        assert [model.id for model in left.models.list()] == ["left"]
        assert [model.id for model in right.models.list()] == ["right"]
        with pytest.raises(openai.NotFoundError):
            say(left, "right")
        assert say(left, "left")
        assert say(right, "right")


def test_the_same_model_does_not_cross(new_namespace: Callable[[], Namespace]) -> None:
    """Even one model name: without workers of its own a frontend says so rather than ask the neighbour's."""
    full, empty = new_namespace(), new_namespace()
    full.apply(pipeline(NAME, model={"name": "shared"}))
    empty.apply(pipeline(NAME, model={"name": "shared"}, replicas=0))
    full.wait_ready(NAME)
    empty.wait_ready(NAME)
    assert workers(empty, NAME) == []
    with asking(full, NAME) as served, asking(empty, NAME) as bare:
        assert say(served, "shared")
        with pytest.raises((openai.NotFoundError, openai.InternalServerError)):
            say(bare, "shared")
        empty.kubectl("scale", f"dp/{NAME}", "--replicas=1")
        assert answers(bare, "shared")
        full.kubectl("delete", f"dp/{NAME}", "--wait=true")
        assert say(bare, "shared")
