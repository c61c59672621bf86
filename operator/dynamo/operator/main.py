"""`dynamo-operator --config FILE`: reads the chart's file and runs the operator until a signal ends it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from dynamo.operator.settings import Settings, SettingsError

HARD_SECONDS = 20.0
"""From the signal to the end, whatever hangs; less than the 30 s that a pod has by default."""
LEVELS = ("critical", "error", "warning", "info", "debug")

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the operator; exit with 0 after a signal, with 1 and one sentence where it can't run (any more)."""
    given = make_parser().parse_args(argv)
    _log_to_stderr(os.environ.get("DYN_LOG") or "info")
    settings = _settings(given.config)
    try:
        import uvloop
    except ImportError as error:
        _lacking(error)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_until_signalled(settings, given.host, given.port))


def end_within(seconds: float) -> None:
    """End the process by then with 1, whatever still runs; called after a signal to end."""

    def end() -> None:
        sys.stderr.write(f"dynamo-operator: not ended {seconds:.0f} s after the signal; exiting with 1\n")
        sys.stderr.flush()
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


async def _until_signalled(settings: Settings, host: str, port: int) -> None:
    try:
        from dynamo.operator.kube.login import Login, LoginError
        from dynamo.operator.leadership import operate
        from dynamo.operator.probes import ProbesError
    except ImportError as error:
        _lacking(error)
    task = asyncio.create_task(operate(settings, Login(), (host, port)))

    def on_signal() -> None:
        log.info("received a signal; shutting down")
        end_within(HARD_SECONDS)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    try:
        await task
    except asyncio.CancelledError:
        return
    except (LoginError, ProbesError) as error:
        _fail(str(error))


def _settings(file: Path) -> Settings:
    try:
        return Settings.of(file.read_text(encoding="utf-8"), os.environ)
    except OSError as error:
        _fail(f"{file}: {error.strerror}: give the file that the dynamo-platform chart writes with --config")
    except UnicodeDecodeError:
        _fail(f"{file}: not valid UTF-8: give the file that the dynamo-platform chart writes")
    except SettingsError as error:
        _fail(str(error))


def _log_to_stderr(level: str) -> None:
    if level.lower() not in LEVELS:
        _fail(f"DYN_LOG={level}: choose one of {', '.join(LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if level.lower() != "debug":
        # It logs every event at the level info.
        logging.getLogger("kopf").setLevel(max(logging.WARNING, logging.getLogger().level))
    handler.addFilter(_worth_saying)


_ESCAPES: Final = {
    number: f"\\x{number:02x}" if number <= 0xFF else f"\\u{number:04x}"
    for number in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
}


class OneLineFormatter(logging.Formatter):
    """Escapes control characters: a tenant's text makes no line of its own, and speaks to no terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Return the message on one line."""
        return super().formatMessage(record).translate(_ESCAPES)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        """Return the traceback with each line indented, so that none looks like a message."""
        return "\n".join(f"  {line.translate(_ESCAPES)}" for line in super().formatException(ei).split("\n"))


def _worth_saying(record: logging.LogRecord) -> bool:
    """Drop kopf's warning that it doesn't handle signals; we do."""
    return "OS signals are ignored" not in str(record.msg)


def make_parser() -> argparse.ArgumentParser:
    """Return the command's parser, also for docs/reference/cli.md."""
    parser = argparse.ArgumentParser(prog="dynamo-operator", description="Serves DynamoPipelines on Kubernetes.")
    parser.add_argument(
        "--config",
        type=Path,
        default=Path("/etc/dynamo-operator/config.yaml"),
        help="Settings file (YAML) that the chart writes.",
    )
    parser.add_argument("--host", default="0.0.0.0", help="Address to serve /healthz, /readyz and /metrics on.")
    parser.add_argument("--port", type=int, default=8080, help="Port to serve them on.")
    parser.add_argument("-V", "--version", action=_Version, nargs=0, help="Print the version.")
    return parser


class _Version(argparse.Action):
    """Looks the version up where it is asked for, as the other programs do."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        try:
            text = version("dynamo-pipelines")
        except PackageNotFoundError:
            text = "unknown (not installed as a package)"
        sys.stdout.write(f"{text}\n")
        parser.exit()


def _lacking(error: ImportError) -> NoReturn:
    _fail(f"{error}: run pip install -e '.[operator]' in the clone")


def _fail(sentence: str) -> NoReturn:
    sys.stderr.write(f"dynamo-operator: {sentence}\n")
    raise SystemExit(1)
