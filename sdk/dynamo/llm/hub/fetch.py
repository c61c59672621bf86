"""Models from the Hugging Face Hub: `fetch("hf://org/repo@rev") -> folder or GGUF file`.

Everything that the hub's own library knows counts: HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE; its cache is
shared with other tools. Of its steps only the transfer of a file is ours (`download.py` says why). While the hub
can't be reached, a model that is whole in the cache serves.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dynamo.llm.hub.download import Answer, DownloadJob, HubConnection, Interrupted, Patience, Place, RemoteFile, load
from dynamo.llm.hub.names import Choice, HubModel, Weights, choose, parse
from dynamo.llm.hub.progress import Progress, Teller, duration_text, size_text, terminal_of
from dynamo.runtime.errors import InvalidArgument

if TYPE_CHECKING:
    from huggingface_hub.utils import httpx

log = logging.getLogger(__name__)

PARALLEL: Final = 4
"""Files that are loaded at once."""
_ABOUT_SECONDS: Final = 30.0
_ABOUT_TRIES: Final = 4


def fetch(source: str, *, weights: Weights = "any", stop: threading.Event | None = None) -> Path:
    """Return the folder with the model's files, or its GGUF file, loaded if need be; blocks, perhaps for an hour.

    `InvalidArgument` where the name, the revision or the right is wrong or the disk is full; `CannotConnect` where
    the hub can't be reached; `Cancelled` soon after `stop` is set.
    """
    model = parse(source)
    if model is None:
        raise InvalidArgument(
            f"{source!r} is no model of the hub: use hf://org/repo, hf://org/repo@revision or hf://org/repo/file.gguf"
        )
    from huggingface_hub import constants
    from huggingface_hub.utils import httpx

    from dynamo.llm.hub.errors import describe, explained, may_pass, retry_after

    job = DownloadJob(HttpHubConnection(), Progress({}), stop or threading.Event())
    with explained(model):
        if constants.HF_HUB_OFFLINE:
            return _cached(model, weights, "HF_HUB_OFFLINE is set")
        patience = Patience(_ABOUT_TRIES)
        while True:
            try:
                return _loaded(model, weights, job)
            except httpx.HTTPError as error:
                if not may_pass(error):
                    raise
                if path := _whole_in_cache(model, weights, describe(error)):
                    return path
                if job.stop.is_set():  # files were being loaded, and one of them failed for good
                    raise
                seconds = patience.wait(retry_after(error))
                if seconds is None:
                    raise
                job.pause(seconds)


def _whole_in_cache(model: HubModel, weights: Weights, why: str) -> Path | None:
    try:
        path = _cached(model, weights, "")
    except InvalidArgument:
        return None
    log.warning("Can't reach the Hugging Face Hub (%s); serving %s from the cache.", why, model)
    return path


def _loaded(model: HubModel, weights: Weights, job: DownloadJob) -> Path:
    from huggingface_hub import HfApi, constants

    about = HfApi().model_info(model.repo, revision=model.revision, timeout=_ABOUT_SECONDS)
    files = _tree(model.repo, about.sha or model.revision or "main")
    choice = choose(model, files, weights)
    _load_all(model, [files[name] for name in choice.names], Path(constants.HF_HUB_CACHE).expanduser(), job)
    return _entry(_linked(model, choice), choice)


def _tree(repo: str, revision: str) -> dict[str, RemoteFile]:
    from huggingface_hub import HfApi, hf_hub_url
    from huggingface_hub.hf_api import RepoFile

    return {
        entry.path: RemoteFile(
            name=entry.path,
            url=hf_hub_url(repo, entry.path, revision=revision),
            size=entry.lfs.size if entry.lfs else entry.size,
            sha256=entry.lfs.sha256 if entry.lfs else None,
            git_id=entry.blob_id,
        )
        for entry in HfApi().list_repo_tree(repo, recursive=True, revision=revision)
        if isinstance(entry, RepoFile)
    }


def _load_all(model: HubModel, files: Sequence[RemoteFile], cache: Path, job: DownloadJob) -> None:
    """Bring the files into the cache, several at once; say how far it is."""
    places = {file: _place(model, file, cache) for file in dict.fromkeys(files)}
    missing = [file for file, place in places.items() if not place.blob.exists()]
    if not missing:
        return
    _check_room(model, {file: places[file] for file in missing}, cache)
    progress = job.progress = Progress({file.name: file.size for file in missing})
    for file in missing:
        progress.at(file.name, places[file].have())
    begun = time.monotonic()
    log.info("%s: loading %d files, %s, into %s", model, len(missing), progress.state(begun), cache)
    with ThreadPoolExecutor(PARALLEL, "download") as pool:
        largest_first = sorted(missing, key=lambda file: -file.size)
        tasks = [pool.submit(load, file, places[file], job) for file in largest_first]
        try:
            _watch(tasks, progress, Teller(str(model), terminal_of(sys.stderr)))
        except BaseException:  # Ctrl-C above all: the threads end at their next chunk
            job.stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    seconds = time.monotonic() - begun
    log.info("%s: loaded %s in %s", model, size_text(progress.loaded), duration_text(seconds))


def _watch(tasks: Sequence[Future[None]], progress: Progress, teller: Teller) -> None:
    """Say how far it is until all is there; raise what goes wrong first."""
    try:
        left: set[Future[None]] = set(tasks)
        while left:
            done, left = wait(left, teller.seconds, FIRST_EXCEPTION)
            teller.tell(progress.state(time.monotonic()))
            for task in done:
                task.result()
    finally:
        teller.end()


def _place(model: HubModel, file: RemoteFile, cache: Path) -> Place:
    """Return where the hub's library keeps a file and its lock."""
    folder = f"models--{model.repo.replace('/', '--')}"
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", file.blob):  # it becomes a file name
        raise InvalidArgument(f"the hub names {file.name} by {file.blob[:80]!r}, which is no checksum")
    return Place(cache / folder / "blobs" / file.blob, cache / ".locks" / folder / f"{file.blob}.lock")


def _check_room(model: HubModel, places: Mapping[RemoteFile, Place], cache: Path) -> None:
    """Refuse before the first byte what can't fit."""
    needed = sum(max(0, file.size - place.have()) for file, place in places.items())
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free
    if needed > free:
        raise InvalidArgument(
            f"{model} needs {size_text(needed)} more but {cache} has {size_text(free)} free: free space there "
            "(a pipeline's spec.model.cache.size), or set HF_HOME to a larger disk"
        )


def _linked(model: HubModel, choice: Choice) -> Path:
    """Let the hub's library name the files that are there: it makes the links and notes the revision."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import tqdm

    class Silent(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]

    # Patterns: a name with brackets means itself.
    patterns = [re.sub(r"([*?\[])", r"[\1]", name) for name in choice.names]
    return Path(snapshot_download(model.repo, revision=model.revision, allow_patterns=patterns, tqdm_class=Silent))


def cached(source: str, *, weights: Weights = "any") -> Path:
    """Return what lies in the cache of a model of the hub, without asking anybody; `InvalidArgument` says what lacks.

    The sentence is that of HF_HUB_OFFLINE, which asks nobody either.
    """
    model = parse(source)
    if model is None:
        raise InvalidArgument(f"{source!r} is no model of the hub")
    return _cached(model, weights, "HF_HUB_OFFLINE is set")


def _cached(model: HubModel, weights: Weights, why: str) -> Path:
    """Return what is there already; `InvalidArgument` where a file of it is missing."""
    from huggingface_hub import errors, snapshot_download

    remedy = f"{why}: load it once where the hub can be reached (python -m dynamo.worker.fetch --model-path {model})"
    try:
        # No pattern: the folder alone, whether or not files that nobody asked for are missing.
        folder = Path(snapshot_download(model.repo, revision=model.revision, local_files_only=True, allow_patterns=[]))
    except errors.LocalEntryNotFoundError as error:
        raise InvalidArgument(f"{model} is not in the cache, and {remedy}") from error
    choice = choose(model, _names_in(folder), weights)
    missing = [name for name in choice.names if not (folder / name).exists()]
    if missing or not choice.names:
        what = f"{missing[0]}" + (f" and {len(missing) - 1} more files" if missing[1:] else "") if missing else "all"
        raise InvalidArgument(f"of {model} {what} is not in the cache, and {remedy}")
    return _entry(folder, choice)


def _names_in(folder: Path) -> list[str]:
    """Return the names of a snapshot's files.

    Those of the whole tree where the hub's library noted it, else what is there.
    """
    noted = folder.parent.parent / "trees" / f"{folder.name}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return [str(name) for name in json.loads(noted.read_bytes())["files"]]
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()]


def _entry(folder: Path, choice: Choice) -> Path:
    return folder / choice.gguf if choice.gguf else folder


class HttpHubConnection(HubConnection):
    """Files over the hub library's own client: its proxies and hooks, and the token, but never to another host."""

    @contextlib.contextmanager
    def open(self, url: str, start: int, end: int) -> Iterator[Answer]:
        from huggingface_hub import constants
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status, httpx

        from dynamo.llm.hub.errors import BUSY, seconds_of

        headers = {**build_hf_headers(), "Accept-Encoding": "identity", "Range": f"bytes={start}-{end - 1}"}
        try:
            with get_session().stream("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT) as answer:
                if answer.status_code in BUSY or answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                    raise Interrupted(f"the hub answers {answer.status_code}", seconds_of(answer.headers))
                hf_raise_for_status(answer)
                yield _HubAnswer(answer)
        except httpx.TransportError as error:
            raise Interrupted(f"the line broke ({error or type(error).__name__})") from error


class _HubAnswer:
    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers = response.headers

    def chunks(self) -> Iterator[bytes]:
        return self._response.iter_raw()
