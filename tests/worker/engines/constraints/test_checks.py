"""Constraints are compiled outside of the worker: hostile ones are refused, whatever they do to their compiler."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dynamo.llm.protocols import PreprocessedRequest, SamplingOptions
from dynamo.runtime.errors import CapacityExceeded, DynamoException, EngineShutdown, InvalidArgument
from dynamo.worker.engines.constraints import pool as constraint_pool
from dynamo.worker.engines.constraints.checks import MOST_CHOICES, MOST_SCHEMA, MOST_TEXT, bounded
from dynamo.worker.engines.constraints.pool import Constrained, ConstraintPool, Remembered

pytestmark = pytest.mark.timeout(120)

LARK = "%llguidance {}\n"


def nested(levels: int, around: Callable[[Any], Any], inner: Any) -> Any:
    for _ in range(levels):
        inner = around(inner)
    return inner


def chain(links: int) -> dict[str, Any]:
    """A schema whose definitions refer to each other, one after the other."""
    definitions: dict[str, Any] = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(links)}
    return {"$defs": definitions | {f"d{links}": {"type": "string"}}, "$ref": "#/$defs/d0"}


FINE: dict[str, dict[str, Any]] = {
    "gbnf": {"grammar": 'root ::= "a" | "b" root'},
    "lark": {"grammar": f'{LARK}start: "a" /[b-d]+/'},
    "schema": {"json": {"type": "object", "properties": {"a": {"type": "array", "minItems": 2, "maxItems": 500}}}},
    "tree": {"json": {"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"}},
    "an answer of nothing": {"json": {"$ref": "#"}},
    "regex": {"regex": r"[a-z]{1,60}@\w+\.(com|org)"},
    "parentheses in a set": {"regex": r"[(]{1,3}" + "[(]" * 300},
    "most choices": {"choice": [f"choice number {n}" for n in range(MOST_CHOICES)]},
    "large": {"json": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(300)}}},
}
HOSTILE: dict[str, dict[str, Any]] = {
    "the reported one": {"grammar": "root ::= " + "(" * 50_000 + '"a"' + ")" * 50_000},
    "too many characters": {"grammar": 'root ::= "' + "a" * MOST_TEXT + '"'},
    "deep Lark": {"grammar": f"{LARK}start: " + "(" * 30_000 + '"a"' + ")" * 30_000},
    "deep Lark behind a string": {"grammar": f"{LARK}start: " + '( ")" ' * 9_000 + '"a"' + ")" * 9_000},
    "rules of Lark in a chain": {
        "grammar": f"{LARK}start: r0\n" + "\n".join(f"r{n}: r{n + 1}" for n in range(3000)) + '\nr3000: "a" | "b" r0'
    },
    "terminals in a chain": {
        "grammar": f"{LARK}start: T0\n" + "\n".join(f"T{n}: T{n + 1}" for n in range(3000)) + '\nT3000: "a"'
    },
    "terminals that double": {
        "grammar": f"{LARK}start: T0\n" + "\n".join(f"T{n}: T{n + 1} T{n + 1}" for n in range(60)) + '\nT60: "a"'
    },
    "definitions in a chain": {"json": chain(900)},
    "a longer chain": {"json": chain(3000)},
    "a chain as text": {"json": json.dumps(chain(990))},
    "deep JSON": {"json": nested(300, lambda inner: {"items": inner}, {"type": "string"})},
    "deep JSON as text": {"json": '{"items":' * 20_000 + "{}" + "}" * 20_000},
    "a large schema": {"json": {"enum": ["x" * 1000] * (MOST_SCHEMA // 1000 + 80)}},
    "a large schema as text": {"json": json.dumps({"enum": ["x" * 1000] * 400})},
    "ten million items": {"json": {"type": "array", "minItems": 10_000_000}},
    "a float of items": {"json": {"type": "array", "maxItems": 1e300}},
    "a long text": {"json": {"type": "string", "minLength": 10_000_000}},
    "multiples that multiply": {"json": {"allOf": [{"type": "integer", "multipleOf": n} for n in (97, 89, 83)]}},
    "large multiples": {"json": {"type": "integer", "multipleOf": 1_234_567}},
    "a deep pattern": {"json": {"type": "string", "pattern": "(" * 5000 + "a" + ")" * 5000}},
    "a deep regex": {"regex": "(" * 30_000 + "a" + ")" * 30_000},
    "nested repetitions": {"regex": "((a{1000}){1000}){1000}"},
    "no regex": {"regex": 7},
    "too many choices": {"choice": [str(n) for n in range(MOST_CHOICES + 1)]},
    "choices that are none": {"choice": "abc"},
    "choices too long": {"choice": ["x" * 100_000] * 3},
    "a remote schema": {"json": {"$ref": "http://127.0.0.1:9/x.json"}},
    "a file": {"json": {"$ref": "file:///etc/passwd"}},
    "a foreign kind": {"structural_tag": "x"},
}


class Told:
    """A sink."""

    def __init__(self) -> None:
        self.end: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    def push(self, produced: Any, extras: Any = None) -> None:
        raise AssertionError

    def finish(self, reason: str, extras: Any = None) -> None:
        raise AssertionError

    def fail(self, error: Exception) -> None:
        self.end.set_result(error)


def asking(wanted: dict[str, Any] | None) -> PreprocessedRequest:
    return PreprocessedRequest(model="m", token_ids=[1], sampling_options=SamplingOptions(guided_decoding=wanted))


async def compiled(pool: ConstraintPool, wanted: dict[str, Any]) -> dict[str, Any]:
    data, digest, made = pool.remembered(wanted)
    return constraint_pool.engine_form(made) if made is not None else await pool.compile(data, digest)


def with_pool(body: Callable[[ConstraintPool], Awaitable[None]], engine: str = "llamacpp", **options: Any) -> None:
    async def run() -> None:
        pool = ConstraintPool(engine, **options)
        try:
            await body(pool)
        finally:
            await pool.stop()

    asyncio.run(run())


def test_ordinary_constraints_pass() -> None:
    """Each kind, as the engine takes it; asked again, the answer is there at once."""

    async def body(pool: ConstraintPool) -> None:
        wrong = {}
        for name, wanted in FINE.items():
            try:
                made = await compiled(pool, wanted)
                assert made["compiled"].startswith(LARK.split()[0])
                assert pool.remembered(wanted)[2] == made
            except InvalidArgument as error:
                wrong[name] = error.message
        assert not wrong

    with_pool(body)


@pytest.mark.parametrize("engine", ["llamacpp", "mistralrs"])
def test_hostile_constraints_are_refused(engine: str) -> None:
    """With one bounded sentence; their process may fall, and the next constraint finds another."""

    async def body(pool: ConstraintPool) -> None:
        values: dict[str, str] = {}
        for name, wanted in HOSTILE.items():
            try:
                await compiled(pool, wanted)
            except InvalidArgument as error:
                values[name] = error.message
        assert [name for name in HOSTILE if name not in values] == []
        assert max(map(len, values.values())) < 1100
        assert await compiled(pool, {"choice": ["a", "b"]})

    with_pool(body, engine)


def test_bounds_for_engines_that_compile_elsewhere() -> None:
    """vLLM and the like get what was asked for as it was, where it is within the bounds."""

    async def body(pool: ConstraintPool) -> None:
        for name in ("lark", "schema", "regex", "most choices"):
            assert await compiled(pool, FINE[name]) == FINE[name]
        for name in ("too many choices", "deep JSON", "ten million items", "a deep regex", "too many characters"):
            with pytest.raises(InvalidArgument):
                await compiled(pool, HOSTILE[name])

    with_pool(body, "vllm")


def test_all_kinds_that_are_there_are_looked_at() -> None:
    """A second one behind a good one, and the white space of a schema."""
    for more in ({"regex": "(" * 300}, {"whitespace_pattern": "(" * 300}):
        with pytest.raises(InvalidArgument):
            bounded({"json": {}, **more})


def test_a_time_limit_for_those_that_wait() -> None:
    """One that isn't compiled in time says that there is no room, and its process is ended."""

    async def body(pool: ConstraintPool) -> None:
        with pytest.raises(CapacityExceeded, match="within 0"):
            await compiled(pool, FINE["schema"])

    with_pool(body, seconds=0.0)


def test_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beyond it are told at once."""

    async def body(pool: ConstraintPool) -> None:
        tasks = [asyncio.ensure_future(compiled(pool, {"regex": f"a{n}"})) for n in range(6)]
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        full = [end for end in ended if isinstance(end, CapacityExceeded)]
        assert len(full) == 2, ended
        assert sum(isinstance(end, dict) for end in ended) == 4

    monkeypatch.setattr(constraint_pool, "WAITING", 4)
    with_pool(body)


def test_others_do_not_wait() -> None:
    """While constraints keep their compilers busy, requests without one reach the engine in the same turn."""

    async def body(pool: ConstraintPool) -> None:
        seen: list[PreprocessedRequest] = []

        def submit(request: PreprocessedRequest, sink: Any) -> Callable[[], None]:
            seen.append(request)
            return lambda: None

        front = Constrained(pool, submit)
        slow = [Told() for _ in range(4)]
        longest = 0.0
        for sink in slow:
            began = time.thread_time()
            front.submit(asking(HOSTILE["multiples that multiply"]), sink)
            longest = max(longest, time.thread_time() - began)
        plain = asking(None)
        front.submit(plain, Told())
        assert seen == [plain]
        assert longest < 0.1
        for sink in slow:
            assert isinstance(await sink.end, InvalidArgument)

    with_pool(body)


def test_aborted_and_stopped() -> None:
    """A request that is given up meanwhile isn't submitted; one that waits when the worker leaves ends retryably."""

    async def body(pool: ConstraintPool) -> None:
        front = Constrained(pool, lambda request, sink: pytest.fail("submitted"))
        gone, waits = Told(), Told()
        abort = front.submit(asking(FINE["schema"]), gone)
        front.submit(asking(FINE["regex"]), waits)
        abort()
        abort()
        await front.stop()
        assert isinstance(await waits.end, EngineShutdown)
        assert not gone.end.done()
        with pytest.raises(EngineShutdown):
            front.submit(asking(FINE["gbnf"]), Told())

    with_pool(body)


def test_what_the_engine_refuses_is_the_answer() -> None:
    """Also after the constraint was compiled: it is full, say."""

    async def body(pool: ConstraintPool) -> None:
        def submit(request: PreprocessedRequest, sink: Any) -> Callable[[], None]:
            assert request.sampling_options.guided_decoding is not None
            assert list(request.sampling_options.guided_decoding) == ["compiled"]
            raise CapacityExceeded

        sink = Told()
        Constrained(pool, submit).submit(asking({**FINE["regex"], "compiled": "nonsense"}), sink)
        assert isinstance(await sink.end, DynamoException)
        assert isinstance(await sink.end, CapacityExceeded)

    with_pool(body)


def test_what_is_remembered_is_bounded() -> None:
    """The oldest answers go first, and one larger than all the room isn't kept."""
    kept = Remembered(100)
    for name in (b"a", b"b", b"c"):
        kept.put(name, "x", 40)
    assert [kept.get(name) for name in (b"a", b"b", b"c")] == [None, "x", "x"]
    kept.put(b"d", "x", 101)
    assert kept.get(b"d") is None
