"""A user's `podTemplate`: laid over the template that we make, and held to the platform's policy. Pure.

`overlay` merges as `kubectl patch` does: objects field by field, the lists below by the key of their items, every
other list is replaced. `$patch: delete` removes an item, `$patch: replace` replaces an object. Of alternatives (a
probe's handler, a volume's source, a variable's value) the user's takes the place of ours: nobody could remove ours,
since the API server drops nulls. `check_template` refuses what can't be merged with the field's path, because the API
server would answer a malformed template with an internal error.

`refusals` asks the whole template, with the user's part over ours, by Kubernetes' Pod Security Standards. Beyond them
no template names a node or another account than the pipeline's own: whoever may write pipelines must not act as
somebody else by that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from dynamo.operator.manifests.context import PodTemplatePolicy, RenderError

_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
_DIRECTIVE = "$patch"
_ALTERNATIVES = (
    frozenset({"httpGet", "exec", "tcpSocket", "grpc"}),
    frozenset({"value", "valueFrom"}),
)

Json = dict[str, Any]


def overlay(base: Mapping[str, Any], patch: Mapping[str, Any], path: str = "") -> Json:
    """Return a copy of `base` with `patch` over it."""
    if patch.get(_DIRECTIVE) == "replace":
        return {k: v for k, v in patch.items() if k != _DIRECTIVE}
    merged = {k: v for k, v in base.items() if not _is_alternative(k, patch)}
    for name, value in patch.items():
        if name == _DIRECTIVE:
            continue
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value, name, f"{path}.{name}" if path else name)
    return merged


def check_template(template: Mapping[str, Any], path: str, main: str) -> None:
    """Raise `RenderError` for what the API server answers with an internal error, or what lacks our container."""
    metadata, spec = _mapping(template, "metadata", path), _mapping(template, "spec", path)
    for name in ("labels", "annotations"):
        for key, value in _mapping(metadata, name, f"{path}.metadata").items():
            if not isinstance(value, str):
                raise RenderError(f"{path}.metadata.{name}.{key}", "must be a string: quote it")
    if not any(c.get("name") == main for c in _items(spec.get("containers", []), f"{path}.spec.containers")):
        raise RenderError(f"{path}.spec.containers", f"must keep the container {main!r}: change it, don't remove it")
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(_items(spec.get(kind, []), f"{path}.spec.{kind}")):
            _check_container(container, f"{path}.spec.{kind}[{index}]")


def _check_container(container: Mapping[str, Any], path: str) -> None:
    if not isinstance(container.get("name"), str):
        raise RenderError(f"{path}.name", "is required and must be a string")
    if not container.get("image"):
        raise RenderError(f"{path}.image", f"is required, since {container['name']!r} is a container of yours")
    _check_variables(container, path)


def _check_variables(container: Mapping[str, Any], path: str) -> None:
    seen: set[str] = set()
    for index, variable in enumerate(_items(container.get("env", []), f"{path}.env")):
        place, name = f"{path}.env[{index}]", variable.get("name")
        if not isinstance(name, str) or name in seen:
            raise RenderError(f"{place}.name", "must be a string that occurs once")
        if not isinstance(variable.get("value", ""), str):
            raise RenderError(f"{place}.value", "must be a string: quote it")
        seen.add(name)


def _merged(base: Any, value: Any, name: str, path: str) -> Any:
    if isinstance(value, dict):
        if base is not None and not isinstance(base, dict):
            raise RenderError(path, "must be a list, as in core/v1 PodTemplateSpec")
        return overlay(base or {}, value, path)
    if isinstance(base, dict):
        raise RenderError(path, "must be a mapping, as in core/v1 PodTemplateSpec")
    if isinstance(base, list) and not isinstance(value, list):
        raise RenderError(path, "must be a list, as in core/v1 PodTemplateSpec")
    if isinstance(value, list) and name in _KEYS:
        return _merged_list(base or [], value, _KEYS[name], path)
    return value


def _merged_list(base: list[Json], patch: list[Any], key: str, path: str) -> list[Json]:
    """Merge: ours first and in our order, then what is new, so that the result is the same each time."""
    items: dict[Any, Json] = {item[key]: item for item in base}
    for index, item in enumerate(_items(patch, path)):
        place = f"{path}[{index}]"
        if key not in item:
            raise RenderError(f"{place}.{key}", "is required: items are merged by it")
        name = item[key]
        if isinstance(name, dict | list):
            raise RenderError(f"{place}.{key}", "must be a single value")
        if item.get(_DIRECTIVE) == "delete":
            items.pop(name, None)
        else:
            before = items.get(name, {})
            if path.endswith(".volumes") and not before.keys() <= item.keys():
                before = {}
            items[name] = overlay(before, item, place)
    return list(items.values())


def _is_alternative(name: str, patch: Mapping[str, Any]) -> bool:
    return name not in patch and any(name in group and group & patch.keys() for group in _ALTERNATIVES)


def _mapping(value: Mapping[str, Any], name: str, path: str) -> Mapping[str, Any]:
    mapping = value.get(name, {})
    if not isinstance(mapping, dict):
        raise RenderError(f"{path}.{name}", "must be a mapping, as in core/v1 PodTemplateSpec")
    return mapping


def _items(value: Any, path: str) -> Iterator[Json]:
    if not isinstance(value, list):
        raise RenderError(path, "must be a list, as in core/v1 PodTemplateSpec")
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise RenderError(f"{path}[{index}]", "must be a mapping, as in core/v1 PodTemplateSpec")
        yield item


ReadOnly = Mapping[str, Any]
Refusal = tuple[str, str]
"""A path within the template, and what is wrong there."""


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


def refusals(
    template: ReadOnly, policy: PodTemplatePolicy, account: str, accounts: Collection[str] = ()
) -> list[Refusal]:
    """Return some of what the policy refuses; `account` is the pipeline's own, `accounts` others that are allowed."""
    if policy is PodTemplatePolicy.UNRESTRICTED:
        return []
    problems = [*_baseline(template, {account, *accounts})]
    if policy is PodTemplatePolicy.RESTRICTED:
        problems += _restricted(template)
    return problems[:_NAMED]


def _baseline(template: ReadOnly, accounts: Collection[str]) -> Iterator[Refusal]:
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
    for volume in _mappings(spec, "volumes"):
        if "hostPath" in volume:
            yield f"spec.volumes[{_cut(volume.get('name', ''))}].hostPath", "is the node's own"
    yield from _switched(template)
    yield from _context(_of(spec, "securityContext"), "spec.securityContext")
    for path, container in _containers(spec):
        yield from _container(container, path)


def _switched(template: ReadOnly) -> Iterator[Refusal]:
    """Yield what switches the kernel's guards off."""
    for key, value in _of(_of(template, "metadata"), "annotations").items():
        if key.startswith(_APPARMOR) and not str(value).startswith(("runtime/default", "localhost/")):
            yield f"metadata.annotations.{_cut(key)}", "switches AppArmor off"
    for sysctl in _mappings(_of(_of(template, "spec"), "securityContext"), "sysctls"):
        if sysctl.get("name") not in _SYSCTLS:
            yield "spec.securityContext.sysctls", f"{_cut(sysctl.get('name'))} isn't safe for other pods"


def _container(container: ReadOnly, path: str) -> Iterator[Refusal]:
    context = _of(container, "securityContext")
    if context.get("privileged"):
        yield f"{path}.securityContext.privileged", "is root on the node"
    if context.get("procMount") not in (None, "Default"):
        yield f"{path}.securityContext.procMount", "must be Default"
    for name in sorted(map(str, set(_texts(_of(context, "capabilities"), "add")) - _CAPABILITIES)):
        yield f"{path}.securityContext.capabilities.add", f"{_cut(name)} isn't allowed"
    for port in _mappings(container, "ports"):
        if port.get("hostPort"):
            yield f"{path}.ports", f"hostPort {_cut(port['hostPort'])} is the node's own"
    for handler in ("livenessProbe", "readinessProbe", "startupProbe"):
        for kind in ("httpGet", "tcpSocket"):
            if _of(_of(container, handler), kind).get("host"):
                yield f"{path}.{handler}.{kind}.host", "has the node ask somebody else: leave it out"
    yield from _context(context, f"{path}.securityContext")


def _context(context: ReadOnly, path: str) -> Iterator[Refusal]:
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


def _restricted(template: ReadOnly) -> Iterator[Refusal]:
    spec = _of(template, "spec")
    pod = _of(spec, "securityContext")
    for volume in _mappings(spec, "volumes"):
        for kind in sorted(volume.keys() - _VOLUMES - {"name"}):
            yield f"spec.volumes[{_cut(volume.get('name', ''))}].{_cut(kind)}", "isn't a kind of volume that is allowed"
    if pod.get("runAsUser") == 0:
        yield "spec.securityContext.runAsUser", "must not be 0"
    for path, container in _containers(spec):
        yield from _unlocked(_of(container, "securityContext"), pod, f"{path}.securityContext")


def _unlocked(context: ReadOnly, pod: ReadOnly, place: str) -> Iterator[Refusal]:
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


def _containers(spec: ReadOnly) -> Iterator[tuple[str, ReadOnly]]:
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for container in _mappings(spec, kind):
            yield f"spec.{kind}[{_cut(container.get('name', ''))}]", container


def _of(value: ReadOnly, name: str) -> ReadOnly:
    mapping = value.get(name)
    return mapping if isinstance(mapping, Mapping) else {}


def _mappings(value: ReadOnly, name: str) -> list[ReadOnly]:
    items = value.get(name)
    return [item for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []


def _texts(value: ReadOnly, name: str) -> list[str]:
    items = value.get(name)
    return [str(item) for item in items] if isinstance(items, list) else []


def _cut(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
