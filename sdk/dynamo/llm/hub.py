"""Models from the Hugging Face Hub: `fetch("hf://org/repo@rev") -> folder`.

Everything that the hub's own library knows counts: HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE. A file that
is in its cache is not loaded again, and of several processes that share a cache (pods with one volume, say) one
loads a file while the others wait for its lock. While the hub can't be reached, a model that is whole there serves.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from fnmatch import fnmatch
from http import HTTPStatus
from pathlib import Path
from typing import Final

from dynamo.runtime.errors import CannotConnect, DynamoException, InvalidArgument

log = logging.getLogger(__name__)

SCHEME: Final = "hf://"
DESCRIPTION: Final = ("*.json", "*.jinja", "*.model", "*.txt")
"""What tells how a model is talked to; the rest is weights and pictures."""
OTHERS: Final = ("*.h5", "*.msgpack", "*.onnx", "*.onnx_data", "*.ot", "*.tflite", "*.mlmodel", "original/*", "*.pth")
"""The same weights for other programs."""
LEFT_OUT: Final = (".*", "*.md", "*.png", "*.jpg")
TORCH: Final = ("*.bin", "*.pt")
"""The same weights once more where there are safetensors."""
_SOURCE: Final = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>.+))?")


def wanted(names: Iterable[str], weights: bool) -> list[str]:
    """The files of a repository to load: those that an engine reads, or only the model's description."""
    found = [n for n in names if not _any(n, LEFT_OUT)]
    if not weights:
        return [n for n in found if "/" not in n and _any(n, DESCRIPTION)]
    other = OTHERS + (TORCH if any(n.endswith(".safetensors") for n in found) else ())
    return [n for n in found if not _any(n, other)]


def fetch(source: str, *, weights: bool = True) -> Path:
    """The folder with the model's files, loaded if need be; blocks, perhaps for an hour.

    `InvalidArgument` where the name, the revision or the right is wrong; `CannotConnect` where the hub can't
    be reached.
    """
    parsed = _SOURCE.fullmatch(source)
    if parsed is None:
        raise InvalidArgument(f"{source!r} is no model of the hub: use hf://org/repo or hf://org/repo@revision")
    from huggingface_hub import errors

    try:
        return _loaded(parsed["repo"], parsed["revision"], weights)
    except errors.GatedRepoError as error:
        raise InvalidArgument(
            f"{source} is gated: ask for access on its page and set HF_TOKEN (spec.model.tokenSecret)"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise InvalidArgument(
            f"{source}: the hub has no such model, or it is private: check the name, or set HF_TOKEN "
            "(spec.model.tokenSecret)"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise InvalidArgument(f"{source}: the model has no such revision") from error
    except (errors.LocalEntryNotFoundError, _transport_error()) as error:
        raise _unreachable(source, error) from error
    except OSError as error:
        raise _unwritable(source, error) from error


def _loaded(repo: str, revision: str | None, weights: bool) -> Path:
    from huggingface_hub import HfApi, constants, errors, snapshot_download

    if constants.HF_HUB_OFFLINE:
        return _cached(repo, revision, weights)
    try:
        names = wanted(HfApi().list_repo_files(repo, revision=revision), weights)
    except _transport_error() as error:
        if isinstance(error, errors.HfHubHTTPError) and error.response.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
            raise
        found = _cached(repo, revision, weights)
        log.warning("the hub can't be reached (%s); %s is whole in the cache and serves", error, repo)
        return found
    log.info("%s: %d files, into %s", repo, len(names), constants.HF_HUB_CACHE)
    # Patterns: a name with brackets means itself.
    patterns = [re.sub(r"([*?\[])", r"[\1]", name) for name in names]
    return Path(snapshot_download(repo, revision=revision, allow_patterns=patterns))


def _cached(repo: str, revision: str | None, weights: bool) -> Path:
    """What is there already; refused where a file of it is missing."""
    from huggingface_hub import snapshot_download

    only = None if weights else list(DESCRIPTION)
    others = [*OTHERS, *TORCH, *LEFT_OUT]
    return Path(
        snapshot_download(repo, revision=revision, local_files_only=True, allow_patterns=only, ignore_patterns=others)
    )


def _transport_error() -> type[Exception]:
    """Of the client that the hub's library uses: every answer of 400 and more, and none at all."""
    from huggingface_hub import errors

    found: type[Exception] = errors.HTTPError  # type: ignore[attr-defined]  # there, but not listed
    return found


def _unreachable(source: str, error: Exception) -> DynamoException:
    return CannotConnect(f"{source} can't be loaded: {error}; check the way to the hub (HF_ENDPOINT, proxies)")


def _unwritable(source: str, error: OSError) -> DynamoException:
    from huggingface_hub import constants

    return InvalidArgument(
        f"{source} can't be stored in {constants.HF_HUB_CACHE}: {error.strerror or error}; "
        "free space there (a pipeline's spec.model.cache.size), or set HF_HOME"
    )


def _any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)
