"""How a registry wants to be asked: its challenge, and the login that `docker login` or `podman login` left here.

Source: the distribution specification's "Authentication", docker's config.json, docker-credential-helpers.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from dynamo.cli.bundle.errors import BundleError

_SCHEME: Final = re.compile(r"(?:^|,\s*)(Basic|Bearer)\b", re.IGNORECASE)
_PARAMETER: Final = re.compile(r'(\w+)=(?:"([^"]*)"|([^\s",]+))')
_UNKNOWN: Final = "credentials not found"
"""What docker's helpers say of a host for which they have none."""
_HELPER: Final = re.compile(r"[\w.-]{1,64}")
_SECONDS: Final = 15
_MOST_CONFIG: Final = 1 << 20
_HUB: Final = {"docker.io": "https://index.docker.io/v1/", "registry-1.docker.io": "https://index.docker.io/v1/"}


class Login(NamedTuple):
    """User and password for a registry."""

    user: str
    password: str

    def header(self) -> str:
        """Return it as basic authentication has it."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


class Challenge(NamedTuple):
    """What a registry says to somebody who isn't signed in."""

    scheme: str
    realm: str = ""
    service: str = ""
    scope: str = ""


def read_challenge(header: str) -> Challenge:
    """Read a `WWW-Authenticate`; what isn't known is left out."""
    match = _SCHEME.search(header.strip())
    if match is None:
        return Challenge("")
    said = {name: quoted or plain for name, quoted, plain in _PARAMETER.findall(header.strip()[match.end() :])}
    return Challenge(match[1].lower(), said.get("realm", ""), said.get("service", ""), said.get("scope", ""))


def find_login(host: str, path: str = "", environment: Mapping[str, str] = os.environ) -> Login | None:
    """Return the login for a registry, or for a path there; None where nobody signed in.

    BundleError where a file or a helper can't be read, or has what can't be used.
    """
    steps = path.split("/") if path else []
    places = ["/".join([host, *steps[:count]]) for count in range(len(steps), -1, -1)]
    for file in _files(environment):
        said = _read(file)
        if (login := _stored(said, [*places, f"https://{host}", _HUB.get(host, host)])) is not None:
            return login
        helpers = said.get("credHelpers")
        helper = (helpers.get(host) if isinstance(helpers, dict) else None) or said.get("credsStore")
        if isinstance(helper, str) and _HELPER.fullmatch(helper) and (login := _ask(helper, host)) is not None:
            return login
    return None


def _files(environment: Mapping[str, str]) -> list[Path]:
    home = Path(environment.get("HOME") or Path.home())
    docker = Path(environment.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
    runtime = environment.get("XDG_RUNTIME_DIR") or f"/run/containers/{os.getuid()}"
    folder = "containers/auth.json" if environment.get("XDG_RUNTIME_DIR") else "auth.json"
    return [docker, Path(environment.get("REGISTRY_AUTH_FILE") or f"{runtime}/{folder}")]


def _read(file: Path) -> dict[str, Any]:
    """Return a file's settings; nothing where it isn't there. BundleError where it can't be read."""
    try:
        with file.open("rb") as opened:
            said = json.loads(opened.read(_MOST_CONFIG))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(
            f"{file} can't be read as docker's settings: {type(error).__name__}. Mend it, or sign in again"
        ) from None
    return said if isinstance(said, dict) else {}


def _stored(said: Mapping[str, Any], names: Iterable[str]) -> Login | None:
    logins = said.get("auths")
    for name in names:
        entry = logins.get(name) if isinstance(logins, dict) else None
        if isinstance(entry, dict) and entry.get("identitytoken"):
            raise BundleError(
                f"the sign-in to {name} is an identity token, of no use here: sign in with a user and a password"
            )
        encoded = entry.get("auth") if isinstance(entry, dict) else None
        if isinstance(encoded, str) and encoded:
            try:
                user, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
            except ValueError:
                continue
            if colon:
                return Login(user, password.rstrip("\0"))
    return None


def _ask(helper: str, host: str) -> Login | None:
    """Ask docker's helper, such as the one for a keychain; None where it knows nothing of the host."""
    try:
        done = subprocess.run(
            [f"docker-credential-{helper}", "get"], input=_HUB.get(host, host), capture_output=True, text=True,
            timeout=_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode and _UNKNOWN in done.stdout + done.stderr:
            return None
        said = json.loads(done.stdout)
        return Login(str(said["Username"]), str(said["Secret"]))
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, AttributeError) as error:
        raise BundleError(
            f"docker-credential-{helper}, which docker's settings name, doesn't work ({type(error).__name__}): "
            "sign in again, or take it out of config.json"
        ) from None
