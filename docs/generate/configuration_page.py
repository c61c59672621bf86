"""Writes docs/reference/configuration.md out of the settings classes: `make generate`, checked by tests/test_docs.py.

What only the environment sets (connections, since they may hold secrets) stands in
`CONNECTIONS` and `OTHERS` here; the test fails where the code reads a name that is missing.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from dynamo.cli.run.settings import RunSettings
from dynamo.frontend.settings import FrontendSettings
from dynamo.router.settings import RouterSettings
from dynamo.runtime.process.settings import flag, settings_in
from dynamo.worker.programs.gpu_engines import EngineProgramSettings
from dynamo.worker.programs.mocker import MockerSettings
from dynamo.worker.settings import WorkerSettings

TITLE: Final = """# Configuration

Made from the code by `make generate`; don't edit it by hand.

A value comes from the flag, else from the environment variable, else from the default. A malformed
value ends the process with exit code 2 and names the flag or the variable. Connections are set by the
environment only, since they may hold secrets and flags show in `ps`.
"""
PROGRAMS: Final[tuple[tuple[str, str, type[Any]], ...]] = (
    ("dynamo-frontend", "The OpenAI HTTP server.", FrontendSettings),
    ("dynamo-worker", "One engine, served.", WorkerSettings),
    ("python -m dynamo.router", "KV-aware routing for programs that are no frontend of ours.", RouterSettings),
    ("python -m dynamo.mocker", "Simulated engines, by NVIDIA Dynamo's flags.", MockerSettings),
    (
        "python -m dynamo.vllm, dynamo.sglang, dynamo.trtllm",
        "A worker with that engine; other flags are the engine's own.",
        EngineProgramSettings,
    ),
    ("dynamo-run", "`dynamo-run [in=X] [out=Y] [MODEL] [flags]`; its `--help` explains in= and out=.", RunSettings),
)  # fmt: skip
CONNECTIONS: Final = {
    "ETCD_ENDPOINTS": ("http://localhost:2379", "URLs, separated by commas; https for TLS."),
    "ETCD_AUTH_USERNAME": ("", "With ETCD_AUTH_PASSWORD."),
    "ETCD_AUTH_PASSWORD": ("", ""),
    "ETCD_AUTH_CA": ("", "File with the authorities that sign the servers' certificates."),
    "ETCD_AUTH_CLIENT_CERT": ("", "File with the certificate shown to etcd; with ETCD_AUTH_CLIENT_KEY."),
    "ETCD_AUTH_CLIENT_KEY": ("", "File."),
    "ETCD_AUTH_DIR": ("", "Folder with `username`, `password`, `ca.crt`, `tls.crt`, `tls.key`, read at each sign-in."),
    "ETCD_LEASE_TTL": ("10", "Seconds after which a process that went silent leaves etcd."),
    "NATS_SERVER": ("nats://localhost:4222", "URLs, separated by commas; tls for TLS."),
    "NATS_AUTH_USERNAME": ("", "With NATS_AUTH_PASSWORD."),
    "NATS_AUTH_PASSWORD": ("", ""),
    "NATS_AUTH_TOKEN": ("", ""),
    "NATS_AUTH_NKEY": ("", "File with the nkey seed."),
    "NATS_AUTH_CREDENTIALS_FILE": ("", "File with a user's JWT and seed."),
    "NATS_AUTH_DIR": ("", "Folder, read at each connection: as for etcd, and `token`, `nkey`, `user.creds`."),
    "NATS_TLS_CA": ("", "File with the authorities that sign the servers' certificates."),
    "NATS_TLS_CERT": ("", "File with the certificate shown to NATS; with NATS_TLS_KEY."),
    "NATS_TLS_KEY": ("", "File."),
    "DYN_RUNTIME_GRACEFUL_SHUTDOWN_TIMEOUT_SECS": ("30", "Seconds that a shutdown waits for running streams."),
}
OTHERS: Final = {
    "DYN_LOG": ("info", "What is logged: a level, or per module `warn,dynamo.runtime=debug`."),
    "DYN_LOGGING_JSONL": ("", "1: one JSON object per log line."),
    "OTEL_EXPORT_ENABLED": ("", "1: traces of requests are sent by OTLP over HTTP; needs the extra `otel`."),
    "OTEL_EXPORTER_OTLP_ENDPOINT": ("http://localhost:4318", "Where to; the SDK's other variables count as well."),
    "OTEL_SERVICE_NAME": ("", "Name of the process in traces; default dynamo-frontend, dynamo-worker or dynamo-run."),
    "NO_COLOR": ("", "Anything: log lines without colours."),
    "DYN_SDK_DISABLE_ANSI_LOGGING": ("", "1: log lines without colours."),
    "DYN_CACHE_DIR": ("~/.cache/dynamo", "Where model files that came from workers are kept, by digest."),
    "DYN_TOKEN_ECHO_DELAY_MS": ("10", "Pause of the echo engines between two tokens."),
    "KUBECONFIG": (
        "~/.kube/config",
        "Files with clusters and credentials, joined by `:`; for the commands of a cluster.",
    ),
    "XDG_STATE_HOME": ("~/.local/state", "`dynamo/history` in it keeps the prompts of `dynamo-run in=text`."),
    "DYN_CONSOLE": ("", "1: `dynamo tasks` can show what each task of the process waits for."),
    "POD_NAME": ("", "Set in the pods of a cluster: where a worker says that it runs (else its host's name)."),
    "DYN_NODE_RANK": ("", "Set in the pods of a group of several nodes; not for users."),
    "DYN_UP_RUN": ("", "Set by `dynamo up` for its processes; not for users."),
    "DYN_FRONTEND_CHILD_PORT": ("", "Set by `dynamo-frontend --workers` for its processes; not for users."),
    "DYN_FRONTEND_CHILD_SOCKET": ("", "The same."),
}


def render() -> str:
    """Write the whole page."""
    parts = [TITLE]
    for program, what, settings in PROGRAMS:
        parts.append(f"## {program}\n\n{what}\n\n{_table(('flag', 'variable', 'default', ''), _flags(settings))}")
    parts.append("## Connections\n\n" + _table(("variable", "default", ""), _variables(CONNECTIONS)))
    parts.append("## Other variables\n\n" + _table(("variable", "default", ""), _variables(OTHERS)))
    return "\n".join(parts)


def _flags(settings: type[Any]) -> Iterable[tuple[str, ...]]:
    for option in settings_in(settings):
        if not option.field.metadata["hidden"]:
            yield _flag(option.name, option.field)


def _flag(name: str, field: dataclasses.Field[Any]) -> tuple[str, ...]:
    meta = field.metadata
    default = "" if field.default in (dataclasses.MISSING, None, "") else str(field.default)
    choices = f" One of {', '.join(filter(None, meta['choices']))}." if meta["choices"] else ""
    names = (flag(name), *(other.partition("/")[0] for other in meta["flags"] if other not in meta["aliases"]))
    variables = [variable for variable in meta["env"] or () if variable not in meta["aliases"]]
    what = (meta["help"] + choices).replace("|", "\\|")
    return ", ".join(map(_code, names)), ", ".join(map(_code, variables)), _code(default), what


def _variables(table: dict[str, tuple[str, str]]) -> Iterable[tuple[str, ...]]:
    for name, (default, what) in table.items():
        yield _code(name), _code(default), what.replace("|", "\\|")


def _code(text: str | None) -> str:
    return f"`{text}`" if text else ""


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def main() -> None:
    """Write the file that is named."""
    parser = argparse.ArgumentParser(description="Write the table of flags and variables, as Markdown.")
    parser.add_argument("file", type=Path, help="where to")
    parser.parse_args().file.write_text(render())


if __name__ == "__main__":
    main()
