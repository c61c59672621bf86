"""Writes the support matrix, and the line of it that each engine's page quotes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from docs.generate.markdown import anchor, code, page, prose, table
from docs.generate.support.table import MATRIX, Feature, Status, Support

from dynamo.engine_catalog import EngineName

HEAD: Final = """# Support matrix

Made from one table by `make generate`; don't edit it by hand. Each test that it names exists, which a test checks.

- **supported**: a test in continuous integration shows it with this engine.
- **experimental**: it was tested elsewhere or in part, for example on CPUs for an engine that is made for GPUs.
- **planned**: code may be there; nothing shows yet that it works with the engine itself.
- An empty cell: the engine doesn't have it, or nobody plans it.

Linux only. On a GPU only vLLM has run: on one H200, on 2026-11-26.
"""
_TABLES: Final = {
    "Engines for CPUs": (EngineName.LLAMACPP, EngineName.MISTRALRS, EngineName.OPENAI, EngineName.PYTHON),
    "Engines for GPUs": (EngineName.VLLM, EngineName.SGLANG, EngineName.TRTLLM),
    "Engines for tests": (EngineName.MOCKER, EngineName.ECHO_CORE, EngineName.ECHO_FULL),
}
PAGES: Final = {EngineName.ECHO_CORE: "echo", EngineName.ECHO_FULL: "echo"}
"""Pages of several engines; each other engine has one of its name."""


def render() -> str:
    """Write the whole page."""
    parts = [HEAD]
    for title, engines in _TABLES.items():
        names = [f"[{engine}](#{anchor(engine)})" for engine in engines]
        rows = ((feature.value, *(_cell(MATRIX[engine].get(feature)) for engine in engines)) for feature in Feature)
        parts += [f"## {title}", table(("feature", *names), (row for row in rows if any(row[1:])))]
    for engine, features in MATRIX.items():
        parts += _engine(engine, features)
    return page(parts)


def _cell(support: Support | None) -> str:
    return "" if support is None else str(support.status)


def _engine(engine: EngineName, features: Mapping[Feature, Support]) -> Iterator[str]:
    yield f"## {engine}"
    yield prose(f"[How to use it](../how-to/serve/engines/{PAGES.get(engine, engine)}.md). {status_line(engine)}")
    rows = ((feature.value, _status(support), _test(support)) for feature, support in features.items())
    yield table(("feature", "status", "shown by"), rows)
    run = {
        EngineName.VLLM: "`make test-vllm`, or on a GPU `make test-gpu`,", EngineName.SGLANG: "`make test-sglang`",
    }.get(engine)  # fmt: skip
    if run:
        yield prose(f"{run} runs these tests with the engine itself, in an environment of its own.")


def _status(support: Support) -> str:
    return str(support.status) + (f", {support.where}" if support.where else "")


def _test(support: Support) -> str:
    return code(support.test)


def status_line(engine: EngineName) -> str:
    """Return the sentence on an engine that its page, the guides and the README quote."""
    features = MATRIX[engine]
    text = features[Feature.TEXT].status
    where = features[Feature.TEXT].where
    gpu = features.get(Feature.GPU)
    begin = f"**Status: {text}**" + (f", tested {where}" if where else "")
    return begin + ("; not run on a GPU yet." if gpu is not None and gpu.status is Status.PLANNED else ".")


def quoted(engine: EngineName) -> str:
    """Return the line of an engine's page."""
    return f"{status_line(engine)}\n[Support matrix](../../../reference/support-matrix.md#{anchor(engine)})"
