"""The CRD, made from the types: `python -m dynamo.operator.codegen.crd [FOLDER]...` writes it.

Run by `make generate`; a test fails where the written file differs from `crd()`. The text
is YAML with everything doubtful quoted, since kubectl reads `n` as a boolean.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from dynamo.operator.api.v1alpha1 import API_VERSION, KIND
from dynamo.operator.codegen.crd_schema import structural_schema
from dynamo.operator.codegen.yaml_text import to_yaml

GROUP, _, VERSION = API_VERSION.partition("/")
PLURAL = "dynamopipelines"
FILE_NAME = f"{GROUP}_{PLURAL}.yaml"
FOLDERS = ("crds", "charts/dynamo-platform/files/crds")
HEADER = "# Made from the types by `make generate`; don't edit it by hand.\n"


def crd() -> dict[str, Any]:
    """Return the CustomResourceDefinition of `DynamoPipeline`."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["dp"],
                "categories": ["dynamo"],
            },
            "scope": "Namespaced",
            "versions": [_version()],
        },
    }


def crd_text() -> str:
    """Return the file's content."""
    return HEADER + to_yaml([crd()])


def _version() -> dict[str, Any]:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": _columns(),
        "schema": {"openAPIV3Schema": structural_schema()},
    }


def _columns() -> list[dict[str, Any]]:
    """Return the columns of `kubectl get dp`, then those of `-o wide`. Of a list only the first entry is printed."""
    ready = '.status.conditions[?(@.type=="Ready")]'
    narrow = [
        ("Ready", "string", f"{ready}.status"),
        ("Reason", "string", f"{ready}.reason"),
        ("Model", "string", ".status.model"),
        ("Engine", "string", ".status.engines"),
        ("Workers", "string", ".status.workers"),
        ("URL", "string", ".status.url"),
        ("Age", "date", ".metadata.creationTimestamp"),
    ]
    wide = [
        ("TP", "string", ".status.tensorParallel"),
        ("Router", "string", ".spec.frontend.router.mode"),
        ("Generation", "integer", ".metadata.generation"),
    ]
    return [
        *({"name": name, "type": kind, "jsonPath": path} for name, kind, path in narrow),
        *({"name": name, "type": kind, "jsonPath": path, "priority": 1} for name, kind, path in wide),
    ]


def main(argv: list[str]) -> None:
    """Write the file into each folder; where none is named, into those that hold it."""
    for name in argv or FOLDERS:
        folder = Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE_NAME).write_text(crd_text(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
