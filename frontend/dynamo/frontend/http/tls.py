"""HTTPS: the certificate that the frontend shows, and the authority whose clients it takes."""

from __future__ import annotations

import ssl
from pathlib import Path

from dynamo.frontend.http.settings import TlsSettings
from dynamo.runtime.errors import InvalidArgument


def context(tls: TlsSettings) -> ssl.SSLContext | None:
    """Return how to serve HTTPS; None: plain HTTP. `InvalidArgument` names the file that can't be used."""
    cert_path, key_path, client_ca_cert_path = tls.cert_path, tls.key_path, tls.client_ca_cert_path
    if not cert_path:
        return None
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.set_alpn_protocols(["http/1.1"])
    _present(cert_path, "--tls-cert-path")
    _present(key_path, "--tls-key-path")
    try:
        made.load_cert_chain(cert_path, key_path, password=_no_password)
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"--tls-cert-path {cert_path} and --tls-key-path can't be used together: {error}"
        ) from error
    if client_ca_cert_path:
        _present(client_ca_cert_path, "--tls-client-ca-cert-path")
        try:
            made.load_verify_locations(client_ca_cert_path)
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"--tls-client-ca-cert-path {client_ca_cert_path}: {error}") from error
        made.verify_mode = ssl.CERT_REQUIRED
    return made


def _no_password() -> str:
    raise ValueError("the key has a password; give one without")


def _present(path: str, flag: str) -> None:
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise InvalidArgument(f"{flag} {path} can't be read: {error.strerror}") from error
