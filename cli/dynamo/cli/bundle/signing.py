"""Signatures by cosign, which must be on PATH: with a key and without a network, so that an air gap can check them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

_SECONDS: Final = 60
_ALONE: Final = ("--use-signing-config=false", "--tlog-upload=false")
"""Ask no service."""


class SigningError(Exception):
    """cosign isn't there, or refuses; the text says what to do."""


def sign(file: Path, key: Path) -> Path:
    """Write FILE.sigstore.json, the signature of a file; COSIGN_PASSWORD in the environment opens the key."""
    bundle = file.with_name(f"{file.name}.sigstore.json")
    _require(key)
    _cosign("sign-blob", "--yes", "--key", str(key), "--bundle", str(bundle), *_ALONE, str(file))
    return bundle


def check(file: Path, key: Path) -> None:
    """Compare a file with FILE.sigstore.json and a public key. SigningError where they don't belong together."""
    bundle = file.with_name(f"{file.name}.sigstore.json")
    _require(key)
    _cosign("verify-blob", "--key", str(key), "--bundle", str(bundle), "--insecure-ignore-tlog", str(file))


def _require(key: Path) -> None:
    if not key.is_file():
        raise SigningError(f"there is no key at {key}: `cosign generate-key-pair` makes a pair")


def _cosign(command: str, *words: str) -> None:
    program = shutil.which("cosign")
    if program is None:
        raise SigningError(f"cosign isn't on PATH: install it, or leave --key out and run `cosign {command}` elsewhere")
    try:
        done = subprocess.run(
            [program, command, *words], capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise SigningError(f"cosign {command} gave no answer within {_SECONDS} s: try again") from None
    except OSError as error:
        raise SigningError(f"{program} can't be run: {error.strerror or error}. Install cosign again") from None
    if done.returncode:
        raise SigningError(f"cosign {command} refuses {words[-1]}: {done.stderr.strip()[-500:]}")
