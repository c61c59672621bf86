"""Target `apiserver`: the pipelines of `pipelines.py` before a real kube-apiserver with our CRD; it never answers 5xx.

Its binaries are those of `make e2e`; without them the target says so and does nothing.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from http.client import HTTPException
from pathlib import Path
from random import Random
from typing import Any, Final

import click
import yaml
from tests.fuzz.findings import ROOT, Finding, Kept
from tests.fuzz.targets import pipelines
from tests.operator.pipelines import FULL, body

NAME: Final = "apiserver"
SECONDS: Final = 5.0
"""An answer of the API server."""
LOOK: Final = 5.0
"""CPU time of an operator's look, cut into slices or not."""
_NEEDED: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")


def run(seed: int, seconds: float, kept: Kept) -> int:
    """Apply pipelines for so long; return how many."""
    from e2e.apiserver.plane import Plane
    from e2e.kind.places import Places

    binaries = Places.of(os.environ).bin
    if missing := [name for name in _NEEDED if not (binaries / name).is_file()]:
        click.echo(f"apiserver: left out, there is no {missing[0]} here; `make e2e` builds it, or set DYNAMO_E2E_BIN")
        return 0
    with tempfile.TemporaryDirectory(prefix="fuzz-plane-") as folder:
        plane = Plane(binaries, Path(folder))
        try:
            plane.start()
            return _applied(plane.admin, seed, seconds, kept)
        finally:
            plane.stop()


def _applied(admin: Any, seed: int, seconds: float, kept: Kept) -> int:
    from e2e.apiserver.client import until
    from e2e.apiserver.plane import CRDS

    from dynamo.operator.kube.resources import PIPELINES

    admin.apply(CRDS, yaml.safe_load((ROOT / "crds/dynamo.dev_dynamopipelines.yaml").read_text()))
    until("pipelines are served", lambda: admin.items(PIPELINES) is not None)
    end, number = time.monotonic() + seconds, 0
    corpus = [*pipelines.SPECS.items()]
    while time.monotonic() < end:
        if number < len(corpus):
            name, spec = corpus[number][0], corpus[number][1]()
        else:
            name, spec = _made(Random(f"{NAME}/{seed}/{number}"))
        if broken := _tried(admin, PIPELINES.path("default"), spec):
            kept.add(Finding(NAME, name, broken, f"--only {NAME} --seed {seed}", json.dumps(spec).encode()))
        number += 1
    return number


def _made(random: Random) -> tuple[str, Any]:
    spec = json.loads(json.dumps(FULL))
    where = [pipelines._changed(random, spec) for _ in range(random.choice((1, 2)))]
    return ", ".join(where), spec


def _tried(admin: Any, path: str, spec: Any) -> list[str]:
    """Create it, look at what the server keeps as the operator does, and take it away again."""
    from e2e.apiserver.client import RefusedError

    from dynamo.operator.kube.resources import PIPELINES

    made = {**body(spec, "fuzz"), "metadata": {"name": "fuzz", "namespace": "default"}}
    began, broken, stored = time.monotonic(), [], None
    try:
        stored = admin.ask("POST", path, made)
    except RefusedError as refusal:
        if refusal.code >= 500:
            broken.append(f"the API server answered {str(refusal)[:300]}")
    except HTTPException:  # a warning for each unknown field, more of them than Python's client reads
        stored = admin.get(PIPELINES, "default", "fuzz")  # None where it was a refusal, with as many
    except UnicodeEncodeError:  # half a surrogate pair has no bytes
        return []
    except OSError as error:
        broken.append(f"the API server did not answer: {error}")
    if (took := time.monotonic() - began) > SECONDS:
        broken.append(f"the API server took {took:.1f} s")
    if stored is not None:
        admin.code("DELETE", f"{path}/fuzz")
        broken += _looked_at(stored)
    return broken


def _looked_at(stored: Any) -> list[str]:
    began = time.process_time()
    try:
        pipelines.look(stored)
    except Exception as error:
        return [f"what the API server keeps makes the operator raise {type(error).__name__}: {str(error)[:200]}"]
    took = time.process_time() - began
    return [f"a look at it took {took:.1f} s of CPU time"] if took > LOOK else []
