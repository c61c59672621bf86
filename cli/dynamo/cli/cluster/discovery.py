"""Which address the objects of a kind have on this API server."""

from __future__ import annotations

from typing import NamedTuple

from dynamo.cli.cluster.client import Cluster, Live
from dynamo.cli.cluster.errors import ClusterError, RefusedError
from dynamo.operator.kube.resources import Resource


class Known(NamedTuple):
    """A kind that the server has."""

    resource: Resource
    namespaced: bool


class Discovery:
    """Asks once per group and version."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._found: dict[str, dict[str, Known]] = {}

    def find(self, api_version: str, kind: str) -> Known | None:
        """Return what the server knows of a kind; None where it doesn't know it."""
        if api_version not in self._found:
            self._found[api_version] = self._ask(api_version)
        return self._found[api_version].get(kind)

    def path(self, live: Live, namespace: str) -> str:
        """Return the path of one object; raises `ClusterError` for a kind that the server doesn't know."""
        api_version, kind = str(live.get("apiVersion", "")), str(live.get("kind", ""))
        known = self.find(api_version, kind)
        if known is None:
            raise ClusterError(f"{self._cluster.label} doesn't know {kind} of {api_version}: nothing was applied")
        return known.resource.path(namespace if known.namespaced else None, str(live["metadata"]["name"]))

    def _ask(self, api_version: str) -> dict[str, Known]:
        try:
            answer = self._cluster.get(f"{'/apis' if '/' in api_version else '/api'}/{api_version}")
        except RefusedError as refused:
            if refused.status == 404:
                return {}
            raise
        return {
            resource["kind"]: Known(
                Resource(api_version, resource["kind"], resource["name"]), bool(resource.get("namespaced"))
            )
            for resource in answer.get("resources") or []
            if "/" not in resource["name"]
        }
