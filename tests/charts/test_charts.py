"""The charts as files: everything about them that needs no helm. `e2e/charts` renders them."""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from tests.charts.documents import (
    CHARTS,
    PIPELINE,
    PLATFORM,
    ROOT,
    comments,
    golden,
    head,
    leaves,
    property_at,
    schema,
    values,
    values_table,
)
from tests.operator import kubernetes_schemas
from tests.operator.pipelines import FULL, SMALLEST, body

from dynamo.operator.api.v1alpha1 import Engine
from dynamo.operator.codegen.chart_schema import schema_text
from dynamo.operator.codegen.crd import FILE_NAME, crd_text

CHANGES = re.compile(r"\b(rand\w+|genCA|genSelfSignedCert|genSignedCert|uuidv4|lookup|now|shuffle)\b")


def chart(path: Path) -> str:
    return path.name


def templates(path: Path) -> list[Path]:
    return sorted(p for p in (path / "templates").rglob("*") if p.suffix in (".yaml", ".tpl", ".txt"))


def test_the_crd_is_the_generated_one() -> None:
    """The chart carries the very bytes that `make generate` writes into crds/."""
    copy = (PLATFORM / "files/crds" / FILE_NAME).read_text()
    assert copy == crd_text(), "run `python -m dynamo.operator.codegen.crd charts/dynamo-platform/files/crds`"


def test_the_crd_takes_labels_and_annotations() -> None:
    """The template puts them below the name; if that line changed, it would find no place."""
    line = "metadata:\n  name: dynamopipelines.dynamo.dev\n"
    assert crd_text().count(line) == 1
    assert json.dumps(line) in (PLATFORM / "templates/crds.yaml").read_text()


def test_the_crd_is_in_one_chart_only() -> None:
    """A CRD in two charts makes the second one's installation fail."""
    assert [p.name for p in CHARTS if list(p.rglob("*dynamopipelines.yaml"))] == ["dynamo-platform"]
    assert not any((path / "crds").exists() for path in CHARTS), "helm never upgrades what lies in crds/"


def test_the_pipelines_schema_is_the_generated_one() -> None:
    """Drift fails: `make generate` writes it again."""
    assert (PIPELINE / "values.schema.json").read_text() == schema_text(), "run `make generate`"


def pipeline_values(spec: dict[str, Any]) -> dict[str, Any]:
    return {"pipelines": {"x": {"spec": spec}}}


@pytest.mark.parametrize("spec", [body(FULL)["spec"], body(SMALLEST)["spec"]])
def test_a_whole_pipeline_fits_the_pipelines_schema(spec: dict[str, Any]) -> None:
    """What the CRD takes, the chart takes; a field may be set to null, as Helm removes one."""
    jsonschema.validate(pipeline_values(spec), schema(PIPELINE))
    jsonschema.validate(pipeline_values({**spec, "frontend": None}), schema(PIPELINE))


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"components": [{"engine": "mocker"}], "replica": 2}, "'replica' was unexpected"),
        ({"components": [{"engine": "mocker", "tensorparallelSize": 2}]}, "'tensorparallelSize' was unexpected"),
        ({"components": [{"engine": "mocker"}], "frontend": {"router": {"mod": "kv"}}}, "'mod' was unexpected"),
        ({"components": [{"engine": "mocker", "replicas": "2"}]}, "'2' is not of type 'integer'"),
        ({"components": [{"engine": "mock"}]}, "'mock' is not one of"),
        ({"components": []}, "[] should be non-empty"),
        ({}, "'components' is a required property"),
    ],
)
def test_a_wrong_pipeline_is_refused_before_it_is_sent(spec: dict[str, Any], sentence: str) -> None:
    """Helm drops fields that the CRD doesn't know, without a word."""
    with pytest.raises(jsonschema.ValidationError, match=re.escape(sentence)):
        jsonschema.validate(pipeline_values(spec), schema(PIPELINE))


@pytest.mark.parametrize("path", CHARTS, ids=chart)
def test_default_values_fit_the_schema(path: Path) -> None:
    """The schema is one, and lets the chart's own defaults pass."""
    jsonschema.Draft7Validator.check_schema(schema(path))
    jsonschema.validate(values(path), schema(path))


@pytest.mark.parametrize("path", CHARTS, ids=chart)
def test_unknown_values_are_refused(path: Path) -> None:
    """A typo at the top is an error, not silence."""
    assert schema(path)["additionalProperties"] is False
    assert set(values(path)) <= set(schema(path)["properties"])


@pytest.mark.parametrize("path", CHARTS, ids=chart)
def test_every_value_has_a_comment(path: Path) -> None:
    """What a user can set, values.yaml explains."""
    known = comments(path)
    assert [leaf for leaf in leaves(values(path), known) if leaf not in known] == []


def test_the_schema_says_what_the_comments_say() -> None:
    """An editor that reads the schema shows the same sentence."""
    said = {path: property_at(PLATFORM, path).get("description") for path in comments(PLATFORM)}
    assert said == comments(PLATFORM)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("operator.replicaCount", "two"),
        ("operator.rbac.scope", "clusters"),
        ("operator.image.digest", "sha256:1"),
        ("operator.image.pullPolicy", "Sometimes"),
        ("operator.logLevel", "loud"),
        ("pipelines.gracefulShutdownTimeoutSeconds", -1),
        ("operator.watchNamespaces", ["Not A Namespace"]),
        ("pipelines.images.workers", {"vllmm": "x"}),
        ("pipelines.fsGroup", "1000"),
        ("etcd.external.endpoints", ["etcd:2379"]),
        ("nats.external.url", "nats.example:4222"),
        ("nats.maxPayload", 1024),
        ("etcd.persistence.size", "big"),
        ("metrics.serviceMonitor.interval", 30),
    ],
)
def test_wrong_values_are_refused(path: str, value: Any) -> None:
    """Each is caught before anything is installed."""
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(value, property_at(PLATFORM, path))


def test_an_image_can_be_named_for_every_engine() -> None:
    """The schema knows the engines that the CRD knows."""
    names = property_at(PLATFORM, "pipelines.images.workers")["propertyNames"]["enum"]
    assert set(names) == {"default", *(engine.value for engine in Engine)}


@pytest.mark.parametrize("path", CHARTS, ids=chart)
def test_the_readme_lists_the_values(path: Path) -> None:
    """The table follows values.yaml; README=write writes it anew."""
    above, separator, _ = (path / "README.md").read_text().partition("## Values\n\n")
    table = values_table(path)
    if os.environ.get("README") == "write":
        (path / "README.md").write_text(above + separator + table)
    assert (path / "README.md").read_text() == above + separator + table


@pytest.mark.parametrize("path", CHARTS, ids=chart)
def test_versions_follow_the_package(path: Path) -> None:
    """The images' tag is appVersion, so it is the package's version, and never `latest`."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert head(path)["appVersion"] == version
    assert "latest" not in yaml.safe_dump(values(path))


@pytest.mark.parametrize("path", CHARTS, ids=chart)
def test_rendering_is_repeatable(path: Path) -> None:
    """No template draws a number, reads the clock or asks the cluster: GitOps would see a change for ever."""
    actions = {p.name: " ".join(re.findall(r"{{.*?}}", p.read_text(), re.DOTALL)) for p in templates(path)}
    assert {name: CHANGES.findall(text) for name, text in actions.items() if CHANGES.search(text)} == {}


@pytest.mark.parametrize("path", CHARTS, ids=chart)
def test_nothing_is_downloaded(path: Path) -> None:
    """No chart has dependencies: an installation needs this folder and the images."""
    assert "dependencies" not in head(path)
    assert not (path / "charts").exists()


def test_every_value_is_used() -> None:
    """A value that no template reads is a promise that nobody keeps."""
    text = "\n".join(p.read_text() for p in templates(PLATFORM))
    unread = [leaf for leaf in comments(PLATFORM) if not re.search(rf"\.{leaf.split('.')[-1]}\b", text)]
    assert unread == []


@pytest.mark.parametrize("version", ["1.31", "1.34"])
@pytest.mark.parametrize("case", ["default", "everything", "external", "per-namespace", "ha"])
def test_golden_files_are_what_kubernetes_reads(case: str, version: str) -> None:
    """What helm makes (`e2e/charts` holds the files to it) has no field that the API server does not know."""
    for manifest in yaml.safe_load_all(golden(case).text()):
        if not manifest["apiVersion"].startswith("monitoring.coreos.com"):
            kubernetes_schemas.validate(manifest, version)
