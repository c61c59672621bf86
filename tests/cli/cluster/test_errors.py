"""One sentence with the next step for everything that goes wrong."""

from __future__ import annotations

from typing import Any

import pytest

from dynamo.cli.cluster.errors import (
    RefusedError,
    no_context,
    no_kubeconfig,
    no_pipeline,
    parse_answer,
    plain_cause,
)

PIPELINES = "/apis/dynamo.dev/v1alpha1/namespaces/default/dynamopipelines"


def refused(status: int, message: str = "", path: str = PIPELINES, **details: Any) -> str:
    answer = {"message": message, "details": details} if details else {"message": message}
    return RefusedError(status, answer, path, "the cluster of context kind").message


def conflict(manager: str, field: str) -> dict[str, str]:
    return {
        "reason": "FieldManagerConflict",
        "message": f'conflict with "{manager}" using dynamo.dev/v1alpha1',
        "field": field,
    }


def test_a_missing_crd_names_the_installation() -> None:
    """A 404 for the whole kind; one for an object is another thing."""
    assert refused(404, "404 page not found").endswith("install the platform first: dynamo install")
    assert "dynamo install" not in refused(404, 'dynamopipelines "x" not found', f"{PIPELINES}/x", name="x")
    assert "kubectl create namespace nope" in refused(404, "x", name="nope", kind="namespaces")


def test_conflicts_name_who_owns_what() -> None:
    """And both ways out."""
    causes = [conflict("kubectl", ".spec.replicas"), conflict("argocd", ".spec.model"), conflict("kubectl", ".spec.x")]
    said = refused(409, "Apply failed", causes=causes)
    assert "kubectl owns spec.replicas, spec.x; argocd owns spec.model" in said
    assert "--force-conflicts" in said


def test_a_refused_object_names_each_field_once() -> None:
    """The schema and CEL may say the same twice."""
    causes = [{"field": "spec.replicas", "message": "must be 1"}] * 2 + [{"message": "too long"}]
    assert refused(422, "invalid", causes=causes) == "spec.replicas: must be 1; too long"


@pytest.mark.parametrize(
    ("status", "part"),
    [(401, "sign in again"), (403, "Ask for the right"), (503, "Try again"), (418, "kind answered: teapot")],
)
def test_other_answers_say_what_to_do(status: int, part: str) -> None:
    """Whose answer it was stands first."""
    said = refused(status, "teapot")
    assert said.startswith("the cluster of context kind ")
    assert part in said


def test_contexts_are_guessed_or_listed() -> None:
    """A slip of the pen, a wrong name, none at all."""
    assert no_context("prd", ["prod", "dev"]).endswith("did you mean prod?")
    assert no_context("zzzz", ["prod", "dev"]).endswith("it has prod, dev")
    assert "choose one with --context (prod, dev)" in no_context(None, ["prod", "dev"])
    assert "--kubeconfig" in no_kubeconfig(["~/.kube/config"])


def test_a_missing_pipeline_is_looked_for() -> None:
    """Elsewhere first, then names like it."""
    assert no_pipeline("a", "n", ["ab"], ["m", "l"]).endswith("there is one in l, m: add -n l")
    assert no_pipeline("lama", "n", ["llama"], []).endswith("did you mean llama?")
    assert "dynamo status -A" in no_pipeline("x", "n", [], [])


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("[Errno 111] Connection refused", "connection refused"),
        ("Failed to resolve 'x' ([Errno -2] Name or service not known)", "unknown host"),
        ("Connection to x timed out. (connect timeout=10)", "no answer in time"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate", "its certificate isn't of"),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number", "it doesn't speak TLS"),
        ("something else", "something else"),
    ],
)
def test_causes_are_plain_words(said: str, meant: str) -> None:
    """No class names and no addresses of objects."""
    assert meant in plain_cause(OSError(said))


def test_answers_that_are_no_json_are_kept_as_text() -> None:
    """A proxy in between, say."""
    assert parse_answer(b"<html>no</html>") == {"message": "<html>no</html>"}
    assert parse_answer(b"[1]") == {"message": "[1]"}
    assert parse_answer(b'{"message": "m"}') == {"message": "m"}
