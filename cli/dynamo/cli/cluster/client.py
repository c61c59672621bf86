"""A connection to an API server with the user's kubeconfig: plain objects in and out.

Paths come from the operator's `kinds`, so that each kind is spelled once. Every answer of
400 and more is a `RefusedError`, every failure to get one a `ClusterError`.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, Final

import urllib3
import yaml
from kubernetes import client, config

from dynamo.cli.cluster import kubeconfig as kubeconfigs
from dynamo.cli.cluster.errors import (
    ClusterError,
    RefusedError,
    TooDeepError,
    no_context,
    no_kubeconfig,
    parse_answer,
    plain_cause,
    unreachable,
)
from dynamo.cli.cluster.kubeconfig import Target
from dynamo.operator.kube.resources import Resource

Live = dict[str, Any]
MANAGER: Final = "dynamo-cli"
CONNECT_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 30.0
_PAGE: Final = 500
_SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"


class Cluster:
    """One API server, one user, one namespace."""

    def __init__(self, api: client.ApiClient, label: str, namespace: str, *, inside: bool) -> None:
        self.api = api
        self.label = label
        """What errors call it."""
        self.namespace = namespace
        self.inside = inside
        """We run in a pod of it."""

    def get(self, path: str, **query: str) -> Live:
        """Return one object, or whatever lies at the path."""
        return self.request("GET", path, query)

    def find(self, path: str) -> Live | None:
        """Return one object; None where there is none."""
        try:
            return self.get(path)
        except RefusedError as refusal:
            if refusal.status == 404 and not refusal.crd_missing:
                return None
            raise

    def items(self, resource: Resource, namespace: str | None, **query: str) -> list[Live]:
        """Return all of a kind in a namespace (None: everywhere), with their kind filled in."""
        objects: list[Live] = []
        more = ""
        while True:
            page = {**query, "limit": str(_PAGE)} | ({"continue": more} if more else {})
            answer = self.get(resource.path(namespace), **page)
            head = {"apiVersion": resource.api_version, "kind": resource.kind}
            objects += [{**head, **item} for item in answer.get("items") or []]
            more = (answer.get("metadata") or {}).get("continue") or ""
            if not more:
                return objects

    def visible(self, resource: Resource, namespace: str | None, **query: str) -> list[Live]:
        """Return the same as `items`; nothing where the user may not see them, or the server doesn't know the kind."""
        try:
            return self.items(resource, namespace, **query)
        except RefusedError as refusal:
            if refusal.status in (403, 404):
                return []
            raise

    def apply(self, path: str, body: Mapping[str, Any], *, force: bool = False, dry_run: bool = False) -> Live:
        """Apply server-side, in our name; unknown fields are refused."""
        query = {"fieldManager": MANAGER, "force": str(force).lower(), "fieldValidation": "Strict"}
        if dry_run:
            query["dryRun"] = "All"
        return self.request("PATCH", path, query, body, "application/apply-patch+yaml")

    def merge(self, path: str, body: Mapping[str, Any]) -> Live:
        """Send a merge patch."""
        return self.request("PATCH", path, {"fieldManager": MANAGER}, body, "application/merge-patch+json")

    def create(self, path: str, body: Mapping[str, Any]) -> Live:
        """Send a POST."""
        return self.request("POST", path, {}, body, "application/json")

    def delete(self, path: str, *, propagation: str = "Background", uid: str | None = None) -> Live:
        """Delete one object; with a uid, that one only."""
        body: Live = {"propagationPolicy": propagation}
        if uid:
            body["preconditions"] = {"uid": uid}
        return self.request("DELETE", path, {}, body, "application/json")

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None = None,
        content_type: str | None = None,
        *,
        read_seconds: float = ANSWER_SECONDS,
    ) -> Live:
        """Make one exchange; returns its JSON."""
        return self.decoded(self.raw(method, path, query, body, content_type, read_seconds=read_seconds))

    def decoded(self, answer: bytes) -> Live:
        """Read what the server sent."""
        try:
            decoded = json.loads(answer)
        except ValueError:
            raise ClusterError(f"{self.label} didn't answer in JSON: is it an API server of Kubernetes?") from None
        except RecursionError:
            text = "an object there is nested too deep to be read: kubectl shows which"
            raise TooDeepError(f"{self.label}: {text}") from None
        return decoded if isinstance(decoded, dict) else {"items": decoded}

    def raw(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None = None,
        content_type: str | None = None,
        *,
        read_seconds: float = ANSWER_SECONDS,
    ) -> bytes:
        """Make one exchange; returns its bytes."""
        with self.open(method, path, query, body, content_type, read_seconds=read_seconds) as response:
            return bytes(response.data)

    @contextlib.contextmanager
    def open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None = None,
        content_type: str | None = None,
        *,
        read_seconds: float | None = ANSWER_SECONDS,
    ) -> Any:
        """Return the answer before its body was read; raises where it isn't one of success."""
        headers = {"Accept": "application/json"}
        if content_type:
            headers["Content-Type"] = content_type
        text = None if body is None else json.dumps(body)
        request = self.api.param_serialize(
            method, path, query_params=list(query.items()), header_params=headers, body=text,
            auth_settings=["BearerToken"],
        )  # fmt: skip
        response = self._send(request, (CONNECT_SECONDS, read_seconds), path)
        try:
            yield response
        except urllib3.exceptions.HTTPError as error:
            raise ClusterError(unreachable(self.label, self.server, plain_cause(error))) from None
        finally:
            response.release_conn()

    def _send(self, request: Any, timeout: tuple[float, float | None], path: str) -> Any:
        method, url, headers, body, _ = request
        try:
            response = self.api.rest_client.pool_manager.request(
                method, url, headers=headers, body=body, preload_content=False,
                timeout=urllib3.Timeout(connect=timeout[0], read=timeout[1]), retries=False, redirect=False,
            )  # fmt: skip
            if response.status < 400:
                return response
            answer = parse_answer(response.data)
        except urllib3.exceptions.HTTPError as error:
            raise ClusterError(unreachable(self.label, self.server, plain_cause(error))) from None
        raise RefusedError(response.status, answer, path, self.label)

    @property
    def server(self) -> str:
        """Return the server's URL."""
        return str(self.api.configuration.host)


def connect(target: Target, environment: Mapping[str, str] = os.environ) -> Cluster:
    """Connect with the kubeconfig that the user means, or as a pod of the cluster."""
    paths = kubeconfigs.files(target.kubeconfig, environment)
    if not any(path.is_file() for path in paths):
        if not target.kubeconfig and "KUBERNETES_SERVICE_HOST" in environment and os.path.isdir(_SERVICE_ACCOUNT):
            return _inside(target)
        raise ClusterError(no_kubeconfig(paths))
    try:
        known = kubeconfigs.read(paths)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ClusterError(f"the kubeconfig can't be read: {_one_line(error)}") from None
    context = known.context(target.context)
    if context is None:
        raise ClusterError(no_context(target.context or known.current, [c.name for c in known.contexts]))
    api = _load([str(path) for path in paths if path.is_file()], context.name)
    return Cluster(api, f"the cluster of context {context.name}", target.namespace or context.namespace, inside=False)


def _load(paths: Iterable[str], context: str) -> client.ApiClient:
    try:
        api_client: client.ApiClient = config.new_client_from_config(  # type: ignore[no-untyped-call]
            os.pathsep.join(paths), context, persist_config=False
        )
    except (config.ConfigException, OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterError(f"context {context} of the kubeconfig can't be used: {_one_line(error)}") from None
    return api_client


def _inside(target: Target) -> Cluster:
    configuration = client.Configuration()
    try:
        config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        with open(f"{_SERVICE_ACCOUNT}/namespace", encoding="utf-8") as file:
            own = file.read().strip()
    except (config.ConfigException, OSError) as error:
        raise ClusterError(f"the pod's service account can't be used: {_one_line(error)}") from None
    return Cluster(client.ApiClient(configuration), "this cluster", target.namespace or own, inside=True)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
