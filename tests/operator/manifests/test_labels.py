"""Labels of children that somebody removes: what is found by them is still known."""

from __future__ import annotations

import pytest
from tests.operator.reconcile.test_reconciler import Bench, run

from dynamo.operator.manifests import naming


@pytest.mark.parametrize(
    "gone", [[naming.PIPELINE], [naming.COMPONENT], [naming.REVISION], [naming.PIPELINE, naming.REVISION], None]
)
def test_workers_whose_labels_somebody_took_away_go_on(gone: list[str] | None) -> None:
    """One label, some or all of the StatefulSet's: they come back, and no worker is told to end for it."""

    async def case(bench: Bench) -> None:
        await bench.settle()
        before = bench.fingerprint()
        (name,) = bench.server.names("StatefulSet")
        live = bench.server.one("StatefulSet", name)
        labels = {} if gone is None else {k: v for k, v in live["metadata"]["labels"].items() if k not in gone}
        bench.server.put({**live, "metadata": {**live["metadata"], "labels": labels}})
        for _ in range(3):
            await bench.reconcile()
            assert bench.server.one("StatefulSet", name)["spec"]["replicas"] == 3
            ready = bench.condition("Ready")
            assert ready is not None
            assert ready["status"] == "True"
        assert len(bench.server.names("Pod")) == 3
        assert bench.fingerprint() == before
        assert (await bench.reconcile()).writes == 0

    run(case, {"components": [{"engine": "mocker", "replicas": 3}]})
