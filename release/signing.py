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
    program = shutil.which("cosign")
    if program is None:
        raise SigningError("cosign isn't on PATH: install it, or leave --key out and sign SHA256SUMS elsewhere")
    bundle = file.with_name(f"{file.name}.sigstore.json")
    command = [program, "sign-blob", "--yes", "--key", str(key), "--bundle", str(bundle), *_ALONE, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise SigningError(f"cosign did not sign {file.name}: {done.stderr.strip()[-500:]}")
    return bundle
