"""What a pod template may ask for: `refusals(template, policy, accounts)`, by Kubernetes' Pod Security Standards. Pure.

Asked of the whole template, with the user's part laid over ours. Beyond the standards no template names a
node or another account than the pipeline's own: whoever may write pipelines must not act as somebody else by that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from typing import Any, Final

Json = Mapping[str, Any]
Refusal = tuple[str, str]
"""A path within the template, and what is wrong there."""


class PodTemplatePolicy(StrEnum):
    """Levels of what is refused."""

    UNRESTRICTED = "unrestricted"
    BASELINE = "baseline"
    RESTRICTED = "restricted"


_CAPABILITIES: Final = frozenset(
    {"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
     "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"}
)  # fmt: skip
_SYSCTLS: Final = frozenset(
    {"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start",
     "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports",
     "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
     "net.ipv4.tcp_keepalive_probes"}
)  # fmt: skip
_SELINUX: Final = frozenset({"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"})
_VOLUMES: Final = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
)
_HOST: Final = ("hostNetwork", "hostPID", "hostIPC")
_APPARMOR: Final = "container.apparmor.security.beta.kubernetes.io/"
_NAMED: Final = 5
"""Refusals in one message."""


def refusals(template: Json, policy: PodTemplatePolicy, account: str, accounts: Collection[str] = ()) -> list[Refusal]:
    """Return some of what the policy refuses; `account` is the pipeline's own, `accounts` others that are allowed."""
    if policy is PodTemplatePolicy.UNRESTRICTED:
        return []
    problems = [*_baseline(template, {account, *accounts})]
    if policy is PodTemplatePolicy.RESTRICTED:
        problems += _restricted(template)
    return problems[:_NAMED]


def _baseline(template: Json, accounts: Collection[str]) -> Iterator[Refusal]:
    spec = _of(template, "spec")
    yield from ((f"spec.{name}", "is the node's own") for name in _HOST if spec.get(name))
    if spec.get("nodeName"):
        yield "spec.nodeName", "passes the scheduler by: use nodeSelector or affinity"
    for name in ("serviceAccountName", "serviceAccount"):
        if spec.get(name) and spec[name] not in accounts:
            yield (
                f"spec.{name}",
                f"{_cut(spec[name])} isn't the pipeline's own (pipelines.serviceAccounts allows others)",
            )
    for volume in _items(spec, "volumes"):
        if "hostPath" in volume:
            yield f"spec.volumes[{_cut(volume.get('name', ''))}].hostPath", "is the node's own"
    yield from _switched(template)
    yield from _context(_of(spec, "securityContext"), "spec.securityContext")
    for path, container in _containers(spec):
        yield from _container(container, path)


def _switched(template: Json) -> Iterator[Refusal]:
    """Yield what switches the kernel's guards off."""
    for key, value in _of(_of(template, "metadata"), "annotations").items():
        if key.startswith(_APPARMOR) and not str(value).startswith(("runtime/default", "localhost/")):
            yield f"metadata.annotations.{_cut(key)}", "switches AppArmor off"
    for sysctl in _items(_of(_of(template, "spec"), "securityContext"), "sysctls"):
        if sysctl.get("name") not in _SYSCTLS:
            yield "spec.securityContext.sysctls", f"{_cut(sysctl.get('name'))} isn't safe for other pods"


def _container(container: Json, path: str) -> Iterator[Refusal]:
    context = _of(container, "securityContext")
    if context.get("privileged"):
        yield f"{path}.securityContext.privileged", "is root on the node"
    if context.get("procMount") not in (None, "Default"):
        yield f"{path}.securityContext.procMount", "must be Default"
    for name in sorted(map(str, set(_texts(_of(context, "capabilities"), "add")) - _CAPABILITIES)):
        yield f"{path}.securityContext.capabilities.add", f"{_cut(name)} isn't allowed"
    for port in _items(container, "ports"):
        if port.get("hostPort"):
            yield f"{path}.ports", f"hostPort {_cut(port['hostPort'])} is the node's own"
    for handler in ("livenessProbe", "readinessProbe", "startupProbe"):
        for kind in ("httpGet", "tcpSocket"):
            if _of(_of(container, handler), kind).get("host"):
                yield f"{path}.{handler}.{kind}.host", "has the node ask somebody else: leave it out"
    yield from _context(context, f"{path}.securityContext")


def _context(context: Json, path: str) -> Iterator[Refusal]:
    """Yield what is wrong with a security context, a pod's or a container's."""
    if _of(context, "windowsOptions").get("hostProcess"):
        yield f"{path}.windowsOptions.hostProcess", "is the node's own"
    if _of(context, "seccompProfile").get("type") == "Unconfined":
        yield f"{path}.seccompProfile.type", "must be RuntimeDefault or Localhost"
    if _of(context, "appArmorProfile").get("type") == "Unconfined":
        yield f"{path}.appArmorProfile.type", "must be RuntimeDefault or Localhost"
    options = _of(context, "seLinuxOptions")
    if options.get("type", "") not in _SELINUX or options.get("user") or options.get("role"):
        yield f"{path}.seLinuxOptions", "may name only a container's type"


def _restricted(template: Json) -> Iterator[Refusal]:
    spec = _of(template, "spec")
    pod = _of(spec, "securityContext")
    for volume in _items(spec, "volumes"):
        for kind in sorted(volume.keys() - _VOLUMES - {"name"}):
            yield f"spec.volumes[{_cut(volume.get('name', ''))}].{_cut(kind)}", "isn't a kind of volume that is allowed"
    if pod.get("runAsUser") == 0:
        yield "spec.securityContext.runAsUser", "must not be 0"
    for path, container in _containers(spec):
        yield from _unlocked(_of(container, "securityContext"), pod, f"{path}.securityContext")


def _unlocked(context: Json, pod: Json, place: str) -> Iterator[Refusal]:
    """Yield what a container's security context lacks, the pod's considered."""
    if context.get("allowPrivilegeEscalation") is not False:
        yield f"{place}.allowPrivilegeEscalation", "must be false"
    if context.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
        yield f"{place}.runAsNonRoot", "must be true"
    if context.get("runAsUser") == 0:
        yield f"{place}.runAsUser", "must not be 0"
    if _of(context, "seccompProfile").get("type", _of(pod, "seccompProfile").get("type")) not in _CONFINED:
        yield f"{place}.seccompProfile.type", "must be RuntimeDefault or Localhost"
    capabilities = _of(context, "capabilities")
    if "ALL" not in _texts(capabilities, "drop"):
        yield f"{place}.capabilities.drop", "must have ALL"
    if set(_texts(capabilities, "add")) - {"NET_BIND_SERVICE"}:
        yield f"{place}.capabilities.add", "may have NET_BIND_SERVICE only"


_CONFINED: Final = ("RuntimeDefault", "Localhost")


def _containers(spec: Json) -> Iterator[tuple[str, Json]]:
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for container in _items(spec, kind):
            yield f"spec.{kind}[{_cut(container.get('name', ''))}]", container


def _of(value: Json, name: str) -> Json:
    mapping = value.get(name)
    return mapping if isinstance(mapping, Mapping) else {}


def _items(value: Json, name: str) -> list[Json]:
    items = value.get(name)
    return [item for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []


def _texts(value: Json, name: str) -> list[str]:
    items = value.get(name)
    return [str(item) for item in items] if isinstance(items, list) else []


def _cut(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
