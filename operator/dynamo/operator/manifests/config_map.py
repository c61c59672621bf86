"""Files of a worker: what the pipeline says goes into a ConfigMap per revision, what users have is mounted.

Engine arguments become a file too: in an argv they would show up in every `describe` as
one long line, and Kubernetes would expand what looks like a variable in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dynamo.operator.manifests import naming
from dynamo.operator.manifests.context import Manifest, RenderContext
from dynamo.operator.plan.workload import Argument, Workload

_OURS = "/etc/dynamo/files"
_THEIRS = "/etc/dynamo/user"
_MODEL = "/models/source"
_ENGINE_ARGS, _ENGINE_ARGS_FILE = "--engine-args", "engine-args.json"


@dataclass(frozen=True)
class WorkerFiles:
    """Files that a worker reads, and where it finds them."""

    argv: tuple[Argument, ...]
    """The plan's, with files in the place of contents."""
    contents: Mapping[str, str]
    paths: Mapping[str, str]
    volumes: tuple[Manifest, ...]
    mounts: tuple[Manifest, ...]


def worker_files(context: RenderContext, workload: Workload) -> WorkerFiles:
    """Return everything about the files of one revision."""
    contents = {file.name: file.content for file in workload.files if file.content is not None}
    paths = {name: f"{_OURS}/{name}" for name in contents}
    argv = _without_engine_args(workload.argv, contents)
    volumes: list[Manifest] = []
    mounts: list[Manifest] = []
    if contents:
        config_map = {"name": naming.revision_name(context.pipeline.name, workload)}
        _mount(volumes, mounts=mounts, name="files", source={"configMap": config_map}, path=_OURS)
    for file in workload.files:
        if file.config_map is not None:
            _mount(
                volumes,
                mounts=mounts,
                name=file.name,
                source={"configMap": {"name": file.config_map}},
                path=f"{_THEIRS}/{file.name}",
            )
            paths[file.name] = f"{_THEIRS}/{file.name}/{file.key}"
    claim, _, path = (context.pipeline.spec.model.source or "").removeprefix("pvc://").partition("/")
    if (context.pipeline.spec.model.source or "").startswith("pvc://"):
        source: Manifest = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        _mount(volumes, mounts=mounts, name="model-source", source=source, path=_MODEL)
        argv = tuple(f"{_MODEL}/{path}" if a == context.pipeline.spec.model.source else a for a in argv)
    return WorkerFiles(argv, contents=contents, paths=paths, volumes=tuple(volumes), mounts=tuple(mounts))


def files_config_map(context: RenderContext, workload: Workload) -> list[Manifest]:
    """Return the ConfigMap of a revision, if it has files; it never changes, so nodes needn't watch it."""
    contents = worker_files(context, workload).contents
    if not contents:
        return []
    name = naming.revision_name(context.pipeline.name, workload)
    labels = naming.revision_labels(context.pipeline.name, workload)
    return [
        {
            **naming.child(context, api_version="v1", kind="ConfigMap", name=name, labels=labels),
            "immutable": True,
            "data": dict(contents),
        }
    ]


def _without_engine_args(argv: tuple[Argument, ...], contents: dict[str, str]) -> tuple[Argument, ...]:
    if _ENGINE_ARGS not in argv:
        return argv
    index = argv.index(_ENGINE_ARGS) + 1
    contents[_ENGINE_ARGS_FILE] = str(argv[index])
    return (*argv[:index], f"@{_OURS}/{_ENGINE_ARGS_FILE}", *argv[index + 1 :])


def _mount(volumes: list[Manifest], mounts: list[Manifest], name: str, source: Manifest, path: str) -> None:
    volumes.append({"name": name, **source})
    mounts.append({"name": name, "mountPath": path, "readOnly": True})
