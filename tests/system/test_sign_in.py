"""Frontend and worker with credentials as a cluster mounts them: they serve, another tenant's do not."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import aiohttp
import httpx
import pytest
from tests.processes import Process
from tests.system.conftest import Frontend, Stack, binary, eventually

from dynamo.operator.credentials import nats_keys
from dynamo.operator.credentials.etcd_auth import EtcdAdmin, EtcdAuth
from dynamo.operator.credentials.etcd_users import Owner
from dynamo.operator.credentials.nats_keys import NatsIssuer
from dynamo.operator.credentials.platform import new_nats_keys
from dynamo.operator.credentials.secret import Data, Material, PipelineIdentity, data_of, etcd_user

pytestmark = [pytest.mark.servers, pytest.mark.processes, pytest.mark.usefixtures("any_etcd_version")]

T = TypeVar("T")
ADMIN = EtcdAdmin("root", "secret")


def draw() -> bytes:
    return os.urandom(32)


class Secured:
    """A stack whose etcd and NATS ask for sign-in, and the folders of its tenants."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.stack, self.folder = stack, folder
        self.keys = new_nats_keys()
        self.stack.nats.kill()
        self.start_nats()
        self.told(lambda auth: auth.set_up("epoch"))

    def start_nats(self) -> None:
        """With the keys as they are now."""
        (self.folder / nats_keys.SERVER_CONF).write_bytes(self.keys[nats_keys.SERVER_CONF])
        conf = self.folder / "nats.conf"
        conf.write_text(f"include ./{nats_keys.SERVER_CONF}\n")
        argv = [binary("nats-server"), "-c", str(conf), "-a", "127.0.0.1", "-p", str(self.stack.nats_port)]
        self.stack.nats = self.stack.start("nats", argv)

    def told(self, what: Callable[[EtcdAuth], Awaitable[T]]) -> T:
        async def main() -> T:
            async with aiohttp.ClientSession() as session:
                return await what(EtcdAuth(session, [self.stack.env["ETCD_ENDPOINTS"]], ADMIN))

        return asyncio.run(main())

    def admit(self, namespace: str) -> Data:
        """New credentials for a Dynamo namespace, laid out as kubelet does."""
        place = PipelineIdentity("p", Owner("serving", namespace), namespace, frozenset({"etcd", "nats"}))
        data = data_of(Material(ADMIN, NatsIssuer.of(self.keys)), place, {}, draw, 1)
        user = etcd_user(data, place)
        assert user is not None
        self.told(lambda auth: auth.ensure(*user))
        for key, content in data.items():
            server, _, file = key.partition(".")
            (self.folder / namespace / server).mkdir(parents=True, exist_ok=True)
            (self.folder / namespace / server / file).write_bytes(content)
        return data

    def env(self, namespace: str) -> dict[str, str]:
        folder = self.folder / namespace
        return {"ETCD_AUTH_DIR": str(folder / "etcd"), "NATS_AUTH_DIR": str(folder / "nats")}


def answers(frontend: Frontend) -> bool:
    question = {"model": "m", "prompt": "a b c", "max_tokens": 3}
    return httpx.post(f"{frontend.url}/v1/completions", json=question, timeout=10).status_code == 200


def continued(first: Frontend, second: Frontend) -> bool:
    """Whether a response that one frontend has stored is read, and gone on with, by the other."""
    question: dict[str, object] = {"model": "m", "input": "a b c", "max_output_tokens": 3}
    made = httpx.post(f"{first.url}/v1/responses", json=question, timeout=10).json()
    read = httpx.get(f"{second.url}/v1/responses/{made['id']}", timeout=10)
    more = {**question, "previous_response_id": made["id"]}
    answer = httpx.post(f"{second.url}/v1/responses", json=more, timeout=10)
    assert (read.status_code, answer.status_code) == (200, 200), (read.text, answer.text)
    return bool(read.json()["output"] == made["output"] and answer.json()["previous_response_id"] == made["id"])


def no_secret_in(process: Process, data: Data) -> bool:
    seed = data["nats.user.creds"].decode().partition("-----BEGIN USER NKEY SEED-----\n")[2].partition("\n")[0]
    assert seed.startswith("SU")
    argv = Path(f"/proc/{process.popen.pid}/cmdline").read_text() if process.popen.poll() is None else ""
    return all(text not in process.text() + argv for text in (seed, data["etcd.password"].decode()))


def test_a_pipeline_with_its_credentials(stack: Stack, tmp_path: Path) -> None:
    """It serves, its frontends share what they store; another tenant's files get nobody in; rotation stops nothing."""
    secured = Secured(stack, tmp_path)
    mine, theirs = secured.admit("test"), secured.admit("other")
    frontend = stack.frontend(**secured.env("test"))
    worker = stack.worker(**secured.env("test"))
    frontend.wait_for()
    assert answers(frontend)
    sibling = stack.frontend(name="sibling", **secured.env("test"))
    sibling.wait_for()
    assert continued(frontend, sibling)

    intruder = stack.worker("intruder", **secured.env("other"))
    said = "permissions violation"
    eventually("the intruder is refused", lambda: said in intruder.text().lower() or "does not let" in intruder.text())
    eventually("it ends", lambda: intruder.popen.poll() is not None, 60)
    assert frontend.instances() == 1
    assert no_secret_in(intruder, theirs)

    before = mine["etcd.username"].decode()
    for _ in range(2):  # after the second renewal the server takes nobody of the first keys
        secured.keys = nats_keys.renewed_platform(secured.keys, draw, 2)
    new = secured.admit("test")
    secured.told(lambda auth: auth.remove(before))
    stack.nats.kill()
    secured.start_nats()
    eventually("it serves with the new files", lambda: answers(frontend), 60)
    late = stack.worker("late", **secured.env("test"))
    frontend.wait_for(instances=2)
    assert continued(sibling, frontend)
    for process in (frontend.process, sibling.process, worker, late):
        assert process.popen.poll() is None
        assert no_secret_in(process, mine)
        assert no_secret_in(process, new)
