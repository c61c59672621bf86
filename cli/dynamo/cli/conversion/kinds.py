"""Documents of other systems, each kind read into a draft of a pipeline. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dynamo.cli.conversion.draft import ConversionError, Draft, items, mapping
from dynamo.cli.conversion.pods import main_container, read_container, read_environment, server_in
from dynamo.cli.conversion.server_arguments import Server, server_of

_MODES: Final = {"kv": "kv", "round-robin": "round-robin", "random": "random"}
_FRONTEND, _PLANNERS = "frontend", ("planner", "epp")
_OF_SERVICE: Final = {
    "componentType", "type", "name", "replicas", "resources", "envs", "env", "extraPodSpec", "podTemplate", "multinode",
    "sharedMemory", "sharedMemorySize", "envFromSecret", "dynamoNamespace", "subComponentType", "serviceName", "labels",
    "annotations",
}  # fmt: skip
_KUBEAI_ENGINES: Final = {"VLLM": "vllm", "OLlama": "", "FasterWhisper": "", "Infinity": ""}


def graph_deployment(document: dict[str, Any]) -> Draft:
    """Read NVIDIA Dynamo's DynamoGraphDeployment: `services` by name (v1alpha1) or `components` (v1beta1)."""
    draft, spec = _begun(document), mapping(document.get("spec"))
    services = [(str(name), mapping(service)) for name, service in mapping(spec.get("services")).items()]
    services += [(str(mapping(part).get("name")), mapping(part)) for part in items(spec.get("components"))]
    for name, service in services:
        _graph_part(name, service, [*items(spec.get("envs")), *items(spec.get("env"))], draft)
    draft.left_out(spec, {"services", "components", "envs", "env", "backendFramework"}, "spec")
    return draft


def _graph_part(name: str, service: dict[str, Any], shared: list[Any], draft: Draft) -> None:
    path = f"spec.{name}"
    pod = mapping(service.get("extraPodSpec")) or mapping(mapping(service.get("podTemplate")).get("spec"))
    container = mapping(pod.get("mainContainer")) or main_container(pod)
    own = [*shared, *items(service.get("envs")), *items(service.get("env")), *items(container.get("env"))]
    container = {**container, "env": own, "resources": service.get("resources") or container.get("resources")}
    kind, server = str(service.get("componentType") or service.get("type") or ""), server_in(container)
    if kind == _FRONTEND or server.kind == _FRONTEND:
        _graph_frontend(service, container, server, draft, path)
        return
    if kind in _PLANNERS or server.kind in _PLANNERS:
        draft.remark(path, "has no counterpart: scale components with an autoscaler of Kubernetes")
        return
    fields = {"name": name, **read_container(container, pod, draft, path, server=server)}
    _known_engine(fields, path)
    if (role := str(service.get("subComponentType") or kind)) in ("prefill", "decode"):
        fields["role"] = role
    if (replicas := service.get("replicas")) is not None:
        fields["replicas"] = replicas
    if nodes := mapping(service.get("multinode")).get("nodeCount"):
        fields["nodes"] = nodes
    memory = mapping(service.get("sharedMemory")).get("size") or service.get("sharedMemorySize")
    if memory and str(memory) != "0":
        fields["sharedMemory"] = str(memory)
    if secret := service.get("envFromSecret"):
        fields["envFrom"] = [{"secretRef": {"name": str(secret)}}]
    draft.left_out(service, _OF_SERVICE, path)
    draft.component(fields)


def _graph_frontend(
    service: dict[str, Any], container: dict[str, Any], server: Server, draft: Draft, path: str
) -> None:
    frontend = draft.spec["frontend"]
    if (replicas := service.get("replicas")) is not None:
        frontend["replicas"] = replicas
    read_environment(container.get("env"), {}, draft, path)
    words = list(server.words)
    for place, word in enumerate(words):
        if word.startswith("--router-mode"):
            mode = word.partition("=")[2] or (words[place + 1] if place + 1 < len(words) else "")
            frontend.setdefault("router", {})["mode"] = mode
    _mode(draft, path)
    draft.left_out(service, _OF_SERVICE, path)


def _mode(draft: Draft, path: str) -> None:
    router = mapping(draft.spec["frontend"].get("router"))
    if (mode := router.get("mode")) is not None and mode not in _MODES:
        draft.remark(f"{path}.routerMode", f"{str(mode)[:40]!r} has no counterpart: round-robin")
        draft.spec["frontend"].pop("router")


def llm_inference_service(document: dict[str, Any]) -> Draft:
    """Read KServe's LLMInferenceService: one model, its template, and a template for prefill."""
    draft, spec = _begun(document), mapping(document.get("spec"))
    model = mapping(spec.get("model"))
    draft.model(str(model.get("uri") or "") or None, "spec.model.uri")
    if model.get("name"):
        draft.spec["model"]["name"] = str(model["name"])
    parts = [("decode" if spec.get("prefill") else "", spec, "spec")]
    if spec.get("prefill"):
        parts.append(("prefill", mapping(spec["prefill"]), "spec.prefill"))
    for role, part, path in parts:
        pod = mapping(part.get("template"))
        container = main_container(pod)
        server = server_in(container)
        server = Server(server.kind or "vllm", server.words)  # its default runtime
        fields = {"name": role or "worker", **read_container(container, pod, draft, f"{path}.template", server=server)}
        if role:
            fields["role"] = role
        if (replicas := part.get("replicas")) is not None:
            fields["replicas"] = replicas
        parallel = mapping(part.get("parallelism"))
        if parallel.get("tensor"):
            fields["tensorParallelSize"] = parallel["tensor"]
        draft.left_out(parallel, {"tensor"}, f"{path}.parallelism")
        draft.component(fields)
    draft.left_out(spec, {"model", "template", "prefill", "replicas", "parallelism"}, "spec")
    return draft


def kubeai_model(document: dict[str, Any]) -> Draft:
    """Read KubeAI's Model."""
    draft, spec = _begun(document), mapping(document.get("spec"))
    engine = _KUBEAI_ENGINES.get(str(spec.get("engine")), "")
    if not engine:
        raise ConversionError(f"spec.engine: {str(spec.get('engine'))[:40]!r} is none that a pipeline has; VLLM is")
    fields: dict[str, Any] = {"engine": engine}
    container = {
        "args": spec.get("args"),
        "env": [{"name": k, "value": v} for k, v in mapping(spec.get("env")).items()],
    }
    fields |= read_container(
        container, {}, draft, "spec", server=Server(engine, server_of([], items(spec.get("args"))).words)
    )
    draft.model(str(spec.get("url") or "") or None, "spec.url")
    draft.spec["model"]["name"] = draft.name
    profile, _, count = str(spec.get("resourceProfile") or "").partition(":")
    if profile:
        fields["accelerator"] = {"resource": "amd.com/gpu" if "amd" in profile else "nvidia.com/gpu",
                                 "count": int(count) if count.isdigit() and len(count) < 4 else 1}  # fmt: skip
        draft.remark("spec.resourceProfile", f"node selectors and memory of {profile[:60]!r} are in KubeAI's values")
    if (replicas := spec.get("replicas", spec.get("minReplicas"))) is not None:
        fields["replicas"] = replicas
    if mapping(spec.get("loadBalancing")).get("strategy") == "PrefixHash":
        draft.spec["frontend"]["router"] = {"mode": "kv"}
    draft.left_out(
        spec, {"url", "engine", "args", "env", "resourceProfile", "replicas", "features", "loadBalancing"}, "spec"
    )
    draft.component(fields)
    return draft


def deployment(document: dict[str, Any]) -> Draft:
    """Read a Deployment or StatefulSet whose container is a model server."""
    draft, spec = _begun(document), mapping(document.get("spec"))
    pod = mapping(mapping(spec.get("template")).get("spec"))
    path = "spec.template.spec"
    fields = read_container(main_container(pod), pod, draft, path)
    _known_engine(fields, path)
    if (replicas := spec.get("replicas")) is not None:
        fields["replicas"] = replicas
    for container in items(pod.get("containers"))[1:]:
        draft.remark(f"{path}.containers", f"{str(mapping(container).get('name'))[:40]!r} runs beside it: left out")
    draft.component(fields)
    return draft


def compose(document: dict[str, Any]) -> Draft:
    """Read a docker-compose file: its services that are model servers."""
    draft = Draft(str(document.get("name") or "pipeline"))
    for name, service in mapping(document.get("services")).items():
        path, service = f"services.{name}", mapping(service)
        command = service.get("command")
        words = [command] if isinstance(command, str) else items(command)
        shell = ["sh", "-c", f"{service.get('entrypoint') or ''} {command}"] if isinstance(command, str) else words
        server = server_of([], shell, str(service.get("image") or ""))
        if server.kind not in ("vllm", "sglang", "trtllm", "llamacpp"):
            draft.remark(path, "is no model server that is known here: left out")
            continue
        given = service.get("environment")
        pairs = [str(entry).partition("=")[::2] for entry in items(given)] or [*mapping(given).items()]
        container = {"env": [{"name": str(key), "value": value} for key, value in pairs]}
        fields = {"name": str(name), **read_container(container, {}, draft, path, server=server)}
        reserved = mapping(mapping(mapping(service.get("deploy")).get("resources")).get("reservations"))
        for device in map(mapping, items(reserved.get("devices"))):
            count = device.get("count")
            fields["accelerator"] = {"resource": "nvidia.com/gpu", "count": count if isinstance(count, int) else 1}
        if size := service.get("shm_size"):
            draft.remark(f"{path}.shm_size", f"say it as sharedMemory, in Kubernetes' units: {str(size)[:20]}")
        draft.left_out(service, {"image", "command", "entrypoint", "environment", "deploy", "shm_size", "ports",
                                 "restart", "ipc", "container_name"}, path)  # fmt: skip
        draft.component(fields)
    return draft


def _begun(document: dict[str, Any]) -> Draft:
    metadata = mapping(document.get("metadata"))
    namespace = metadata.get("namespace")
    return Draft(str(metadata.get("name") or "pipeline"), str(namespace) if namespace else None)


def _known_engine(fields: dict[str, Any], path: str) -> None:
    if not fields["engine"]:
        raise ConversionError(f"{path}: its command and image name no engine that a pipeline has")


READERS: Final[dict[str, Callable[[dict[str, Any]], Draft]]] = {
    "DynamoGraphDeployment": graph_deployment, "LLMInferenceService": llm_inference_service, "Model": kubeai_model,
    "Deployment": deployment, "StatefulSet": deployment,
}  # fmt: skip
"""By a document's kind; `services` without a kind is docker-compose's."""
