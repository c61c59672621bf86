"""The charts as users run them: a platform for one namespace, upgraded, forced, removed and installed again."""

from __future__ import annotations

import pytest
import yaml
from e2e.cluster.cluster import RefusedError
from e2e.cluster.installation import CHART, Platform, values_of_run
from e2e.cluster.outage import operator_down
from e2e.cluster.releases import OWN, RELEASE, helm, install, merged
from e2e.kind.places import REPOSITORY
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import Object, asking, is_ready, say

PIPELINES = REPOSITORY / "charts/dynamo-pipeline"
NAME = "charted"


def _pods(namespace: Namespace) -> dict[str, str]:
    found = namespace.list("v1/Pod", f"app.kubernetes.io/instance={RELEASE}")
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.timeout(1800)
def test_charts(namespace: Namespace, platform: Platform) -> None:
    """Installed, tested, upgraded with and without --force, removed and installed again; its pipeline outlives all."""
    with operator_down(platform):
        notes = install(namespace)
        assert f"rollout status deployment/{RELEASE}-dynamo-platform-operator" in notes
        assert "Phase:          Succeeded" in helm(namespace, "test", RELEASE)
        _pipeline_by_chart(namespace)
        before = _pods(namespace)
        for words in ([], ["--force"]):
            install(namespace, *words)
            assert _pods(namespace) == before, f"an upgrade {words} without a change replaced pods"
        helm(namespace, "uninstall", RELEASE, "--wait", "--timeout=120s")
        assert namespace.pipeline(NAME)["status"]["conditions"]
        install(namespace)
        namespace.wait_ready(NAME)
        with asking(namespace, NAME) as client:
            assert say(client, NAME)
        logs = namespace.kubectl("logs", f"deployment/{RELEASE}-dynamo-platform-operator", "--tail=-1")
        assert "forbidden" not in logs
        namespace.kubectl("delete", f"dp/{NAME}", "--wait=true")


def _pipeline_by_chart(namespace: Namespace) -> None:
    """`dynamo-pipeline` makes it, and refuses a typo before anything is sent."""
    spec: Object = {"components": [{"engine": "mocker"}]}
    values: Object = {"pipelines": {NAME: {"spec": spec}}}
    wrong: Object = {"pipelines": {NAME: {"spec": {**spec, "replica": 2}}}}
    with pytest.raises(RefusedError, match="additional properties 'replica' not allowed"):
        helm(namespace, "install", "models", str(PIPELINES), values=wrong)
    assert f"wait dp/{NAME}" in helm(namespace, "install", "models", str(PIPELINES), values=values)
    namespace.wait_ready(NAME)
    generation = namespace.pipeline(NAME)["metadata"]["generation"]
    helm(namespace, "upgrade", "--force", "models", str(PIPELINES), values=values)
    assert namespace.pipeline(NAME)["metadata"]["generation"] == generation
    namespace.wait_ready(NAME)


def test_what_is_there_already_is_not_taken(namespace: Namespace, platform: Platform) -> None:
    """The CRD belongs to the platform's release: a second one is refused, and says by whom it is held."""
    with pytest.raises(RefusedError) as refused:
        helm(namespace, "install", RELEASE, str(CHART), values=values_of_run())
    assert "dynamopipelines.dynamo.dev" in str(refused.value)
    assert f'current value is "{platform.release}"' in str(refused.value)
    assert namespace.list("apps/v1/Deployment") == []


def test_etcd_and_nats_must_come_from_somewhere(namespace: Namespace, platform: Platform) -> None:
    """A sentence instead of an operator without servers; a monitor without its CRD is named too."""
    for values, sentence in (
        ({"etcd": {"enabled": False}}, "no etcd: set etcd.enabled=true"),
        ({"nats": {"enabled": False}}, "no NATS: set nats.enabled=true"),
        ({"metrics": {"serviceMonitor": {"enabled": True}}}, "ensure CRDs are installed first"),
    ):
        with pytest.raises(RefusedError, match=sentence):
            helm(namespace, "install", RELEASE, str(CHART), values=merged(OWN, values))


def test_the_example_of_the_notes_is_a_pipeline(namespace: Namespace, platform: Platform) -> None:
    """What the notes tell users to apply is taken as it is printed."""
    text = (CHART / "templates/NOTES.txt").read_text()
    example = text[text.index("  apiVersion: dynamo.dev") : text.index("  EOF")]
    manifest = yaml.safe_load(example)
    namespace.apply(manifest)
    namespace.wait_ready(manifest["metadata"]["name"])
    assert all(map(is_ready, namespace.list("v1/Pod")))
