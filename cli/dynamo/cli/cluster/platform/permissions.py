"""What a user must be allowed to do for a chart to be installed, read out of the manifests. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dynamo.operator.kube.resources import Resource

Live = Mapping[str, Any]
_OF_HELM: Final = ("get", "create", "patch")
_OF_STORAGE: Final = ("get", "list", "create", "update", "delete")
_ROLES: Final = ("Role", "ClusterRole")


class Access(NamedTuple):
    """One thing to be allowed; an empty namespace means the whole cluster."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        what = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {what}{f' in namespace {self.namespace}' if self.namespace else ''}"

    def review(self) -> dict[str, Any]:
        """Return the question as the API server is asked."""
        resource, _, part = self.resource.partition("/")
        wanted = {"verb": self.verb, "group": self.group, "resource": resource, "subresource": part}
        wanted |= {"namespace": self.namespace, "name": self.name}
        attributes = {key: value for key, value in wanted.items() if value or key == "group"}
        return {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }


EVERYTHING: Final = Access("*", "*", "*")
"""An administrator; then nothing else has to be asked."""


def for_helm(namespace: str) -> list[Access]:
    """Return what keeping helm's own records takes."""
    return [Access(verb, "", "secrets", namespace) for verb in _OF_STORAGE]


def for_objects(
    manifests: Iterable[Live], resource_of: Callable[[Live], tuple[Resource, bool]], namespace: str
) -> list[Access]:
    """Return what it takes to get, create and patch each kind where it goes."""
    accesses: list[Access] = []
    for manifest in manifests:
        resource, namespaced = resource_of(manifest)
        place = str(manifest["metadata"].get("namespace") or namespace) if namespaced else ""
        accesses += [Access(verb, resource.group, resource.plural, place) for verb in _OF_HELM]
    return list(dict.fromkeys(accesses))


def for_roles(manifests: Iterable[Live], namespace: str) -> list[Access]:
    """Return what is granted, which must be held: otherwise the API server refuses the role."""
    accesses = [access for m in manifests if m.get("kind") in _ROLES for access in _granted(m, namespace)]
    return list(dict.fromkeys(accesses))


def _granted(role: Live, namespace: str) -> Iterator[Access]:
    place = str(role["metadata"].get("namespace") or namespace) if role["kind"] == "Role" else ""
    for rule in role.get("rules") or []:
        for group in rule.get("apiGroups") or []:
            for resource in rule.get("resources") or []:
                for verb in rule.get("verbs") or []:
                    for name in rule.get("resourceNames") or [""]:
                        yield Access(verb, group, resource, place, name)


def missing_sentence(missing: Sequence[Access], label: str, limit: int = 4) -> str:
    """Name the first few, and the way out."""
    grouped: dict[Access, list[str]] = {}
    for access in missing:
        grouped.setdefault(access._replace(verb="", name=""), []).append(access.verb)
    listed = [access._replace(verb=", ".join(dict.fromkeys(verbs))) for access, verbs in grouped.items()]
    more = f"; and {len(listed) - limit} kinds more" if len(listed) > limit else ""
    return (
        f"{label} doesn't allow you what the installation needs: {'; '.join(map(str, listed[:limit]))}{more}. Ask an "
        "administrator to run this, or install for some namespaces only: --set operator.rbac.scope=namespace,"
        "operator.rbac.aggregate=false,crds.install=false (the CRD must be there then)"
    )
