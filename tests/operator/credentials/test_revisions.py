"""Turning sign-in on or off is a rollout: pods without credentials would be cut off and never replaced."""

from __future__ import annotations

from dataclasses import replace

from tests.operator.pipelines import SMALLEST, Spec, pipeline

from dynamo.operator.manifests.context import ClusterSettings
from dynamo.operator.manifests.render import with_images
from dynamo.operator.plan.plan import Environment, plan

CLUSTER_SETTINGS = ClusterSettings("dynamo/frontend:1", {"default": "dynamo/worker:1"})
CLUSTER = Environment(("http://etcd:2379",), "nats://nats:4222", kubernetes_namespace="serving")


def revision(cluster: ClusterSettings, runtime: Spec | None = None) -> str:
    example = pipeline({**SMALLEST, "runtime": runtime or {}})
    return with_images(plan(example, CLUSTER), example, cluster).workers[0].revision


def test_each_server_is_part_of_the_revision() -> None:
    """Four ways to sign in are four revisions."""
    ways = [
        replace(CLUSTER_SETTINGS, etcd_sign_in=etcd, nats_sign_in=nats)
        for etcd in (True, False)
        for nats in (True, False)
    ]
    assert len({revision(way) for way in ways}) == 4


def test_a_pipeline_with_servers_of_its_own_is_left_alone() -> None:
    """What the platform asks for is nothing to it."""
    own: Spec = {"etcd": {"endpoints": ["http://e:2379"]}, "nats": {"secret": "mine"}}
    assert revision(CLUSTER_SETTINGS, own) == revision(
        replace(CLUSTER_SETTINGS, etcd_sign_in=True, nats_sign_in=True), own
    )
