"""What dynamo-run understands of its flags, and what it answers to mistakes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from dynamo.cli.commands.completion import PROGRAMS, completion
from dynamo.cli.main import main as dynamo_main
from dynamo.cli.run.grammar import DEFAULTS, CommandError
from dynamo.cli.run.main import command, main, read, run
from dynamo.cli.run.settings import Run, frontend_settings, notices, worker_settings
from dynamo.engine_catalog import CATALOG
from dynamo.frontend.openai.request_defaults import RequestDefaults
from dynamo.runtime.names import EndpointPath


def understood(line: str) -> Run:
    return read(line.split(), terminal=True, installed=DEFAULTS)


def test_a_worker_is_told_what_the_line_says() -> None:
    """Model, name, endpoint and engine arguments reach the worker's own settings."""
    line = "in=dyn://ns.backend.generate out=mocker --model-name m --context-length 512 --extra-engine-args a.json dir"
    parsers = "--dyn-tool-call-parser hermes --dyn-reasoning-parser qwen3"
    asked = understood(f"{line} --migration-limit 2 --chat-template t.jinja {parsers}")
    worker = worker_settings(asked.roles, asked.settings, asked.model)
    assert (worker.engine, worker.model_path, worker.model_name) == ("mocker", "dir", "m")
    assert (worker.endpoint, worker.context_length) == ("dyn://ns.backend.generate", 512)
    assert (worker.engine_args, worker.block_size) == ("@a.json", 64)
    assert worker.chat_template == "t.jinja"
    assert (worker.dyn_tool_call_parser, worker.dyn_reasoning_parser) == ("hermes", "qwen3")
    assert worker.migration_limit == 2, "stands in the model's card"
    asked = understood(line)
    assert worker_settings(asked.roles, asked.settings, "").migration_limit is None


def test_a_frontend_is_told_what_the_line_says() -> None:
    """Port, router and the endpoint of out=dyn://… reach the frontend's own settings; it listens on loopback."""
    asked = understood("in=http out=dyn://ns.backend.generate --http-port 0 --router-mode random --migration-limit 3")
    frontend = frontend_settings(asked.roles, asked.settings)
    assert (frontend.http_host, frontend.http_port, frontend.namespace) == ("127.0.0.1", 0, "ns")
    assert frontend.endpoint == "ns.backend.generate"
    assert (frontend.router_mode, frontend.migration.limit) == ("random", 3)
    asked = understood("in=http out=dyn")
    assert frontend_settings(asked.roles, asked.settings).endpoint == ""


@pytest.mark.parametrize(
    ("line", "model"), [("in=http m.gguf", "m.gguf"), ("--model-path m.gguf", "m.gguf"), ("out=echo", "")]
)
def test_the_model_has_two_places(line: str, model: str) -> None:
    """The model is the first bare word, or --model-path."""
    assert understood(line).model == model


def test_http_has_the_known_port() -> None:
    """in=http listens on 8080 unless told otherwise."""
    assert understood("in=http out=mocker").settings.http_port == 8080


def test_old_flags_are_accepted_with_a_notice(capsys: pytest.CaptureFixture[str]) -> None:
    """Flags of NVIDIA Dynamo that change nothing are named, not silently dropped."""
    asked = understood("in=http out=mocker --kv-waiting-requests-weight 1.0 --request-plane tcp")
    assert asked.settings.http_port == 8080
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["--kv-waiting-requests-weight", "--request-plane"]


def test_a_description_is_for_gguf_files() -> None:
    """--model-config reaches the worker with one; with another model a notice says that it changes nothing."""
    asked = understood("in=http out=llamacpp m.gguf --model-config org/repo")
    assert worker_settings(asked.roles, asked.settings, asked.model).model_config == "org/repo"
    assert notices(asked.roles, asked.settings, asked.model) == []
    for line, why in (("out=mocker", "it describes a .gguf file"), ("out=vllm folder", "folder has its own tokenizer")):
        asked = understood(f"in=http {line} --model-config org/repo")
        assert worker_settings(asked.roles, asked.settings, asked.model).model_config == ""
        assert why in notices(asked.roles, asked.settings, asked.model)[0]


def test_the_first_gpu_is_sglangs(tmp_path: Path) -> None:
    """--base-gpu-id reaches SGLang beside the file's arguments; others are told what to set."""
    file = tmp_path / "a.json"
    file.write_text('{"page_size": 16}')
    asked = understood(f"in=dyn://a.b.c out=sglang m --base-gpu-id 4 --extra-engine-args {file}")
    assert worker_settings(asked.roles, asked.settings, "m").arguments() == {"base_gpu_id": 4, "page_size": 16}
    assert notices(asked.roles, asked.settings) == []
    asked = understood("in=http out=mocker --base-gpu-id 1")
    assert "CUDA_VISIBLE_DEVICES" in notices(asked.roles, asked.settings)[0]


def test_https_reaches_the_frontend() -> None:
    """The certificate's flags are the frontend's own."""
    asked = understood("in=http out=mocker --tls-cert-path a --tls-key-path b")
    settings = frontend_settings(asked.roles, asked.settings)
    assert (settings.tls.cert_path, settings.tls.key_path) == ("a", "b")


def test_keys_reach_the_frontend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their file is the frontend's own option, by flag and by variable: a variable that is ignored opens a server."""
    asked = understood("in=http out=mocker --api-keys-file keys")
    assert frontend_settings(asked.roles, asked.settings).access.api_keys_file == "keys"
    monkeypatch.setenv("DYN_API_KEYS_FILE", "others")
    asked = understood("in=http out=mocker")
    assert frontend_settings(asked.roles, asked.settings).access.api_keys_file == "others"


def test_a_worker_answers_for_its_load() -> None:
    """in=dyn:// has load_metrics beside its endpoint, as in 2025; an engine in this process has not."""
    asked = understood("in=dyn://a.b.c out=mocker")
    assert worker_settings(asked.roles, asked.settings, "").load_metrics
    asked = understood("in=http out=mocker")
    assert not worker_settings(asked.roles, asked.settings, "").load_metrics


def test_a_value_may_follow_an_equals_sign() -> None:
    """--use-kv-events=true is how NVIDIA Dynamo's usage line writes it."""
    asked = understood("in=http out=dyn --use-kv-events=false --router-replica-sync=false --router-temperature=0.5")
    settings = frontend_settings(asked.roles, asked.settings)
    assert (settings.kv.follow_events, settings.kv.replica_sync) == (False, False)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("m.gguf --model-path n.gguf", "two models"),
        ("in=http out=dyn --context-length 10", "should only be used on the worker node"),
        ("in=http out=dyn --custom-jinja-template x", "should only be used on the worker node"),
        ("in=http out=dyn m.gguf", "belongs to in=dyn://"),
        ("in=http out=mocker --http-port 70000", "between 0 and 65535"),
        ("in=http out=mocker --tls-cert-path a", "belong together"),
        ("in=http out=echo --batch-ordered", "belongs to in=batch:FILE"),
        ("in=batch:a.jsonl out=echo --batch-concurrency 0", "between 1 and 4096"),
        ("in=http out=mocker -- x", "pystr:"),
        ("in=none out=mocker", "is for the nodes beside a leader"),
        ("in=none out=mocker --num-nodes 2 --leader-addr a:1", "--node-rank from 1 on"),
        ("in=http out=dyn --num-nodes 2", "configure an engine; out=dyn runs none. Give them to the worker: in=dyn://"),
        ("in=http out=mocker --num-nodes 2 --node-rank 1 --leader-addr a:1", "give in=none"),
        ("in=dyn://a.b.c out=echo --request-template t.json", "not to a worker"),
        ("out=echo --request-template missing.json", "missing.json"),
    ],
)
def test_what_would_be_silently_wrong_is_refused(line: str, says: str) -> None:
    """A flag on the wrong side, or one that can't be kept, is an error with the reason."""
    with pytest.raises(CommandError) as caught:
        understood(line)
    assert says in str(caught.value)


@pytest.mark.parametrize("asks", ["in=text", "in=stdin", "in=http", "in=batch:a.jsonl"])
def test_a_request_template_reaches_the_frontend(tmp_path: Path, asks: str) -> None:
    """Whoever asks, requests that leave something out get what the template says."""
    file = tmp_path / "t.json"
    file.write_text(json.dumps({"temperature": 0.1, "model": None}))
    run = understood(f"{asks} out=echo --request-template {file}")
    assert run.template == {"temperature": 0.1}
    assert frontend_settings(run.roles, run.settings, run.template).request_defaults == RequestDefaults(temperature=0.1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"temprature": 0.1}', "temprature.*known are model, temperature, max_completion_tokens"),
        ('{"temperature": 9}', "<= 2"),
        ('{"max_completion_tokens": "8"}', "max_completion_tokens"),
        ('{"max_completion_tokens": 0}', ">= 1"),
        ('{"model": ""}', "model"),
        ("[]", "array"),
        ("{", "truncated"),
    ],
)
def test_a_request_template_is_checked(tmp_path: Path, text: str, says: str) -> None:
    """Only known keys may stand in a template, with what requests may say."""
    file = tmp_path / "t.json"
    file.write_text(text)
    with pytest.raises(CommandError, match=says):
        understood(f"in=http out=echo --request-template {file}")


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("out=gpt", 2, "Invalid out= option"),
        ("out=echo --htp-port 1", 2, "No such option"),
        ("in=http out=mocker --http-port many", 2, "--http-port"),
        ("-vvv", 2, "-v (debug)"),
        ("in=http out=dyn --router-mode direct", 2, "choose round-robin"),
        ("in=http out=dyn --discovery-backend file", 2, "etcd"),
    ],
)
def test_a_mistake_is_one_sentence(line: str, code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Usage errors end with exit code 2 and never with a traceback."""
    assert run(line.split()) == code
    said = capsys.readouterr().err
    assert says in said
    assert "Traceback" not in said


@pytest.mark.parametrize("line", ["", "-h", "--help", "in=http --help", "-h out=echo"])
def test_help_explains_both_sides(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Asked anywhere, or without arguments, dynamo-run says how it is used and exits well."""
    assert run(line.split()) == 0
    output = capsys.readouterr().out
    assert all(word in output for word in ("in=", "out=", "llamacpp", "echo_core", "--http-port", "ETCD_ENDPOINTS"))


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """--version prints one line."""
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip()


def test_every_flag_says_what_it_does() -> None:
    """No option of dynamo-run is without help."""
    assert [flag.name for flag in command().params if isinstance(flag, click.Option) and not flag.help] == []


def imported(code: str, typed: str = "") -> set[str]:
    """The modules that a fresh interpreter has after `code`."""
    text = f"import sys; {code}; sys.stdout.flush(); print(*sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", text], input=typed, capture_output=True, text=True, check=True, timeout=110
    )
    return set(done.stderr.splitlines()[-1].split())


def test_help_is_cheap() -> None:
    """Time is counted in modules, which no busy machine changes: --help needs few, and of ours only the flags'."""
    names = imported("from dynamo.cli.run.main import run; run(['--help'])")
    assert len(names) < 230
    assert not {"asyncio", "ssl", "rich", "xxhash", "importlib.metadata", "jinja2"} & names


def test_no_engine_is_imported_that_is_not_used() -> None:
    """out=echo_full answers without llama.cpp, the mocker, a tokenizer library, or any engine for GPUs."""
    names = imported("from dynamo.cli.run.main import run; run(['out=echo_full'])", "hi\n")
    assert "dynamo.worker.engines.echo" in names
    engines = {traits.engine_class.partition(":")[0] for traits in CATALOG.values()}
    assert engines & names == {"dynamo.worker.engines.echo"}
    assert not {"xllamacpp", "mistralrs", "vllm", "sglang", "tensorrt_llm", "torch"} & names


def test_help_and_mistakes_import_no_engine_and_no_server() -> None:
    """The line is understood before anything heavy is loaded."""
    code = (
        "import sys; from dynamo.cli.run.main import run; run(['--help']); run(['out=gpt']); "
        "heavy = {'xllamacpp', 'fastapi', 'grpc', 'tokenizers', 'uvicorn', 'prompt_toolkit', 'nats'}; "
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("out=mo", "plain,out=mocker"),
        ("in=h", "plain,in=http"),
        ("out = mo", "plain,mocker"),
        ("in=http out = ll", "plain,llamacpp"),
        ("m", "file,m"),
        ("--http-p", "plain,--http-port"),
        ("in=b", "plain,in=batch:"),
    ],
)
def test_tab_completes(
    typed: str, offered: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The shell's question at a Tab is answered with words, flags or files."""
    monkeypatch.setenv("_DYNAMO_RUN_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"dynamo-run {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().out.splitlines() == [offered]


@pytest.mark.parametrize(("module", "asks"), [("fastapi", "in=http"), ("prometheus_client", "in=stdin")])
def test_a_missing_extra_is_named(module: str, asks: str) -> None:
    """Installed without its extra, dynamo-run says which one to install; in a process that has not imported it yet."""
    line = [asks, "out=echo_full"]
    program = f"import sys; sys.modules[{module!r}] = None; from dynamo.cli.run.main import main; main({line})"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    said = f"error: {module} is not installed: run pip install -e '.[cli]' in the clone\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_paths_without_an_endpoint_get_the_local_one() -> None:
    """A process-local worker serves a fixed endpoint that nobody else sees."""
    asked = understood("in=http out=mocker")
    assert EndpointPath.parse(worker_settings(asked.roles, asked.settings, "").endpoint) == EndpointPath(
        "dynamo", "backend", "generate"
    )


@pytest.mark.parametrize(
    ("typed", "offered"), [("out=mo", "plain,out=mocker"), ("--batch-ord", "plain,--batch-ordered")]
)
def test_tab_completes_after_dynamo_run(
    typed: str, offered: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`dynamo run` knows the words and flags of dynamo-run."""
    monkeypatch.setenv("_DYNAMO_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"dynamo run {typed}")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        dynamo_main([])
    assert capsys.readouterr().out.splitlines() == [offered]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_one_script_completes_all_programs(shell: str) -> None:
    """`dynamo completion` covers the console scripts that have flags for people."""
    output = CliRunner().invoke(completion, [shell]).output
    assert all(f"_{program.upper().replace('-', '_')}_COMPLETE" in output for program in PROGRAMS)


@pytest.mark.parametrize(("typed", "says"), [("llama3.2", "called ORG/NAME"), ("model.guf", "did you mean")])
def test_a_model_that_is_not_there_comes_before_its_engine(
    typed: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where no engine for it is installed: exit code 1, and not a word of one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.gguf").touch()
    monkeypatch.setattr("dynamo.cli.run.main.DEFAULTS", ())
    assert run(["in=http", typed]) == 1
    told = capsys.readouterr().err
    assert says in told
    assert "mistralrs" not in told


def test_a_missing_engine_comes_before_a_download(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody waits an hour for a model that nothing here can serve."""
    monkeypatch.setattr("dynamo.llm.hub.fetch.fetch", lambda *args, **more: pytest.fail("it asked the hub"))
    assert run(["in=stdin", "out=sglang", "org/name"]) == 1
    told = capsys.readouterr().err
    assert "engine sglang is not installed, so nothing of org/name was downloaded" in told


@pytest.mark.parametrize(("way", "clipped"), [("in=http", 0), ("in=text", 8192)])
def test_totals_that_are_cut(way: str, clipped: int) -> None:
    """The chat at a terminal asks for more than there may be room for; what others ask for is refused, not cut."""
    asked = understood(f"{way} out=echo_core")
    assert frontend_settings(asked.roles, asked.settings).clipped_tokens == clipped
