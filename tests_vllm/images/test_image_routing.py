"""Requests with images over two workers of a real vLLM: sent where they are cached, continued where one is lost, and
computed by one for the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fixtures_etcd import EtcdServer
from tests.fixtures_nats import NatsServer
from tests.waiting import eventually
from tests.worker.engine_rigs import PROMPT
from tests_vllm.images.test_images import GREEDY, HALF, encoded, options, pixels, shown
from tests_vllm.images.tiny_vision_model import write
from tests_vllm.programs import Program
from tests_vllm.servers.test_servers import System
from tests_vllm.test_prefill_decode import count

pytestmark = [pytest.mark.servers, pytest.mark.processes]
LONG: dict[str, Any] = {**GREEDY, "max_tokens": 900, "stream_options": {"include_usage": True}}


@pytest.fixture
def system(tmp_path: Path, etcd_server: EtcdServer, nats_server: NatsServer) -> Iterator[System]:
    """Start a frontend that routes by KV caches, and two workers."""
    seer = write(tmp_path / "seer")
    flags = ["--router-mode", "kv", "--migration-limit", "3"]
    with System(tmp_path, etcd_server, nats_server, *flags) as whole:
        for _ in range(2):
            whole.join(seer, "vllm", "--extra-engine-args", str(options(tmp_path / "vllm.json")))
        whole.ready()
        yield whole


def test_images_go_where_they_are_cached_and_on_where_a_worker_is_lost(system: System) -> None:
    """Eight images of one size and text, each asked three times: all but the first times are hits. Then a worker is
    killed within an answer, whose text is that of a quiet run."""
    text = f"Nobody else asks this. {PROMPT * 3}"
    for turn in range(3):
        for seed in range(8):
            assert (cached(system, shown(encoded(pixels(seed=seed)), text=text)) > 0) == (turn > 0), (turn, seed)
    asked = shown(encoded(pixels(seed=99)))
    made = [tokens(worker) for worker in system.workers]
    quiet = streamed(system, asked)
    lost = next(own for own, before in zip(system.workers, made, strict=True) if tokens(own) > before)
    core = lost.core()
    assert core is not None
    parts = iter(system.asker.chat.completions.create(model="tiny", messages=asked, stream=True, **LONG))
    pieces = [next(parts) for _ in range(20)]
    core.kill()
    pieces += parts
    assert joined(pieces) == quiet
    assert pieces[-1].usage.completion_tokens == LONG["max_tokens"]
    assert system.migrations()["ongoing_request"] == 1
    assert lost.popen.wait(120) == 1
    eventually("the other one has the image, too", lambda: cached(system, asked))


def test_a_prompt_with_images_is_computed_elsewhere(
    tmp_path: Path, etcd_server: EtcdServer, nats_server: NatsServer
) -> None:
    """A decode worker alone, then one that gets its prompts from a prefill worker over NIXL: the same answers."""
    seer, given = write(tmp_path / "seer"), str(options(tmp_path / "vllm.json"))
    with System(tmp_path, etcd_server, nats_server) as system:
        decode = system.join(seer, "vllm", "--extra-engine-args", given, "--role", "decode")
        system.ready()
        chats = [shown(*(encoded(pixels(seed=seed + more)) for more in range(2))) for seed in (10, 20, 30)]
        alone = [answer(system, chat, "alone") for chat in chats]
        elsewhere = f"dyn://{system.namespace}.prefill.generate"
        system.join(seer, "vllm", "--extra-engine-args", given, "--role", "prefill", "--endpoint", elsewhere)
        system.ready()

        def remote() -> float:
            return count(httpx.get(f"{system.url}/metrics").text, "model_remote_prefills_total")

        eventually("prompts are computed elsewhere", lambda: answer(system, shown(), "soon") and remote())
        before = remote()
        assert [answer(system, chat, "elsewhere") for chat in chats] == alone
        assert remote() == before + len(chats)
        told = page(decode)
        assert count(told, "vllm:nixl_bytes_transferred_count") > len(chats)
        assert count(told, "vllm:nixl_num_failed_transfers_total") == 0


def answer(system: System, messages: list[Any], salt: str) -> str:
    """Return an answer whose prompt shares no cache with those of another salt."""
    extra = {"ignore_eos": True, "cache_salt": salt}
    told = system.asker.chat.completions.create(
        model="tiny", messages=messages, **{**GREEDY, "extra_body": extra}
    )  # fmt: skip
    return (told.choices[0].message.content or "").rstrip(HALF)


def tokens(worker: Program) -> float:
    """Return how many tokens a worker has made."""
    return count(page(worker), "vllm:generation_tokens_total")


def page(worker: Program) -> str:
    """Return a worker's metrics."""
    return httpx.get(f"http://127.0.0.1:{worker.ready()['system_port']}/metrics").text


def cached(system: System, messages: list[Any]) -> int:
    """Return how many tokens of a prompt were cached."""
    usage = system.asker.chat.completions.create(model="tiny", messages=messages, **GREEDY).usage
    assert usage is not None
    details = usage.prompt_tokens_details
    return (details.cached_tokens or 0) if details is not None else 0


def streamed(system: System, messages: list[Any]) -> str:
    """Return a long answer."""
    return joined(system.asker.chat.completions.create(model="tiny", messages=messages, stream=True, **LONG))


def joined(parts: Any) -> str:
    """Return the text of a stream."""
    return "".join(part.choices[0].delta.content or "" for part in parts if part.choices).rstrip(HALF)
