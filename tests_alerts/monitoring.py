"""A real Prometheus with a real Alertmanager: `Monitoring`, and the notifications that leave it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import httpx
import yaml
from tests.fixtures_etcd import free_ports
from tests.processes import Process
from tests.waiting import eventually
from tests_alerts import rules

INTERVAL: Final = "1s"
_PATIENCE: Final = 180.0
"""A busy machine may take its time; nothing is waited for that doesn't come."""


class Notifications:
    """What Alertmanager tells a pager: `said` has each (alert, namespace, status), in order."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str, str]] = []
        self.annotations: dict[str, dict[str, str]] = {}
        notifications = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                notifications.take(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Keep quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def take(self, body: dict[str, Any]) -> None:
        for alert in body["alerts"]:
            name, namespace = alert["labels"]["alertname"], alert["labels"].get("namespace", "")
            self.annotations[name] = alert["annotations"]
            self.said.append((name, namespace, alert["status"]))

    def last(self, alert: str, namespace: str) -> str:
        """The latest status of an alert; empty where there was none."""
        return next((status for *what, status in reversed(self.said) if what == [alert, namespace]), "")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


class Monitoring:
    """Prometheus, Alertmanager and a pager; `targets` are what is scraped."""

    def __init__(self, folder: Path, factor: int = rules.FACTOR) -> None:
        self._targets: dict[str, dict[str, str]] = {}
        self._file = folder / "targets.json"
        self._write()
        self.pager = Notifications()
        prometheus, alertmanager = free_ports(2)
        self.url, self._alertmanager = f"http://127.0.0.1:{prometheus}", f"http://127.0.0.1:{alertmanager}"
        (folder / "alerts.yaml").write_text(rules.grouped([rules.hurried(rule, factor) for rule in rules.alerts()]))
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(self._settings(alertmanager)))
        (folder / "alertmanager.yaml").write_text(yaml.safe_dump(_pager_settings(self.pager.url)))
        self._processes = [
            Process("alertmanager", [
                "prometheus-alertmanager", f"--config.file={folder / 'alertmanager.yaml'}",
                f"--storage.path={folder / 'alertmanager'}", f"--web.listen-address=127.0.0.1:{alertmanager}",
                "--cluster.listen-address=",
            ], folder),
            Process("prometheus", [
                "prometheus", f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'prometheus'}", f"--web.listen-address=127.0.0.1:{prometheus}",
                "--rules.alert.resend-delay=1s", "--query.lookback-delta=10s",
            ], folder),
        ]  # fmt: skip

    def _settings(self, alertmanager: int) -> dict[str, Any]:
        discovery = [{"files": [str(self._file)], "refresh_interval": INTERVAL}]
        return {
            "global": {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL, "evaluation_interval": INTERVAL},
            "rule_files": ["alerts.yaml"],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager}"]}]}]},
            "scrape_configs": [{"job_name": "pods", "file_sd_configs": discovery}],
        }

    def watch(self, url: str, **labels: str) -> None:
        """Scrape a program's `/metrics` with the labels that the PodMonitor gives it."""
        self._targets[url.removeprefix("http://")] = labels
        self._write()

    def forget(self, namespace: str) -> None:
        """Scrape nothing of a namespace any more."""
        self._targets = {url: labels for url, labels in self._targets.items() if labels["namespace"] != namespace}
        self._write()

    def _write(self) -> None:
        groups = [{"targets": [target], "labels": labels} for target, labels in self._targets.items()]
        made = self._file.with_suffix(".new")
        made.write_text(json.dumps(groups))
        made.rename(self._file)

    def ready(self) -> None:
        """Wait until both servers are; a log of one that isn't lies beside its settings."""
        for url in (self.url, self._alertmanager):
            eventually(f"{url} is ready", partial(_is_ready, url), 60, despite=(httpx.HTTPError, OSError))

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What an instant query gives."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expression}, timeout=10).json()
        assert answer["status"] == "success", (expression, answer)
        return list(answer["data"]["result"])

    def until(self, expression: str, within: float = _PATIENCE) -> None:
        """Wait until a query gives something."""
        eventually(expression, lambda: self.query(expression), within, despite=(httpx.HTTPError, OSError))

    def fires(self, alert: str, namespace: str, within: float = _PATIENCE) -> None:
        """Wait until the pager is told."""
        eventually(f"{alert} fires in {namespace}", lambda: self.pager.last(alert, namespace) == "firing", within)

    def clears(self, alert: str, namespace: str, within: float = _PATIENCE) -> None:
        """Wait until the pager is told that it is over."""
        eventually(f"{alert} clears in {namespace}", lambda: self.pager.last(alert, namespace) == "resolved", within)

    def close(self) -> None:
        for process in reversed(self._processes):
            process.kill()
        self.pager.close()


def _is_ready(url: str) -> bool:
    return httpx.get(f"{url}/-/ready", timeout=10).is_success


def _pager_settings(url: str) -> dict[str, Any]:
    waits = {"group_by": ["..."], "group_wait": "0s", "group_interval": INTERVAL, "repeat_interval": "1h"}
    hook = {"url": url, "send_resolved": True}
    return {"route": {"receiver": "pager", **waits}, "receivers": [{"name": "pager", "webhook_configs": [hook]}]}


@contextmanager
def monitored(folder: Path) -> Iterator[Monitoring]:
    """One that scrapes, for as long as the block lasts."""
    monitoring = Monitoring(folder)
    try:
        monitoring.ready()
        yield monitoring
    finally:
        monitoring.close()
