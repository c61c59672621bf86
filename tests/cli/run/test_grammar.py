"""The in=/out= grammar of dynamo-run, as tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.cli.run.grammar import DEFAULTS, CommandError, Roles, Words, decide, read_path, split
from dynamo.runtime.names import EndpointPath

PATH = EndpointPath("ns", "backend", "generate")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", Words()),
        ("in=text", Words(input="text")),
        ("out=echo_core in=http", Words(input="http", output="echo_core")),
        ("out=mocker --http-port 0", Words(output="mocker", flags=("--http-port", "0"))),
        ("m.gguf", Words(flags=("m.gguf",))),
        ("in=http -v m.gguf", Words(input="http", verbosity=1, flags=("m.gguf",))),
        ("-vv in=http out=dyn", Words(input="http", output="dyn", verbosity=2)),
        ("out=pystr:e.py -- --x -v", Words(output="pystr:e.py", engine_arguments=("--x", "-v"))),
        ("in=dyn://a.b.c out=llamacpp dir/a=b.gguf", Words("dyn://a.b.c", "llamacpp", flags=("dir/a=b.gguf",))),
    ],
)
def test_words_are_taken_apart(line: str, words: Words) -> None:
    """in= and out= stand in either order or not at all; everything else is for the flag parser."""
    assert split(line.split()) == words


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("input=text", "must start with 'in=' or 'out='"),
        ("in=text model=x", "must start with 'in=' or 'out='"),
        ("in=text in=http", "in= is given twice"),
        ("m.gguf out=echo", "Put 'out=echo' before the model"),
        ("-vvv", "-v (debug) and -vv (trace)"),
        ("-vv out=echo -v", "-v (debug) and -vv (trace)"),
    ],
)
def test_what_cannot_be_taken_apart(line: str, says: str) -> None:
    """A malformed line is refused with the reason."""
    with pytest.raises(CommandError) as caught:
        split(line.split())
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("line", "model", "terminal", "roles"),
    [
        ("", "", True, Roles("text", "echo_full")),
        ("", "", False, Roles("stdin", "echo_full")),
        ("", "m.gguf", True, Roles("text", "llamacpp")),
        ("", "Qwen/Qwen3-0.6B", True, Roles("text", "mistralrs")),
        ("in=http", "m.gguf", True, Roles("http", "llamacpp")),
        ("in=text out=echo", "", False, Roles("text", "echo_full")),
        ("out=echo_core", "dir", False, Roles("stdin", "echo_core")),
        ("out=llama_cpp", "m.gguf", True, Roles("text", "llamacpp")),
        ("in=http out=mocker", "", True, Roles("http", "mocker")),
        ("in=http out=dyn", "", True, Roles("http", "dyn")),
        ("in=http out=auto", "", True, Roles("http", "dyn")),
        ("in=http out=dyn://ns.backend.generate", "", True, Roles("http", "dyn", PATH)),
        ("in=dyn://ns.backend.generate out=mocker", "", True, Roles("worker", "mocker", PATH)),
        ("in=dyn out=mocker", "", True, Roles("worker", "mocker", EndpointPath("NS", "C", "E"))),
        ("in=none out=mocker", "", True, Roles("worker", "mocker", follower=True)),
        ("in=none:dyn://ns.backend.generate out=vllm", "d", True, Roles("worker", "vllm", PATH, follower=True)),
        ("in=http out=vllm", "dir", True, Roles("http", "vllm")),
        ("in=batch:a/p.jsonl out=dyn", "", True, Roles("batch", "dyn", batch_file="a/p.jsonl")),
        ("in=http out=pytok:e.py", "dir", True, Roles("http", "python", None, "e.py", "tokens")),
        ("in=http out=pystr:e.py", "", True, Roles("http", "python", None, "e.py", "text")),
    ],
)
def test_who_asks_and_who_answers(line: str, model: str, terminal: bool, roles: Roles) -> None:
    """Given words win; what is left out follows from the terminal and the model."""
    assert decide(split(line.split()), model=model, terminal=terminal, installed=DEFAULTS) == roles


@pytest.mark.parametrize(
    ("line", "model", "says"),
    [
        ("in=htp", "", "did you mean 'http'"),
        ("in=voice", "", "Invalid in= option 'voice'"),
        ("out=llamacp", "", "did you mean 'llamacpp'"),
        ("out=gpt", "", "Invalid out= option 'gpt'"),
        ("in=batch out=echo", "", "needs a file"),
        ("in=none out=dyn", "", "needs an engine"),
        ("in=nobody out=mocker", "", "Invalid in= option 'nobody'"),
        ("in=dyn://a.b.c out=dyn", "", "needs an engine"),
        ("in=http out=pystr:", "", "needs a file"),
        ("in=dyn://a.b!.c out=echo", "", "may hold only letters"),
        ("in=http", "Qwen/Qwen3-0.6B", ".[mistralrs]"),
        ("in=http", "m.gguf", ".[llamacpp]"),
    ],
)
def test_what_nobody_can_do(line: str, model: str, says: str) -> None:
    """A wrong or missing role is refused with the next step."""
    with pytest.raises(CommandError) as caught:
        decide(split(line.split()), model=model, terminal=True, installed=())
    assert says in str(caught.value)


def test_a_gguf_file_is_mistral_rs_where_llama_cpp_is_not_there() -> None:
    """What is installed of the two is taken; a folder is never llama.cpp's."""
    for model in ("m.gguf", "folder"):
        roles = decide(split(["in=http"]), model=model, terminal=True, installed=["mistralrs"])
        assert roles == Roles("http", "mistralrs")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("dyn://", "NS.C.E"),
        ("dyn://x", "NS.x.E"),
        ("dyn://a.b", "a.b.E"),
        ("dyn://a.b.c", "a.b.c"),
        ("dyn://a/b/c", "a.b.c"),
        ("dyn:// /a..b./", "a.b.E"),
        ("dyn://a.b.c.d.e", "a.b.c_d_e"),
    ],
)
def test_paths_have_defaults(text: str, path: str) -> None:
    """A short path is filled up as NVIDIA Dynamo does it, a long one joins its end."""
    assert str(read_path(text)) == path


@given(st.text(alphabet="abc./", max_size=12))
def test_a_path_of_letters_is_always_read(text: str) -> None:
    """Whatever the number and place of dots and slashes, the result has three usable names."""
    path = read_path("dyn://" + text)
    assert EndpointPath.parse(str(path)) == path


@pytest.mark.parametrize(
    ("line", "local"),
    [("in=text out=echo", True), ("in=http out=mocker", True), ("in=http out=dyn", False), ("in=dyn out=echo", False)],
)
def test_process_local_unless_a_side_is_elsewhere(line: str, local: bool) -> None:
    """etcd and NATS are used only when one side is another process."""
    assert decide(split(line.split()), model="", terminal=True, installed=DEFAULTS).process_local is local
