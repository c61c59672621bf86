"""An API server in memory on a real port: enough of Kubernetes for the reconciler, and faults on demand.

An emulator, not the real thing: it merges whole applies, knows no field owners, defaults or schemas.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from collections.abc import Callable
from typing import Any

from aiohttp import web

from dynamo.operator.kube.resources import CHILDREN, EVENTS, LEASES, PIPELINES, PODS, ROUTES, SECRETS, Resource

Object = dict[str, Any]
Fault = Callable[[str, str], web.Response | None]
_PLURALS = {r.plural: r for r in (*CHILDREN, PODS, PIPELINES, LEASES, ROUTES, SECRETS, EVENTS)}


def refusal(code: int, message: str, reason: str = "", **headers: str) -> web.Response:
    """As an API server words it."""
    status = {"kind": "Status", "status": "Failure", "message": message, "reason": reason, "code": code}
    return web.json_response(status, status=code, headers=headers)


class ApiServer:
    """`fault(method, path)` may answer in the server's place; `writes` has every mutation that was let through.

    With a `token`, whoever sends another one is refused. Kinds in `mute` are watched in vain.
    """

    def __init__(self, page: int = 500) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.writes: list[tuple[str, str]] = []
        self.authors: list[str] = []
        """Whose write each is: the token."""
        self.requests: list[tuple[str, str]] = []
        self.events: list[Object] = []
        """Events apart from the objects: they stay when their pipeline has gone."""
        self.fault: Fault = lambda method, path: None
        self.token: str | None = None
        self.mute: set[str] = set()
        self.gateway_api = False
        self.page = page
        self._numbers = itertools.count(1)
        self.url = ""
        self.watchers: list[tuple[str, asyncio.Queue[Object | None]]] = []
        self.history: list[tuple[int, str, Object]] = []

    async def __aenter__(self) -> ApiServer:
        app = web.Application()
        app.router.add_route("*", "/{rest:.*}", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end_watches()
        await self._runner.cleanup()

    def take_over(self, other: ApiServer) -> None:
        """Have the objects, the Events and the past of another; the writes are this one's own."""
        self.objects, self.events, self.history = copy.deepcopy((other.objects, other.events, other.history))
        self._numbers = itertools.count(next(other._numbers))

    def put(self, body: Object, namespace: str = "serving") -> Object:
        """An object that somebody else made."""
        copy_of_it = copy.deepcopy(body)
        metadata = copy_of_it["metadata"]
        metadata.setdefault("namespace", namespace)
        metadata.setdefault("uid", f"uid-{next(self._numbers)}")
        metadata["resourceVersion"] = str(next(self._numbers))
        known = (copy_of_it["kind"], namespace, metadata["name"]) in self.objects
        self.objects[copy_of_it["kind"], namespace, metadata["name"]] = copy_of_it
        self.tell(copy_of_it["kind"], "MODIFIED" if known else "ADDED", copy_of_it)
        return copy_of_it

    def tell(self, kind: str, event: str, body: Object) -> None:
        """Watchers of a kind hear of it, and those that come later with an older resourceVersion."""
        version = int(body["metadata"]["resourceVersion"])
        self.history.append((version, kind, {"type": event, "object": copy.deepcopy(body)}))
        for watched, queue in self.watchers:
            if watched == kind and kind not in self.mute:
                queue.put_nowait({"type": event, "object": copy.deepcopy(body)})

    def break_watches(self, kind: str, event: Object) -> None:
        """Its watch streams deliver this event (an ERROR; `CUT` resets the connection)."""
        for watched, queue in self.watchers:
            if watched == kind:
                queue.put_nowait(event)

    def end_watches(self) -> None:
        """All watch streams end, as they do every few minutes."""
        for _, queue in self.watchers:
            queue.put_nowait(None)

    def remove(self, kind: str, name: str, namespace: str = "serving") -> None:
        """Somebody deletes an object."""
        removed = self.objects.pop((kind, namespace, name))
        removed["metadata"]["resourceVersion"] = str(next(self._numbers))
        self.tell(kind, "DELETED", removed)

    async def _watch(self, request: web.Request, resource: Resource) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        queue: asyncio.Queue[Object | None] = asyncio.Queue()
        entry = (resource.kind, queue)
        since = int(request.query.get("resourceVersion") or 0)
        for version, kind, past in self.history:
            if kind == resource.kind and version > since:
                queue.put_nowait(past)
        self.watchers.append(entry)
        end = asyncio.get_running_loop().time() + float(request.query.get("timeoutSeconds") or 3600)
        try:
            while (event := await _before(end, queue)) is not None:
                if event["type"] == "CUT" and request.transport is not None:
                    request.transport.abort()
                    break
                await stream.write(json.dumps(event).encode() + b"\n")
        except ConnectionError:
            pass
        finally:
            self.watchers.remove(entry)
        return stream

    def one(self, kind: str, name: str, namespace: str = "serving") -> Object:
        """A live object."""
        return self.objects[kind, namespace, name]

    def names(self, kind: str) -> list[str]:
        return sorted(name for k, _, name in self.objects if k == kind)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path))
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return refusal(401, "Unauthorized", "Unauthorized")
        failed = self.fault(request.method, request.path)
        if failed is not None:
            return failed
        discovery = _discovery(request.path)
        if discovery is not None:
            return web.json_response(discovery)
        resource, namespace, name, sub = _parsed(request.path)
        if resource is ROUTES and not self.gateway_api:
            return refusal(404, "the server could not find the requested resource", "NotFound")
        if request.query.get("watch") == "true":
            return await self._watch(request, resource)
        if name is None and request.method == "GET":
            return self._list(resource, namespace, request.query)
        body = json.loads(await request.text() or "null")
        if request.method == "POST":
            name = body["metadata"]["name"]
        key = (resource.kind, namespace or "", name or "")
        live = self.objects.get(key)
        if request.method == "GET":
            return web.json_response(live) if live else _missing(key)
        return self._write(request, key, live, body, sub)

    def _list(self, resource: Resource, namespace: str | None, query: Any) -> web.Response:
        wanted = dict(part.split("=") for part in query.get("labelSelector", "").split(",") if "=" in part)
        items = [
            {k: v for k, v in entry.items() if k not in ("kind", "apiVersion")}
            for (kind, where, _), entry in sorted(self.objects.items())
            if kind == resource.kind
            and namespace in (None, where)
            and wanted.items() <= entry["metadata"].get("labels", {}).items()
        ]
        start = int(query.get("continue", 0))
        size = min(int(query.get("limit", self.page)), self.page)
        more = {"continue": str(start + size)} if start + size < len(items) else {}
        more["resourceVersion"] = str(next(self._numbers))
        return web.json_response({"metadata": more, "items": items[start : start + size]})

    def _write(self, request: web.Request, key: tuple[str, str, str], live: Object | None, body: Any,
               sub: str | None) -> web.Response:  # fmt: skip
        wanted_uid = ((body or {}).get("preconditions") or (body or {}).get("metadata") or {}).get("uid")
        if live and wanted_uid and wanted_uid != live["metadata"]["uid"]:
            return refusal(409, "the uid in the precondition differs", "Conflict")
        if request.method == "DELETE":
            if not live:
                return _missing(key)
            if (body or {}).get("preconditions", {}).get("resourceVersion", live["metadata"]["resourceVersion"]) != (
                live["metadata"]["resourceVersion"]
            ):
                return refusal(409, "the resourceVersion in the precondition differs", "Conflict")
            self.remove(key[0], key[2], key[1])
            self._note(request)
            return web.json_response({"kind": "Status"})
        if request.method == "POST" and live:
            return refusal(409, "already exists", "AlreadyExists")
        seen = (body or {}).get("metadata", {}).get("resourceVersion")
        if request.method == "PUT" and live and seen != live["metadata"]["resourceVersion"]:
            return refusal(409, "the object has been modified", "Conflict")
        applies = request.content_type == "application/apply-patch+yaml"
        if request.method == "PATCH" and live and seen not in (None, live["metadata"]["resourceVersion"]):
            return refusal(409, "the object has been modified", "Conflict")
        if not live and (wanted_uid or (request.method == "PATCH" and not applies)):
            return _missing(key)
        return self._store(request, key, live, body, sub)

    def _store(self, request: web.Request, key: tuple[str, str, str], live: Object | None, body: Object,
               sub: str | None) -> web.Response:  # fmt: skip
        new = _merged(live or {}, body) if request.content_type.endswith("patch+json") else copy.deepcopy(body)
        before = (live or {}).get("metadata", {})
        if sub == "status":
            new = {**(live or {}), "status": new.get("status", {}), "metadata": dict(before)}
        elif live and "status" in live:
            new["status"] = live["status"]
        metadata = new["metadata"]
        metadata["uid"] = before.get("uid") or f"uid-{next(self._numbers)}"
        metadata["resourceVersion"] = str(next(self._numbers))
        if key[0] == EVENTS.kind:
            self.events.append(new)
            self._note(request)
            return web.json_response(new)
        if key[0] == "Deployment":
            metadata["generation"] = before.get("generation", 0) + (new["spec"] != (live or {}).get("spec"))
        self.objects[key] = new
        self.tell(key[0], "MODIFIED" if live else "ADDED", new)
        self._note(request)
        return web.json_response(new)

    def _note(self, request: web.Request) -> None:
        self.writes.append((request.method, request.path))
        self.authors.append(request.headers.get("Authorization", "").removeprefix("Bearer "))

    def play(self) -> None:
        """Kubernetes' controllers: pods for StatefulSets, ready Deployments, garbage collection."""
        for (kind, namespace, name), entry in list(self.objects.items()):
            owners = {o["uid"] for o in entry["metadata"].get("ownerReferences", [])}
            if owners and not owners & {o["metadata"]["uid"] for o in self.objects.values()}:
                self.remove(kind, name, namespace)
            elif kind == "Deployment":
                number = entry["spec"]["replicas"]
                status = dict.fromkeys(("readyReplicas", "updatedReplicas", "availableReplicas", "replicas"), number)
                status["observedGeneration"] = entry["metadata"].get("generation", 0)
                if entry.get("status") != status:
                    self.put({**entry, "status": status}, namespace)
            elif kind == "StatefulSet":
                self._pods(entry, namespace)

    def _pods(self, live: Object, namespace: str) -> None:
        labels, prefix = live["spec"]["template"]["metadata"]["labels"], live["metadata"]["name"]
        wanted = {f"{prefix}-{i}" for i in range(live["spec"]["replicas"])}
        for key in [k for k in self.objects if k[0] == "Pod" and k[2].rpartition("-")[0] == prefix]:
            if key[2] not in wanted:
                self.remove("Pod", key[2], namespace)
        owner = {"uid": live["metadata"]["uid"], "controller": True, "kind": "StatefulSet", "name": prefix}
        for name in wanted:
            if ("Pod", namespace, name) not in self.objects:
                self.put({
                    "apiVersion": "v1", "kind": "Pod",
                    "metadata": {"name": name, "labels": dict(labels), "ownerReferences": [owner]},
                    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
                }, namespace)  # fmt: skip


async def _before(end: float, queue: asyncio.Queue[Object | None]) -> Object | None:
    """The next event; None when the watch's time is over."""
    try:
        async with asyncio.timeout_at(end):
            return await queue.get()
    except TimeoutError:
        return None


def _discovery(path: str) -> Object | None:
    """What kopf asks for before it watches."""
    parts = path.strip("/").split("/")
    if parts == ["api"]:
        return {"versions": ["v1"]}
    if parts == ["apis"]:
        versions = sorted({r.api_version for r in _PLURALS.values() if r.group})
        results = [{"groupVersion": v, "version": v.rpartition("/")[2]} for v in versions]
        return {"groups": [{"name": f["groupVersion"].rpartition("/")[0], "versions": [f], "preferredVersion": f}
                           for f in results]}  # fmt: skip
    version = "/".join(parts[1:])
    ours = [r for r in _PLURALS.values() if r.api_version == version]
    if parts[0] not in ("api", "apis") or not ours:
        return None
    verbs = ["get", "list", "watch", "patch", "create", "delete"]
    names = [{"name": r.plural, "kind": r.kind, "singularName": r.kind.lower(), "namespaced": True, "verbs": verbs}
             for r in ours]  # fmt: skip
    if version == "v1":
        # kopf waits for this kind before it watches anything.
        names.append(
            {"name": "namespaces", "kind": "Namespace", "singularName": "", "namespaced": False, "verbs": verbs}
        )
    return {"groupVersion": version, "resources": names}


def _missing(key: tuple[str, str, str]) -> web.Response:
    return refusal(404, f"{key[0]} {key[2]!r} not found", "NotFound")


def _parsed(path: str) -> tuple[Resource, str | None, str | None, str | None]:
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = None
    if parts[0] == "namespaces":
        namespace, parts = parts[1], parts[2:]
    plural, name, sub = (*parts, None, None)[:3]
    return _PLURALS[str(plural)], namespace, name, sub


def _merged(old: Any, new: Any) -> Any:
    """A JSON merge patch."""
    if not isinstance(new, dict):
        return new
    merged_now = dict(old) if isinstance(old, dict) else {}
    for key, value in new.items():
        if value is None:
            merged_now.pop(key, None)
        else:
            merged_now[key] = _merged(merged_now.get(key), value)
    return merged_now
