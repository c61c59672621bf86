"""Keeps the Secret by which several etcd members know each other: `keep(api, namespace, peers)`.

The members wait for it, so it is made before there is any pipeline. A Secret that is there stays as it is while it
fits: members that read another one at their next start would be strangers to the rest.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from dynamo.operator.credentials import peer_certificates
from dynamo.operator.credentials.platform import platform_secret
from dynamo.operator.credentials.secret import data_in
from dynamo.operator.kube.client import Api
from dynamo.operator.kube.errors import ApiError
from dynamo.operator.kube.resources import SECRETS
from dynamo.operator.settings import EtcdPeers

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 60.0
AGAIN_SECONDS: Final = 2.0


async def keep(api: Api, namespace: str, peers: EtcdPeers) -> None:
    """Make the Secret whenever it is missing, until cancelled."""
    said = ""
    while True:
        try:
            problem = await make(api, namespace, peers)
        except ApiError as error:
            problem = str(error)
        if problem and problem != said:
            log.warning("Secret %s/%s of etcd's members: %s; trying again", namespace, peers.secret, problem)
        said = problem
        await asyncio.sleep(AGAIN_SECONDS if problem else LOOK_SECONDS)


async def make(api: Api, namespace: str, peers: EtcdPeers) -> str:
    """Make the Secret unless it is there; return what is wrong with the one that is. Raises `ApiError`."""
    secret = await api.get(SECRETS, namespace, peers.secret)
    if secret is not None:
        whole = peer_certificates.is_for(data_in(secret), peers.hosts)
        return "" if whole else "it holds no certificate for all members; delete it, and a new one is made"
    data = peer_certificates.new_certificate(peers.hosts, time.time())
    try:
        await api.create(SECRETS, namespace, platform_secret(peers.secret, data))
    except ApiError as error:
        if error.code != 409:  # another replica was first
            raise
    else:
        log.info("created the Secret %s/%s for etcd's members", namespace, peers.secret)
    return ""
