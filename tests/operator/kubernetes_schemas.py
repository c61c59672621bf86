"""`validate`: Kubernetes' own schemas, each read once in a process; their definitions are 2 MB of JSON."""

from __future__ import annotations

import functools
import re
from typing import Any

import jsonschema  # type: ignore[import-untyped]
from kubernetes_validate import utils  # type: ignore[import-untyped]
from referencing import Registry, Resource


def validate(manifest: dict[str, Any], version: str) -> None:
    """Raise `jsonschema.ValidationError` where a manifest isn't what this version takes, or has a field more."""
    _validator(manifest["kind"].lower(), manifest["apiVersion"], version).validate(manifest)


@functools.cache
def _validator(kind: str, api_version: str, version: str) -> Any:
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    schema = utils.schema_contents(f"{_folder(version)}/{kind}-{group}.json", version)
    registry = Resource.from_contents(schema) @ _definitions(version)
    return jsonschema.Draft202012Validator(schema, registry=registry)


@functools.cache
def _definitions(version: str) -> Registry[Any]:
    contents = utils.schema_contents(f"{_folder(version)}/_definitions.json", version)
    return (Resource.from_contents(contents) @ Registry[Any]()).crawl()


def _folder(version: str) -> str:
    known = [known for known in utils.all_versions() if utils.major_minor(known) == version][-1]
    return f"kubernetes-json-schema/v{known}-local-strict"
