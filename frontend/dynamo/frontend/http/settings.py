"""What the frontend's HTTP can be told beside its address: groups of `FrontendSettings`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dynamo.runtime.process.settings import out_of_range, setting

KB: Final = 1024


@dataclass(frozen=True)
class ClientTimeouts:
    """Bounds of slow clients."""

    header: float = setting(
        10.0, "Seconds a client may take to send its request's headers.", env="DYN_HTTP_HEADER_TIMEOUT_SECS",
        name="header_timeout_secs",
    )  # fmt: skip
    body: float = setting(
        30.0, "Seconds that a request's body may take, and one more for every --body-min-rate-kb that have come.",
        env="DYN_HTTP_BODY_TIMEOUT_SECS", name="body_timeout_secs",
    )  # fmt: skip
    body_min_rate_kb: float = setting(
        64.0, "KB of a request's body that earn it a second more than --body-timeout-secs.",
        env="DYN_HTTP_BODY_MIN_RATE_KB",
    )  # fmt: skip
    keep_alive: float = setting(
        75.0, "Seconds an idle connection stays open.", env="DYN_HTTP_KEEP_ALIVE_TIMEOUT_SECS",
        name="keep_alive_timeout_secs",
    )  # fmt: skip

    def problem(self) -> str | None:
        """Return why these settings can't be served, in one sentence; None where they can."""
        return out_of_range(self, "header", "body", "body_min_rate_kb", "keep_alive", above=True)


@dataclass(frozen=True)
class AccessSettings:
    """Access: who may ask what."""

    api_keys_file: str = setting(
        "", "File with the API keys of clients, one a line (KEY, or KEY tenant=NAME); read again when it changes. "
        "Empty: no key is needed.",
        env="DYN_API_KEYS_FILE",
    )  # fmt: skip
    public_system_routes: bool = setting(
        True, "Serve /metrics, /health in detail, /busy_threshold, /openapi.json, /docs and /version on the port of "
        "/v1; else on --system-port only.", env="DYN_HTTP_PUBLIC_SYSTEM_ROUTES",
    )  # fmt: skip
    console: bool = setting(
        True, "Serve the console, a page for browsers, at /; off as well with --no-public-system-routes.",
        env="DYN_HTTP_CONSOLE",
    )  # fmt: skip
    disable_admin_api: bool = setting(
        False, "Turn off /busy_threshold, which shows and changes thresholds.", env="DYN_DISABLE_FRONTEND_ADMIN_API"
    )
    open_admin_api: bool = setting(
        False, "Let other machines change thresholds by /busy_threshold, not only this one.",
        env="DYN_OPEN_FRONTEND_ADMIN_API",
    )  # fmt: skip


@dataclass(frozen=True)
class TlsSettings:
    """The certificate that the frontend shows, and the authority whose clients it takes."""

    cert_path: str = setting(
        "", "Serve HTTPS with this certificate (PEM, with its chain).", env="DYN_TLS_CERT_PATH", name="tls_cert_path"
    )
    key_path: str = setting("", "The certificate's key (PEM).", env="DYN_TLS_KEY_PATH", name="tls_key_path")
    client_ca_cert_path: str = setting(
        "", "Accept only clients with a certificate of this authority (PEM).", env="DYN_TLS_CLIENT_CA_CERT_PATH",
        name="tls_client_ca_cert_path",
    )  # fmt: skip

    @property
    def scheme(self) -> str:
        """Return `http` or `https`."""
        return "https" if self.cert_path else "http"

    def problem(self) -> str | None:
        """Return why these settings can't be served, in one sentence; None where they can."""
        if bool(self.cert_path) != bool(self.key_path):
            return "--tls-cert-path and --tls-key-path belong together"
        if self.client_ca_cert_path and not self.cert_path:
            return "--tls-client-ca-cert-path needs --tls-cert-path and --tls-key-path"
        return None
