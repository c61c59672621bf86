"""Signatures by cosign, which must be on PATH: with a key and without a network, so that an air gap can check them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

_SECONDS: Final = 60


class SigningError(Exception):
    """cosign isn't there, or refuses; the text says what to do."""


def sign(file: Path, key: Path) -> Path:
    """Write FILE.sig, the signature of a file; COSIGN_PASSWORD in the environment opens the key."""
    program = shutil.which("cosign")
    if program is None:
        raise SigningError("cosign isn't on PATH: install it, or leave --key out and sign SHA256SUMS elsewhere")
    signature = file.with_name(f"{file.name}.sig")
    command = [
        program,
        "sign-blob",
        "--yes",
        "--key",
        str(key),
        "--tlog-upload=false",
        "--output-signature",
        str(signature),
    ]
    done = subprocess.run([*command, str(file)], capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise SigningError(f"cosign did not sign {file.name}: {done.stderr.strip()[-500:]}")
    return signature
