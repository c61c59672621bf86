"""Writes docs/reference/configuration.md out of the settings classes: `make generate` writes it again.

Variables without a flag stand in `CONNECTIONS` and `OTHERS` here; a test fails where the code reads a name that is
missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import click
from docs.generate import commands_page
from docs.generate.flag_entries import grouped, item
from docs.generate.markdown import anchor, page, prose

from dynamo.runtime.process.legacy_flags import FlagCommand

TITLE: Final = """# Configuration

Made from the programs' settings by `make generate`; don't edit it by hand.

Each server takes flags; most have an environment variable, too. The flag wins over the variable, the variable over the
default. A malformed value ends the process with exit code 2 and names the flag or variable. Connections are set by
variables only: they may hold secrets, and flags show in `ps`. In a pipeline, `env` of a component or `podTemplate` of
the frontend sets variables; [the command line](cli.md) has the commands of `dynamo`.

A flag of yes or no is turned off by `--no-NAME`, a variable by `0` or `false`. Some defaults differ between programs
on purpose: the frontend's router weighs caches higher than `python -m dynamo.router` does.
"""
CONNECTIONS: Final = {
    "ETCD_ENDPOINTS": ("http://localhost:2379", "URLs of etcd, separated by commas; `https` for TLS."),
    "ETCD_AUTH_USERNAME": ("", "User name for etcd; set `ETCD_AUTH_PASSWORD`, too."),
    "ETCD_AUTH_PASSWORD": ("", "Password of that user."),
    "ETCD_AUTH_CA": ("", "File with the authorities that sign the certificates of the etcd servers."),
    "ETCD_AUTH_CLIENT_CERT": ("", "File with the client certificate for etcd; set `ETCD_AUTH_CLIENT_KEY`, too."),
    "ETCD_AUTH_CLIENT_KEY": ("", "File with the key of that certificate."),
    "ETCD_AUTH_DIR": (
        "",
        "Folder with `username`, `password`, `ca.crt`, `tls.crt` and `tls.key`, read at each authentication; "
        "for mounted Secrets that change.",
    ),
    "ETCD_LEASE_TTL": ("10", "Seconds after which etcd removes a process that stopped renewing its lease."),
    "NATS_SERVER": ("nats://localhost:4222", "URLs of NATS, separated by commas; `tls` for TLS."),
    "NATS_AUTH_USERNAME": ("", "User name for NATS; set `NATS_AUTH_PASSWORD`, too."),
    "NATS_AUTH_PASSWORD": ("", "Password of that user."),
    "NATS_AUTH_TOKEN": ("", "Token for NATS."),
    "NATS_AUTH_NKEY": ("", "File with the seed of an nkey for NATS."),
    "NATS_AUTH_CREDENTIALS_FILE": ("", "File with a user's JWT and seed for NATS."),
    "NATS_AUTH_DIR": (
        "",
        "Folder as `ETCD_AUTH_DIR`, with `token`, `nkey` or `user.creds` as well, read at each connection.",
    ),
    "NATS_TLS_CA": ("", "File with the authorities that sign the certificates of the NATS servers."),
    "NATS_TLS_CERT": ("", "File with the client certificate for NATS; set `NATS_TLS_KEY`, too."),
    "NATS_TLS_KEY": ("", "File with the key of that certificate."),
    "DYN_DIRECT_FRAMES": (
        "on",
        "`off` sends all tokens over NATS, also between processes of one user on one machine; see `--direct-frames`.",
    ),
    "DYN_RUNTIME_GRACEFUL_SHUTDOWN_TIMEOUT_SECS": (
        "30",
        "Seconds that running streams may continue after SIGTERM, in your own programs over `dynamo.runtime`.",
    ),
}
OTHERS: Final = {
    "DYN_LOG": ("info", "Log level, or levels by module: `warn,dynamo.runtime=debug`."),
    "DYN_LOGGING_JSONL": ("", "`1` writes each log line as a JSON object."),
    "OTEL_EXPORT_ENABLED": ("", "`1` sends traces of requests by OTLP; needs the extra `otel`."),
    "OTEL_EXPORTER_OTLP_ENDPOINT": (
        "http://localhost:4318",
        "URL of the OTLP collector. OpenTelemetry's other variables count, too.",
    ),
    "OTEL_SERVICE_NAME": (
        "",
        "Name of the process in traces; by default `dynamo-frontend`, `dynamo-worker` or `dynamo-run`.",
    ),
    "NO_COLOR": ("", "Any value turns off colours in the log."),
    "DYN_SDK_DISABLE_ANSI_LOGGING": ("", "`1` turns off colours in the log."),
    "DYN_CACHE_DIR": ("~/.cache/dynamo", "Folder for model files that a frontend got from workers."),
    "DYN_TOKEN_ECHO_DELAY_MS": ("10", "Milliseconds between two tokens of the echo engines."),
    "KUBECONFIG": ("~/.kube/config", "Files with clusters and credentials, joined by `:`, for cluster commands."),
    "XDG_STATE_HOME": ("~/.local/state", "Folder with `dynamo/history`, the prompts of `dynamo-run in=text`."),
    "DYN_CONSOLE": ("", "`1` lets `dynamo tasks` show what each task of the process waits for."),
    "POD_NAME": ("", "Name of the pod, as the worker reports it; set by the operator. Default: the host's name."),
    "DYN_NODE_RANK": ("", "Rank in a group of several nodes; set by the operator, not for users."),
    "DYN_UP_RUN": ("", "Run of `dynamo up` that a process belongs to; set by it, not for users."),
    "DYN_FRONTEND_CHILD_PORT": ("", "Port that processes of `dynamo-frontend --workers` share; not for users."),
    "DYN_FRONTEND_CHILD_SOCKET": ("", "Socket by which `dynamo-frontend --workers` asks a process; not for users."),
}
_TABLES: Final[Mapping[str, tuple[str, Mapping[str, tuple[str, str]]]]] = {
    "Connections": ("How all programs reach etcd and NATS.", CONNECTIONS),
    "Other variables": ("Logs, traces, folders, and what the programs set for each other.", OTHERS),
}


def render() -> str:
    """Write the whole page."""
    programs = commands_page.programs()
    parts = [TITLE, "\n".join(f"- [{name}](#{anchor(name)})" for name in (*_servers(programs), *_TABLES))]
    shown: dict[str, str] = {}
    for name, command in _servers(programs).items():
        context = click.Context(command, info_name=name, **command.context_settings)
        text = "\n\n".join(grouped(command, context))
        same = shown.setdefault(text, name)
        parts += [f"## {name}", text if same == name else f"Its flags are those of [{same}](#{anchor(same)})."]
    for title, (about, variables) in _TABLES.items():
        parts += [f"## {title}", prose(about), "\n".join(_variables(variables))]
    return page(parts)


def _servers(programs: Mapping[str, object]) -> dict[str, FlagCommand]:
    """Return the programs whose flags are settings."""
    return {name: command for name, command in programs.items() if isinstance(command, FlagCommand)}


def _variables(table: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    for name, (default, text) in table.items():
        yield item((name,), (f"default `{default}`" if default else "",), text)
