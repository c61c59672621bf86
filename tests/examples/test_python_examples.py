"""examples/engines/py*.yaml, as their users start them: a file beside the pipeline file is the engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.examples.test_examples import LOCAL, Served, paste, post

from dynamo.operator.api.load import load_pipelines
from dynamo.operator.plan.plan import plan

FOLDER = Path(__file__).parents[2] / "examples" / "engines"


@pytest.mark.parametrize("name", ["pystr", "pytok"])
def test_they_load_and_say_what_they_show(name: str) -> None:
    """A header with both commands, and a plan with a worker."""
    file = FOLDER / f"{name}.yaml"
    text = file.read_text()
    header = text[: text.index("apiVersion")]
    assert f"dynamo up examples/engines/{name}.yaml" in header
    assert f"out={name}:examples/engines/{name}_engine.py" in header
    (pipeline,) = load_pipelines(text, str(file))
    (worker,) = plan(pipeline, LOCAL).workers
    assert "--python-file" in worker.argv


@pytest.fixture
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    """The example named by the test's parameter."""
    up = Served(FOLDER / f"{request.param}.yaml", tmp_path)
    yield up
    up.close()


@pytest.mark.processes
@pytest.mark.servers
@pytest.mark.parametrize("served", ["pystr"], indirect=True)
def test_text(served: Served) -> None:
    """The pasted line streams the prompt in capitals, as engineArgs say; usage is the file's own count."""
    model, url, curl = served.greeting()
    said = [choice["delta"].get("content") or "" for event in paste(curl) for choice in event["choices"]]
    assert (model, "".join(said)) == ("parrot", "HELLO!")
    answer = post(f"{url}/completions", {"model": model, "prompt": "one two three", "max_tokens": 2})
    assert answer["choices"][0]["text"] == "ONE TWO"
    assert (answer["choices"][0]["finish_reason"], answer["usage"]["prompt_tokens"]) == ("length", 3)
    assert served.stop() == 130


@pytest.mark.processes
@pytest.mark.servers
@pytest.mark.parametrize("served", ["pytok"], indirect=True)
def test_tokens(served: Served) -> None:
    """The prompt's tokens twice over, cut at the length and at stop strings by others than the file."""
    model, url, _ = served.greeting()
    answer = post(f"{url}/completions", {"model": model, "prompt": "zaunkönig", "max_tokens": 50})
    assert answer["choices"][0]["text"] == "zaunkönigzaunkönig"
    answer = post(f"{url}/completions", {"model": model, "prompt": "zaunkönig", "max_tokens": 5})
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("zaunk", "length")
    answer = post(f"{url}/completions", {"model": model, "prompt": "zaunkönig", "stop": "nig"})
    assert answer["choices"][0]["text"] == "zaunkö"
    assert served.stop() == 130
