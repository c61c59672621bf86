"""What the hub refuses, in one sentence with the next step."""

from __future__ import annotations

import contextlib
import difflib
import errno
import json
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from dynamo.llm.hub.names import HubModel
from dynamo.runtime.errors import CannotConnect, DynamoException, InvalidArgument

_SECONDS: Final = 5.0
"""That a suggestion may take."""
BUSY: Final = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
_SECRET: Final = "HF_TOKEN (spec.model.tokenSecret)"


@contextlib.contextmanager
def explained(model: HubModel) -> Iterator[None]:
    """Turn what goes wrong inside into `InvalidArgument` and `CannotConnect`."""
    from huggingface_hub import errors
    from huggingface_hub.utils import httpx

    try:
        yield
    except httpx.HTTPError as error:
        raise _refused(model, error) from error
    except errors.LocalEntryNotFoundError as error:
        raise _unreachable(model, error) from error
    except OSError as error:
        raise _unwritable(model, error) from error
    except json.JSONDecodeError as error:  # a network's sign-in page, or another server
        raise CannotConnect(
            f"{model} can't be loaded: what answers in the hub's place is no hub, since it sends no JSON; "
            "check the way to the hub (HF_ENDPOINT, proxies)"
        ) from error


def may_pass(error: Exception) -> bool:
    """Tell whether the hub didn't answer, or only to say that it can't now."""
    status = _status(error)
    return status is None or status in BUSY or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def retry_after(error: Exception) -> float | None:
    """Return seconds that the hub asks to wait."""
    from huggingface_hub import errors

    return seconds_of(error.response.headers) if isinstance(error, errors.HfHubHTTPError) else None


def describe(error: Exception) -> str:
    """Return what went wrong, in few words.

    Not the library's own for an answer, since they hold the address, and that perhaps a password or a signature.
    """
    status = _status(error)
    return f"the hub answers {status}" if status else str(error).partition("\n")[0] or type(error).__name__


def seconds_of(headers: Mapping[str, str]) -> float | None:
    """Return what `Retry-After` asks for, where it is a number."""
    asked = headers.get("Retry-After", "")
    return float(asked) if asked.isascii() and asked.isdecimal() else None


def _status(error: Exception) -> int | None:
    """Return the status of an answer, None where there was none."""
    from huggingface_hub import errors

    return error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None


def _refused(model: HubModel, error: Exception) -> DynamoException:
    from huggingface_hub import errors, get_token

    status, token = _status(error), get_token()
    if isinstance(error, errors.GatedRepoError):
        page = _page(model)
        then = f"with the account of {_SECRET}" if token else f"and set {_SECRET}"
        return InvalidArgument(f"{model} is gated: ask for access on its page {page} {then}")
    if isinstance(error, errors.RevisionNotFoundError):
        return InvalidArgument(f"{model}: the model has no such revision{_near_revision(model)}")
    if status == HTTPStatus.UNAUTHORIZED and not isinstance(error, errors.RepositoryNotFoundError):
        return InvalidArgument(f"{model}: the hub refuses the token: set {_SECRET} to one that is valid")
    if isinstance(error, errors.RepositoryNotFoundError):
        private = f"the account of {_SECRET} may not see it" if token else f"it is private: set {_SECRET}"
        return InvalidArgument(f"{model}: the hub has no such model{_near_name(model)}; check the name, or {private}")
    if status == HTTPStatus.FORBIDDEN:
        return InvalidArgument(f"{model}: the token may not read it: give {_SECRET} the right to read this model")
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        more = "" if token else f", or set {_SECRET}, which is allowed more"
        return CannotConnect(f"{model}: the hub gets too many requests from here: try again in some minutes{more}")
    return _unreachable(model, error)


def _unreachable(model: HubModel, error: Exception) -> DynamoException:
    return CannotConnect(f"{model} can't be loaded: {describe(error)}; check the way to the hub (HF_ENDPOINT, proxies)")


def _page(model: HubModel) -> str:
    """Return the page where people look at it; a mirror's password is none of its address."""
    from huggingface_hub import constants

    parts = urlsplit(constants.ENDPOINT)
    return f"{urlunsplit(parts._replace(netloc=parts.netloc.rpartition('@')[2]))}/{model.repo}"


def _unwritable(model: HubModel, error: OSError) -> DynamoException:
    from huggingface_hub import constants

    stays = "; what has come stays" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return InvalidArgument(
        f"{model} can't be stored in {constants.HF_HUB_CACHE}: {error.strerror or error}{stays}: "
        "free space there (a pipeline's spec.model.cache.size), or set HF_HOME"
    )


def _near_name(model: HubModel) -> str:
    """Return a model that was probably meant: of the same name elsewhere, or of the same organisation."""
    organisation, _, name = model.repo.partition("/")
    candidates = [*_search(author=organisation), *_search(search=name), *_search(search=name[: max(4, len(name) // 2)])]
    by_lower = {repo.lower(): repo for repo in candidates}
    close = difflib.get_close_matches(model.repo.lower(), by_lower, n=1, cutoff=0.6)
    same = [repo for repo in candidates if repo.lower().endswith(f"/{name.lower()}")]
    best = by_lower[close[0]] if close else same[0] if same else None
    return f" (did you mean {best}?)" if best else ""


def _near_revision(model: HubModel) -> str:
    answer = _ask(f"api/models/{model.repo}/refs", {})
    kinds = [answer.get(kind) for kind in ("branches", "tags")] if isinstance(answer, dict) else []
    names = [name for kind in kinds for name in _values(kind, "name")]
    close = difflib.get_close_matches(model.revision or "", names, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; it has {', '.join(names[:8])}" if names else ""


def _search(**how: str) -> list[str]:
    return _values(_ask("api/models", {**how, "limit": "50", "sort": "downloads"}), "id")


def _values(listing: Any, name: str) -> list[str]:
    """Return that text of each object of a list; mirrors answer in other shapes."""
    objects = [entry for entry in listing if isinstance(entry, dict)] if isinstance(listing, list) else []
    return [value for entry in objects if isinstance(value := entry.get(name), str)]


def _ask(path: str, parameters: dict[str, str]) -> Any:
    """Ask the hub; None where it has no answer: a suggestion is worth no second error."""
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers, get_session

    with contextlib.suppress(Exception):
        url = f"{constants.ENDPOINT}/{path}"
        answer = get_session().get(url, params=parameters, headers=build_hf_headers(), timeout=_SECONDS)
        return answer.json() if answer.status_code == HTTPStatus.OK else None
    return None
