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
from typing import NoReturn

from dynamo.operator.settings import Settings, SettingsError

HARD_SECONDS = 20.0
"""From the signal to the end, whatever hangs; less than the 30 s that a pod has by default."""
LEVELS = ("critical", "error", "warning", "info", "debug")

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> None:
    """Exits with 0 after a signal, with 1 and one sentence where it can't run (any more)."""
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
    """Ends the process by then with 1, whatever still runs; called when it has been told to end."""

    def end() -> None:
        sys.stderr.write(f"dynamo-operator: not ended {seconds:.0f} s after the signal; leaving\n")
        sys.stderr.flush()
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


async def _until_signalled(settings: Settings, host: str, port: int) -> None:
    try:
        from dynamo.operator.login import Login, LoginError
        from dynamo.operator.probes import ProbesError
        from dynamo.operator.run import operate
    except ImportError as error:
        _lacking(error)
    task = asyncio.create_task(operate(settings, Login(), (host, port)))

    def told() -> None:
        log.info("told to end")
        end_within(HARD_SECONDS)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told)
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
        _fail(f"{file}: {error.strerror}: the dynamo-platform chart makes this file; give it with --config")
    except UnicodeDecodeError:
        _fail(f"{file}: no UTF-8 text; the dynamo-platform chart makes this file")
    except SettingsError as error:
        _fail(str(error))


def _log_to_stderr(level: str) -> None:
    if level.lower() not in LEVELS:
        _fail(f"DYN_LOG={level}: choose one of {', '.join(LEVELS)}")
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    if level.lower() != "debug":
        # It tells of every event at the level info.
        logging.getLogger("kopf").setLevel(max(logging.WARNING, logging.getLogger().level))
    for handler in logging.getLogger().handlers:
        handler.addFilter(_worth_saying)


def _worth_saying(record: logging.LogRecord) -> bool:
    """kopf warns that it doesn't handle signals; we do."""
    return "OS signals are ignored" not in str(record.msg)


def make_parser() -> argparse.ArgumentParser:
    """Its flags, also for docs/reference/cli.md."""
    parser = argparse.ArgumentParser(prog="dynamo-operator", description="Serves DynamoPipelines on Kubernetes.")
    parser.add_argument("--config", type=Path, default=Path("/etc/dynamo-operator/config.yaml"), help="settings (YAML)")
    parser.add_argument("--host", default="0.0.0.0", help="address of /healthz, /readyz and /metrics")
    parser.add_argument("--port", type=int, default=8080, help="their port")
    return parser


def _lacking(error: ImportError) -> NoReturn:
    _fail(f"{error}: install the operator with `pip install 'dynamo-pipelines[operator]'`")


def _fail(sentence: str) -> NoReturn:
    sys.stderr.write(f"dynamo-operator: {sentence}\n")
    raise SystemExit(1)
