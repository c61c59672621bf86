"""A user's file, its parts one by one: what it may define and yield, what its mistakes are called, what it is given."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dynamo.llm.protocols import PreprocessedRequest, StopConditions, TextRequest
from dynamo.llm.serving.handler_io import Mistake, Piece, read_chunk, read_output, tokens_request
from dynamo.runtime.context import Context
from dynamo.runtime.errors import EngineError, InvalidArgument
from dynamo.runtime.request_plane.generator_handler import Wants
from dynamo.worker.engines.python.limits import TextLimits, TokenLimits
from dynamo.worker.engines.python.loading import UserFile, file_arguments, load
from dynamo.worker.engines.python.loop_watchdog import Signs
from dynamo.worker.engines.python.tracebacks import Home, explained, users_traceback
from dynamo.worker.settings import WorkerSettings

GOOD = "async def generate(request):\n    yield {}\n"
Loader = Callable[..., UserFile]


@pytest.fixture
def loads(tmp_path: Path) -> Iterator[Loader]:
    """Loads a file with this text, and gives the process back to the test at its end."""
    done: list[UserFile] = []

    def loader(text: str, *arguments: str) -> UserFile:
        file = tmp_path / "engine.py"
        file.write_text(text)
        done.append(load(file, arguments))
        return done[-1]

    yield loader
    for loaded in reversed(done):
        loaded.replaced.restore()


def test_a_file_is_run_as_a_script(loads: Loader, tmp_path: Path) -> None:
    """`__name__`, `sys.argv`, its folder on the import path, and itself as the main module; all of it given back."""
    before = (sys.argv, list(sys.path), sys.modules["__main__"])
    (tmp_path / "beside_the_engine.py").write_text("word = 'found'\n")
    text = "import sys, beside_the_engine\nseen = (__name__, sys.argv, beside_the_engine.word, __file__)\n" + GOOD
    loaded = loads(text, "-n", "42")
    main: Any = sys.modules["__main__"]
    assert main.seen == ("__main__", ["engine.py", "-n", "42"], "found", str(tmp_path / "engine.py"))
    loaded.replaced.restore()
    assert (sys.argv, list(sys.path), sys.modules["__main__"]) == before
    del sys.modules["beside_the_engine"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "engine.py defines no generate: write 'async def generate(request):'"),
        ("async def genrate(request):\n    yield {}\n", "is 'genrate' meant"),
        ("generate = 5\n", "generate is an int"),
        ("\ndef generate(request):\n    return []\n", "engine.py:2: generate is a plain function"),
        ("def generate(request):\n    yield {}\n", "engine.py:1: generate is a plain generator"),
        ("async def generate(request):\n    return [1]\n", "engine.py:1: generate is async but yields nothing"),
        ("class generate:\n    pass\n", "generate is a class"),
        ("async def generate():\n    yield {}\n", "generate takes (): it is called with (request)"),
        ("async def generate(a, b, c):\n    yield {}\n", "generate takes (a, b, c)"),
        ("x = (\n", "engine.py:1: SyntaxError: '(' was never closed (x = ()"),
        ("\nimport not_to_be_had\n", "engine.py:2: ModuleNotFoundError: No module named 'not_to_be_had'; install it"),
        ("def f():\n    return 1 / 0\nf()\n", "engine.py:2 in f: ZeroDivisionError: division by zero (return 1 / 0)"),
        ("import sys\nsys.exit(3)\n", "engine.py:2: the file ended the process (exit 3)"),
        ("import argparse\nargparse.ArgumentParser().parse_args()\n", "use parse_known_args()"),
        (GOOD + "def initialize(args):\n    yield 1\n", "engine.py:3: initialize must be 'async def"),
        ("x = '\0'\n", "null bytes"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_told_by_its_line(text: str, says: str, loads: Loader) -> None:
    """One sentence, with the line and what to write instead; and the process is ours again."""
    before = (sys.argv, list(sys.path), sys.modules["__main__"])
    with pytest.raises(InvalidArgument) as caught:
        loads(text, "--model-name", "m")
    assert says in caught.value.message
    assert "\n" not in caught.value.message
    assert (sys.argv, list(sys.path), sys.modules["__main__"]) == before


@pytest.mark.parametrize(
    ("text", "how"),
    [
        (GOOD, Wants.NO),
        ("async def generate(request, context):\n    yield {}\n", Wants.SECOND),
        ("async def generate(request, ctx):\n    yield {}\n", Wants.SECOND),
        ("async def generate(request, context=None):\n    yield {}\n", Wants.SECOND),
        ("async def generate(request, temperature=0.5):\n    yield {}\n", Wants.NO),
        ("async def generate(request, *, context):\n    yield {}\n", Wants.NAMED),
        ("async def generate(*args):\n    yield {}\n", Wants.NO),
        ("class E:\n    async def generate(self, request, context):\n        yield {}\ngenerate = E().generate\n",
         Wants.SECOND),
        ("class E:\n    async def __call__(self, request):\n        yield {}\ngenerate = E()\n", Wants.NO),
        ("import functools\nasync def g(n, request):\n    yield n\ngenerate = functools.partial(g, 5)\n", Wants.NO),
        ("import functools\nasync def g(request):\n    yield 1\n@functools.wraps(g)\ndef generate(*a, **k):\n"
         "    return g(*a, **k)\n", Wants.NO),
    ],
)  # fmt: skip
def test_forms_of_generate(text: str, how: Wants, loads: Loader) -> None:
    """Functions, methods, callable objects, partials and wrapped ones, with the context or without."""
    loaded = loads(text)
    assert loaded.wants is how
    loaded.open({}, Context())


def test_what_generate_returns_is_looked_at(loads: Loader) -> None:
    """Where it shows only when it is called."""
    loaded = loads("import operator\ngenerate = operator.itemgetter('x')\n")
    with pytest.raises(Mistake, match="generate returned a list, no async generator"):
        loaded.open({"x": []}, Context())


@pytest.mark.parametrize(
    ("item", "piece"),
    [
        ("text", Piece("text", None, None)),
        ({"choices": [{"delta": {"content": "a", "role": "assistant"}}]}, Piece("a", None, None)),
        ({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}, Piece("", "length", None)),
        ({"choices": [{"text": "a", "finish_reason": "stop", "stop_reason": "x"}]},
         Piece("a", "stop", {"stop_reason": "x"})),
        ({"choices": [{"delta": {"content": None}, "finish_reason": "tool_calls"}]}, Piece("", "stop", None)),
        ({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2,
                                   "prompt_tokens_details": {"cached_tokens": 1}}},
         Piece("", None, {"prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 1})),
    ],
)  # fmt: skip
def test_chunks(item: Any, piece: Piece) -> None:
    """Chat chunks, completion chunks, usage, bare text."""
    assert read_chunk(item) == piece


@pytest.mark.parametrize(
    ("item", "says"),
    [
        (5, "yields an int where a dict is meant"),
        (None, "yields None where a dict is meant"),
        ({"token_ids": [1]}, "yields a dict with 'token_ids', which lacks 'choices'"),
        ({}, "a dict with nothing"),
        ({"choices": []}, "lacks 'choices'"),
        ({"choices": [5]}, "the choice is an int"),
        ({"choices": [{}]}, "lacks 'delta'"),
        ({"choices": [{"delta": "text"}]}, '"delta" is a str'),
        ({"choices": [{"delta": {"content": b"x"}}]}, "the content is a bytes, not text"),
        ({"choices": [{"delta": {"tool_calls": [{}]}}]}, "'tool_calls', which this version does not pass on"),
        ({"choices": [{"message": {"content": "x"}}]}, "put the text into 'delta'"),
        ({"choices": [{"index": 1, "delta": {}}]}, "choice index 1"),
        ({"choices": [{"delta": {}}, {"delta": {}}]}, "2 choices"),
        ({"choices": [{"delta": {}, "finish_reason": "done"}]}, "finish_reason 'done' is none of stop, eos"),
        ({"choices": [], "usage": {"prompt_tokens": "3"}}, "prompt_tokens is '3', not a whole number"),
    ],
)
def test_what_is_no_chunk(item: Any, says: str) -> None:
    """It is said what was found and what is meant."""
    with pytest.raises(Mistake) as caught:
        read_chunk(item)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("item", "piece"),
    [
        ({"token_ids": [1, 2]}, Piece([1, 2], None, None)),
        ({"token_ids": (1,), "tokens": None, "text": None, "cum_log_probs": None, "log_probs": None,
          "finish_reason": None}, Piece([1], None, None)),
        ({"token_ids": [], "finish_reason": "eos"}, Piece([], "eos", None)),
        ({"finish_reason": "abort"}, Piece([], "cancelled", None)),
        ({"token_ids": [7], "finish_reason": "stop", "stop_reason": 7}, Piece([7], "stop", {"stop_reason": 7})),
        ({"token_ids": [7], "log_probs": [-0.5], "top_logprobs": [[{"rank": 1, "token_id": 7, "logprob": -0.5},
                                                                           [8, -1]]]},
         Piece([7], None, {"log_probs": [-0.5], "top_logprobs": [[[7, -0.5], [8, -1.0]]]})),
        ({"token_ids": [], "finish_reason": "stop", "disaggregated_params": {"a": 1}},
         Piece([], "stop", {"disaggregated_params": {"a": 1}})),
        ({"token_ids": [], "completion_usage": {"prompt_tokens_details": {"cached_tokens": 5}}},
         Piece([], None, {"cached_tokens": 5})),
    ],
)  # fmt: skip
def test_outputs(item: Any, piece: Piece) -> None:
    """NVIDIA Dynamo's engine output, short and with all its names."""
    assert read_output(item) == piece


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ("text", "yields a str where a dict is meant: a tokens engine yields {\"token_ids\""),
        ({"choices": []}, "run the file as out=pystr:"),
        ({"text": "a", "finish_reason": "stop"}, "lacks 'token_ids'"),
        ({"token_ids": 5}, "'token_ids' is an int, not a list"),
        ({"token_ids": ["a"]}, "holds 'a', which is no token id"),
        ({"token_ids": [True]}, "holds True"),
        ({"token_ids": [-1]}, "holds -1"),
        ({"token_ids": [1], "log_probs": []}, "one number per token"),
        ({"token_ids": [1], "top_logprobs": [["x"]]}, "holds 'x' where"),
        ({"token_ids": [1], "index": 1}, "index 1"),
        ({"token_ids": [1], "finish_reason": 5}, "finish_reason 5 is none of"),
    ],
)  # fmt: skip
def test_what_is_no_output(item: Any, says: str) -> None:
    """Likewise for tokens."""
    with pytest.raises(Mistake) as caught:
        read_output(item)
    assert says in str(caught.value)


@pytest.mark.parametrize("reason", [{"error": "no room"}, "error: no room"])
def test_errors_may_be_yielded(reason: Any) -> None:
    """Both forms of NVIDIA Dynamo's finish reason, and OpenAI's error event."""
    with pytest.raises(EngineError, match="no room"):
        read_output({"token_ids": [], "finish_reason": reason})
    with pytest.raises(EngineError, match="no room"):
        read_chunk({"error": {"message": "no room", "code": 500}})


def test_all_names_of_the_original_are_there() -> None:
    """Also those at their defaults; hidden stop ids are the model's own, unless they are ignored."""
    request = PreprocessedRequest(model="m", token_ids=[1], eos_token_ids=[9, 2])
    request.stop_conditions = StopConditions(max_tokens=5, stop_token_ids=[2])
    result = tokens_request(request)
    assert {"token_ids", "stop_conditions", "sampling_options", "eos_token_ids", "mdc_sum", "annotations"} <= set(
        result
    )
    assert result["stop_conditions"]["stop_token_ids_hidden"] == [2, 9]
    assert (result["stop_conditions"]["max_tokens"], result["stop_conditions"]["min_tokens"]) == (5, None)
    assert {"temperature", "top_k", "min_p", "use_beam_search", "length_penalty", "seed"} <= set(
        result["sampling_options"]
    )
    request.stop_conditions.ignore_eos = True
    assert tokens_request(request)["stop_conditions"]["stop_token_ids_hidden"] == [2]


def limits(**conditions: Any) -> TokenLimits:
    request = PreprocessedRequest(model="m", token_ids=[1], eos_token_ids=[9])
    request.stop_conditions = StopConditions(**conditions)
    return TokenLimits(request)


def test_tokens_end_where_the_request_says() -> None:
    """At the length, at an EOS id, at a stop id, not below `min_tokens`; what belongs to dropped tokens goes too."""
    assert limits(max_tokens=2).cut(Piece([1, 2, 3], None, {"log_probs": [1.0, 2.0, 3.0]})) == (
        Piece([1, 2], "length", {"log_probs": [1.0, 2.0]}), True,
    )  # fmt: skip
    assert limits().cut(Piece([1, 9, 3], None, None)) == (Piece([1, 9], "eos", None), True)
    assert limits(ignore_eos=True).cut(Piece([9], None, None)) == (Piece([9], None, None), False)
    assert limits(stop_token_ids=[4]).cut(Piece([4], None, None)) == (Piece([4], "stop", {"stop_reason": 4}), True)
    patient = limits(stop_token_ids=[4], min_tokens=3)
    assert patient.cut(Piece([4, 1], None, None)) == (Piece([4, 1], None, None), False)
    assert patient.cut(Piece([4], None, None))[1]


def test_the_files_own_end_counts_where_both_end() -> None:
    """It may know more of it, such as its usage."""
    assert limits(max_tokens=1).cut(Piece([5], "stop", {"cached_tokens": 3})) == (
        Piece([5], "stop", {"cached_tokens": 3}), False,
    )  # fmt: skip


def test_text_ends_at_stop_strings() -> None:
    """Also at one that arrives in pieces; what might have begun one is not lost."""
    text = TextLimits(TextRequest(model="m", kind="chat", body={"stop": ["END"]}))
    assert text.cut(Piece("one E", None, None)) == (Piece("one ", None, None), False)
    assert text.cut(Piece("ND two", None, None)) == (Piece("", "stop", {"stop_reason": "END"}), True)
    text = TextLimits(TextRequest(model="m", kind="chat", body={"stop": "END"}))
    text.cut(Piece("EN", None, None))
    assert text.rest() == "EN"
    with pytest.raises(InvalidArgument, match="stop must be"):
        TextLimits(TextRequest(model="m", kind="chat", body={"stop": [5]}))


def test_arguments_of_the_file() -> None:
    """What was said of the model, the file's own words, then --engine-args as flags."""
    engine_args = '{"n": 1, "custom-arg": "O", "yes": true, "no": false, "tags": ["a", 2], "deep": {"x": 1}}'
    settings = WorkerSettings(
        engine="python", model_name="m", tensor_parallel_size=4, python_arg=["-v", "w"], engine_args=engine_args
    )
    assert file_arguments(settings, "/models/x") == [
        "--model-path", "/models/x", "--model-name", "m", "--tensor-parallel-size", "4", "-v", "w",
        "-n", "1", "--custom-arg", "O", "--yes", "--tags", "a", "2", "--deep", '{"x": 1}',
    ]  # fmt: skip
    assert file_arguments(WorkerSettings(engine="python", python_arg=["-n", "1"]), "") == ["-n", "1"]
    with pytest.raises(InvalidArgument, match="'a b'"):
        file_arguments(WorkerSettings(engine="python", engine_args='{"a b": 1}'), "")


def test_a_librarys_error_is_told_by_the_line_that_called_it(tmp_path: Path) -> None:
    """The user's innermost line, whatever lies between; the traceback begins with the user's first frame."""
    file = tmp_path / "engine.py"
    file.write_text("import json\ndef f(text):\n    return json.loads(text)\n")
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(file.read_text(), str(file), "exec"), space)
    with pytest.raises(ValueError, match="Expecting value") as caught:
        space["f"]("nothing")
    home = Home(file)
    assert explained(caught.value, home) == (
        "engine.py:3 in f: JSONDecodeError: Expecting value: line 1 column 1 (char 0) (return json.loads(text))"
    )
    lines = users_traceback(caught.value, home).splitlines()
    assert f'File "{file}", line 3' in lines[1]
    assert not any(__file__ in line for line in lines)


def test_whose_code_is_whose(tmp_path: Path) -> None:
    """Files beside the engine are the user's; installed packages and our own modules are not."""
    home = Home(tmp_path / "engine.py")
    assert home.owns(str(tmp_path / "engine.py"))
    assert home.owns(str(tmp_path / "parts" / "model.py"), "parts.model")
    assert not home.owns(str(tmp_path / "venv/lib/python3.12/site-packages/torch/x.py"), "torch.x")
    assert not home.owns(str(tmp_path / "sdk/dynamo/runtime/x.py"), "dynamo.runtime.x")
    assert not home.owns("/usr/lib/python3/json/decoder.py", "json.decoder")


def test_standstills_are_told_seldom() -> None:
    """After a second, ten, a hundred; its end only where its beginning was told."""
    signs = Signs(1.0)
    signs.ask(0.0)
    assert [now for now in range(200) if signs.due(float(now)) is not None] == [1, 10, 100]
    signs.reported = True
    assert signs.answer(150.0) == 150.0
    assert signs.due(160.0) is None
    signs.ask(200.0)
    assert signs.answer(200.9) is None
