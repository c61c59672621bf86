"""Flags, environment, and the argv that the supervisor makes of settings."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner

from dynamo.frontend.process import make_command
from dynamo.frontend.settings import FrontendSettings, problem, to_argv
from dynamo.runtime.process.settings import build, parse


@pytest.mark.parametrize(
    "settings",
    [
        FrontendSettings(),
        build(FrontendSettings, http_port=0, cors_origin=["https://a", "b"], strict_fields=True, use_kv_events=False),
        build(
            FrontendSettings,
            max_requests_per_model=7,
            first_token_timeout_secs=0.5,
            namespace="x",
            worker_wait_timeout_secs=1.5,
            active_decode_blocks_threshold=0.5,
            system_port=9090,
            workers=3,
        ),
    ],
)
def test_argv_gives_the_settings_back(settings: FrontendSettings) -> None:
    """What the supervisor passes on is what it was given."""
    assert parse(FrontendSettings, to_argv(settings)) == settings


def test_changes_and_verbosity_travel() -> None:
    """Changes are applied; `-v` is repeated."""
    argv = to_argv(FrontendSettings(workers=4, verbose=2), workers=1)
    assert "--workers=1" in argv
    assert argv[-2:] == ["-v", "-v"]


def test_environment_and_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag wins over its variable, which wins over the default."""
    monkeypatch.setenv("DYN_HTTP_PORT", "81")
    monkeypatch.setenv("DYN_ROUTER_MODE", "random")
    found = parse(FrontendSettings, ["--http-port", "82"])
    assert (found.http_port, found.router_mode, found.http_host) == (82, "random", "0.0.0.0")


@pytest.mark.parametrize(
    ("argv", "environment"),
    [
        (["--busy-threshold=0.8", "--kv-overlap-score-weight=2", "--no-kv-events"], {}),
        (["--router-kv-overlap-score-weight=2", "--no-router-kv-events"], {"DYN_BUSY_THRESHOLD": "0.8"}),
        (
            [],
            {
                "DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD": "0.8",
                "DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT": "2",
                "DYN_USE_KV_EVENTS": "false",
            },
        ),
    ],
    ids=["older flags", "other flags", "variables"],
)
def test_names_of_all_ages(monkeypatch: pytest.MonkeyPatch, argv: list[str], environment: dict[str, str]) -> None:
    """The original's older names mean what they meant."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = parse(FrontendSettings, argv)
    assert (
        found.thresholds.active_decode_blocks_threshold,
        found.kv.overlap_score_weight,
        found.kv.follow_events,
    ) == (0.8, 2.0, False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"router_prefill_load_scale": -1.0}, "--router-prefill-load-scale"),
        ({"router_temperature": float("nan")}, "--router-temperature"),
        ({"router_kv_overlap_score_credit": -1.0}, "--router-kv-overlap-score-credit"),
        ({"router_ttl_secs": 0.0}, "--router-ttl-secs"),
        ({"workers": 0}, "--workers"),
        ({"http_port": 70000}, "--http-port"),
        ({"migration_limit": -1}, "--migration-limit"),
        ({"migration_max_seq_len": 0}, "--migration-max-seq-len"),
        ({"body_limit_mb": 0}, "--body-limit-mb"),
        ({"worker_wait_timeout_secs": -1}, "--worker-wait-timeout-secs"),
        ({"active_decode_blocks_threshold": 1.5}, "--active-decode-blocks-threshold"),
        ({"active_decode_blocks_threshold": float("nan")}, "--active-decode-blocks-threshold"),
        ({"active_prefill_tokens_threshold": -1}, "--active-prefill-tokens-threshold"),
        ({"active_prefill_tokens_threshold_frac": float("inf")}, "--active-prefill-tokens-threshold-frac"),
        ({"router_queue_threshold": -0.5}, "--router-queue-threshold"),
        ({"router_queue_limit": 0}, "--router-queue-limit"),
        ({"router_queue_timeout_secs": 0.0}, "--router-queue-timeout-secs"),
        ({"router_session_affinity_ttl_secs": 0}, "--router-session-affinity-ttl-secs"),
        ({"router_session_affinity_ttl_secs": 31_536_001}, "--router-session-affinity-ttl-secs"),
        ({"router_session_affinity_limit": 0}, "--router-session-affinity-limit"),
        ({"max_concurrent_requests": 0}, "--max-concurrent-requests"),
        ({"max_connections": -1}, "--max-connections"),
        ({"backend_stream_timeout_secs": 0.0}, "--backend-stream-timeout-secs"),
        ({"request_timeout_secs": float("nan")}, "--request-timeout-secs"),
        ({"write_timeout_secs": 0.0}, "--write-timeout-secs"),
    ],
)
def test_problems_are_one_sentence(changes: dict[str, Any], words: str) -> None:
    """Settings that can't be served are refused by flag name."""
    assert words in (problem(build(FrontendSettings, **changes)) or "")


def test_usage_errors_have_exit_code_2() -> None:
    """A wrong value and an unknown flag end with code 2 and no traceback."""
    for argv in (["--router-mode", "x"], ["--nope"], ["--router-mode", "kv", "--router-temperature", "-1"]):
        result = CliRunner().invoke(make_command(), argv)
        assert (result.exit_code, "Traceback" in result.output) == (2, False)


def test_help_names_variables() -> None:
    """`--help` shows each flag with its variable."""
    text = CliRunner().invoke(make_command(), ["--help"]).output
    assert isinstance(make_command(), click.Command)
    for name in ("DYN_HTTP_PORT", "DYN_ROUTER_MODE", "DYN_FRONTEND_WORKERS", "--verbose"):
        assert name in text
