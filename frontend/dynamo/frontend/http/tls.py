"""HTTPS: the certificate that the frontend shows, and the authority whose clients it takes."""

from __future__ import annotations

import ssl
from pathlib import Path

from dynamo.frontend.settings import FrontendSettings
from dynamo.runtime.errors import InvalidArgument


def context(settings: FrontendSettings) -> ssl.SSLContext | None:
    """How to serve HTTPS; None: plain HTTP. `InvalidArgument` names the file that can't be used."""
    if not settings.tls_cert_path:
        return None
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.set_alpn_protocols(["http/1.1"])
    _present(settings.tls_cert_path, "--tls-cert-path")
    _present(settings.tls_key_path, "--tls-key-path")
    try:
        made.load_cert_chain(settings.tls_cert_path, settings.tls_key_path, password=_no_password)
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"--tls-cert-path {settings.tls_cert_path} and --tls-key-path can't be used together: {error}"
        ) from error
    if settings.tls_client_ca_cert_path:
        _present(settings.tls_client_ca_cert_path, "--tls-client-ca-cert-path")
        try:
            made.load_verify_locations(settings.tls_client_ca_cert_path)
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"--tls-client-ca-cert-path {settings.tls_client_ca_cert_path}: {error}") from error
        made.verify_mode = ssl.CERT_REQUIRED
    return made


def scheme(settings: FrontendSettings) -> str:
    """`http` or `https`."""
    return "https" if settings.tls_cert_path else "http"


def _no_password() -> str:
    raise ValueError("the key has a password; give one without")


def _present(path: str, flag: str) -> None:
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise InvalidArgument(f"{flag} {path} can't be read: {error.strerror}") from error
