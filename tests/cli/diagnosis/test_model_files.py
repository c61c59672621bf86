"""Models and fields of a file, broken in one way each: doctor, validate and `dynamo up` say so before a start."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner

from dynamo.cli.commands.upkeep.variables import known_variables
from dynamo.cli.local.facts import hub
from dynamo.cli.local.facts.models import models
from dynamo.cli.main import dynamo
from dynamo.operator.api.load import load_pipelines

ROOT = Path(__file__).parents[3]
HEADER = json.dumps({"w": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}, "__metadata__": {}}).encode()
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 4\n"
FILE = (
    "apiVersion: dynamo.dev/v1alpha1\nkind: DynamoPipeline\nmetadata: {{name: llama}}\n"
    "spec: {{model: {model}, components: [{component}]}}\n"
)


def _weights(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)


def _whole(header: bytes = HEADER) -> bytes:
    return struct.pack("<Q", len(header)) + header + b"\0" * 4000


def _index(folder: Path) -> None:
    shards = {"weight_map": {"w": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(shards))


FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "whole": (lambda folder: _weights(folder, _whole()), ""),
    "cut off": (lambda folder: _weights(folder, _whole()[:-1]), "has 40.. of the 40.. bytes"),
    "cut off in the header": (lambda folder: _weights(folder, _whole()[:20]), "header alone"),
    "cut off at once": (lambda folder: _weights(folder, b"\0"), "header can't be read"),
    "a page": (lambda folder: _weights(folder, b"<html>Sign in</html>"), "header can't be read"),
    "a header of noise": (lambda folder: _weights(folder, _whole(b"{" * 40)), "header can't be read"),
    "a pointer": (lambda folder: _weights(folder, POINTER), "git lfs pull"),
    "a missing shard": (_index, "1 of its 1 files of weights are missing"),
    "a config of noise": (lambda folder: (folder / "config.json").write_text("{"), "no JSON object"),
    "a config that is a list": (lambda folder: (folder / "config.json").write_text("[]"), "no JSON object"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer"),
    "nothing": (lambda folder: (folder / "config.json").unlink(), "neither config.json"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_of_weights(name: str, tmp_path: Path) -> None:
    """Headers against sizes, pointers, missing parts; what is whole has no problem."""
    breaks, cause = FOLDERS[name]
    (tmp_path / "hf").mkdir()
    for file in ("config.json", "tokenizer.json"):
        (tmp_path / "hf" / file).write_text("{}")
    breaks(tmp_path / "hf")
    (fact,) = models(load_pipelines(FILE.format(model="{source: ./hf}", component="{engine: mocker}"), "f"), tmp_path)
    assert re.search(cause, fact.problem), fact
    assert bool(fact.problem) == bool(cause)


def test_a_pointer_in_a_gguf_files_place(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(POINTER)
    text = FILE.format(model="{source: ./m.gguf}", component="{engine: mocker}")
    assert "git lfs pull" in models(load_pipelines(text, "f"), tmp_path)[0].problem


@pytest.mark.parametrize("source", ["./m.gguf", "m.gguf"])
def test_a_link_to_nothing(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is called so; no path is suggested in its own place."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.gguf").symlink_to("/gone/m.gguf")
    text = FILE.format(model=f"{{source: {source}}}", component="{engine: mocker}")
    problem = models(load_pipelines(text, "f"), tmp_path)[0].problem
    assert ("m.gguf' is a link to '/gone/m.gguf'" in problem, "did you mean" in problem) == (True, False), problem


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr("dynamo.llm.models.gguf_header.read_header", closed)
    text = FILE.format(model="{source: ./m.gguf}", component="{engine: mocker}")
    assert f"chmod u+r {tmp_path / 'm.gguf'}" in models(load_pipelines(text, "f"), tmp_path)[0].problem


FIELDS = {
    "unknown argument": ("{name: m}", "{engine: mocker, engineArgs: {max-num-seqz: 1}}", "did you mean 'max_num_seqs'"),
    "argument of a wrong kind": ("{name: m}", "{engine: mocker, engineArgs: {max-num-seqs: abc}}", "whole number"),
    "argument of llama.cpp": ("{source: 'hf://a/b'}", "{engine: llamacpp, engineArgs: {n_ctxx: 1}}", "'n_ctx'"),
    "argument of mistral.rs": ("{source: 'hf://a/b'}", "{engine: mistralrs, engineArgs: {max_seq: 1}}", "'max_seqs'"),
    "template": ("{chatTemplate: '{% for m in messages %}'}", "{engine: mocker}", "error in line 1"),
    "template's name": ("{chatTemplate: bad.jinja}", "{engine: mocker}", "the field takes the template's text"),
    "template's file": (
        "{chatTemplate: p.yaml}",
        "{engine: mocker}",
        "p.yaml is a file's name; the field takes",
    ),
}


@pytest.mark.parametrize("name", FIELDS)
def test_fields_that_a_worker_would_refuse(name: str, tmp_path: Path) -> None:
    """Validate names the field; doctor's first finding is it, with the file's own name in the command."""
    model, component, cause = FIELDS[name]
    file = tmp_path / "p.yaml"
    file.write_text(FILE.format(model=model, component=component))
    said = CliRunner().invoke(dynamo, ["validate", str(file)])
    assert (said.exit_code, cause in said.output or said.output) == (1, True)
    done = CliRunner().invoke(
        dynamo, ["doctor", str(file), "--offline", "-o", "json"], env={"XDG_STATE_HOME": str(tmp_path)}
    )
    codes = {finding["code"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert cause in codes["bad-field"]["cause"]
    assert str(file) in codes["bad-field"]["mend"]


OUTSIDE: dict[str, tuple[dict[str, str], str, str]] = {
    "port": ({"DYN_HTTP_PORT": "70000"}, "bad-variable", "unset DYN_HTTP_PORT"),
    "number": ({"DYN_HTTP_MAX_CONCURRENT_REQUESTS": "abc"}, "bad-variable", "unset DYN_HTTP_MAX_CONCURRENT_REQUESTS"),
    "certificate": ({"DYN_TLS_CERT_PATH": "/none.pem"}, "bad-variable", "unset DYN_TLS_CERT_PATH"),
    "level": ({"DYN_LOG": "nonsense=="}, "bad-variable", "unset DYN_LOG"),
    "misspelt": ({"DYN_HTP_PORT": "9"}, "misspelt-variable", "export DYN_HTTP_PORT"),
    "host": ({"DYN_HTTP_HOST": "192.0.2.1"}, "bad-host", "unset DYN_HTTP_HOST"),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_variables(name: str, tmp_path: Path) -> None:
    """Of a wrong kind, misspelt, an address that nobody has: one finding each."""
    given, code, mend = OUTSIDE[name]
    environment = {"XDG_STATE_HOME": str(tmp_path), "ETCD_ENDPOINTS": None, "NATS_SERVER": None, **given}
    done = CliRunner().invoke(dynamo, ["doctor", "--offline", "-o", "json"], env=environment)
    findings = {finding["code"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert mend in findings[code]["mend"]


def test_a_folder_of_another_package_and_a_server_that_is_away(tmp_path: Path) -> None:
    """What lies beside a file is what its workers import first; nobody listens where requests would go."""
    file = tmp_path / "p.yaml"
    file.write_text(FILE.format(model="{}", component="{engine: openai, upstream: 'http://127.0.0.1:1/v1'}"))
    (tmp_path / "dynamo").mkdir()
    (tmp_path / "dynamo" / "__init__.py").write_text("")
    (tmp_path / "state" / "dynamo").mkdir(parents=True)
    (tmp_path / "state" / "dynamo" / "llama").write_text("")
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
    done = CliRunner().invoke(dynamo, ["doctor", str(file), "--offline", "-o", "json"], env=environment)
    findings = {finding["code"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert {"other-dynamo", "upstream-away", "read-only"} <= findings.keys()
    assert "state/dynamo/llama" in findings["read-only"]["what"]


def test_every_documented_variable_is_known() -> None:
    """Else doctor would call a right name a misspelt one."""
    pages = (ROOT / "docs" / "reference" / name for name in ("configuration.md", "cli.md"))
    documented = {name for page in pages for name in re.findall(r"\bDYN_[A-Z_]+\b", page.read_text())}
    others = ("DYN_TRTLLM_", "DYN_VLLM_", "DYN_SGLANG_")
    assert {name for name in documented if not name.startswith(others)} <= known_variables()
    assert len(documented) > 100


@pytest.fixture
def sign_in() -> Iterator[str]:
    """A network's sign-in page, which answers whatever is asked."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302 if self.path.startswith("/moved") else 200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<html>Sign in</html>")

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_sign_in_page_is_no_hub(sign_in: str) -> None:
    """It answers 200, or sends elsewhere."""
    for url in (sign_in, f"{sign_in}/moved"):
        fact = hub.ask({"HF_ENDPOINT": url}, None)
        assert (fact.in_its_place, "sign-in" in fact.error) == (True, True)
