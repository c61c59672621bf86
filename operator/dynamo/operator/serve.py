"""What `dynamo-operator --config FILE` will do: read the chart's file and run the operator until a signal ends it.

`main.py` doesn't call it yet: no passing test covers its end and kopf's restart (docs/design/operator.md).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from dynamo.operator.settings import Settings, SettingsError


def main(argv: Sequence[str] | None = None) -> None:
    """Exits with 0 after a signal, with 1 and one sentence where it can't run."""
    given = _arguments(argv)
    logging.basicConfig(level=os.environ.get("DYN_LOG", "info").upper(), format="%(levelname)s %(name)s: %(message)s")
    try:
        settings = Settings.of(given.config.read_text(encoding="utf-8"), os.environ)
        asyncio.run(_until_signalled(settings, given.port))
    except OSError as error:
        _fail(f"{given.config}: {error.strerror}: the dynamo-platform chart makes this file; give it with --config")
    except SettingsError as error:
        _fail(str(error))


async def _until_signalled(settings: Settings, port: int) -> None:
    try:
        from dynamo.operator.login import Login, LoginError
        from dynamo.operator.run import LeaseLostError, operate
    except ImportError as error:
        _fail(f"{error}: install the operator with `pip install 'dynamo-pipelines[operator]'`")
    if settings.secrets:
        logging.getLogger(__name__).warning(
            "credentials of etcd and NATS are not copied to pipelines yet: name a Secret in spec.runtime"
        )
    loop = asyncio.get_running_loop()

    def arm() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)

    task = asyncio.ensure_future(operate(settings, Login(), ("0.0.0.0", port), arm))
    arm()
    try:
        await task
    except asyncio.CancelledError:
        return
    except (LeaseLostError, LoginError) as error:
        _fail(str(error))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="dynamo-operator", description="Serves DynamoPipelines on Kubernetes.")
    parser.add_argument("--config", type=Path, default=Path("/etc/dynamo-operator/config.yaml"), help="settings (YAML)")
    parser.add_argument("--port", type=int, default=8080, help="of /healthz, /readyz and /metrics")
    return parser.parse_args(argv)


def _fail(sentence: str) -> None:
    sys.stderr.write(f"dynamo-operator: {sentence}\n")
    raise SystemExit(1)
