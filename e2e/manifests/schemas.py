"""JSON schemas out of an API server's own OpenAPI, as kubeconform reads them: `write_schemas(server, folder)`.

So objects of custom kinds are checked like Kubernetes' own, and nothing is downloaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from e2e.apiserver.client import until
from e2e.manifests.server import Server

Schema = dict[str, Any]
GROUPS = (
    "api/v1", "apis/apps/v1", "apis/policy/v1", "apis/networking.k8s.io/v1", "apis/rbac.authorization.k8s.io/v1",
    "apis/apiextensions.k8s.io/v1", "apis/gateway.networking.k8s.io/v1", "apis/dynamo.dev/v1alpha1",
    "apis/admissionregistration.k8s.io/v1",
)  # fmt: skip
LOCATION = "{{.Group}}/{{.ResourceAPIVersion}}/{{.ResourceKind}}.json"
"""Where kubeconform finds a kind's schema, below the folder; it takes the version for the core kinds' group."""


def write_schemas(server: Server, folder: Path) -> str:
    """Every kind of the groups that we use; what to give to kubeconform as its location."""
    known = until("the schemas of all groups are published", lambda: _published(server))
    for group in GROUPS:
        document = server.admin.ask("GET", known[group]["serverRelativeURL"])
        components = {name: _strict(one) for name, one in document["components"]["schemas"].items()}
        for (owner, version, kind), name in _kinds(components):
            file = folder / (owner or version) / version / f"{kind.lower()}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": components}}
            file.write_text(json.dumps(schema), encoding="utf-8")
    return str(folder / LOCATION)


def _published(server: Server) -> Schema:
    """Where they are, empty before; those of custom kinds come a moment after the kinds."""
    known: Schema = server.admin.ask("GET", "/openapi/v3")["paths"]
    return known if set(GROUPS) <= known.keys() else {}


def _kinds(components: Schema) -> Iterator[tuple[tuple[str, str, str], str]]:
    for name, schema in components.items():
        kinds = schema.get("x-kubernetes-group-version-kind", [])
        if len(kinds) == 1:
            yield (kinds[0]["group"], kinds[0]["version"], kinds[0]["kind"]), name


def _strict(schema: Any) -> Any:
    """With every unknown field refused, as `fieldValidation=Strict` does."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _strict(value) for name, value in schema.items()}
    opaque = found.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(found.get("properties"), dict) and found.get("type") == "object" and not opaque:
        found.setdefault("additionalProperties", False)
    return found
