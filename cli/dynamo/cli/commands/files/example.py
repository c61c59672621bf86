"""`dynamo example [NAME]`: the pipeline files of the documents, for those who have installed a package."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import click

_SHORTEST_SENTENCE: Final = 20
"""Characters; a shorter beginning says too little of an example."""
EPILOG = """\b
Examples:
  dynamo example                            which there are
  dynamo example quickstart > my.yaml       then: dynamo up my.yaml
  dynamo example vllm
"""


@click.command("example", epilog=EPILOG)
@click.argument("name", required=False)
def example(name: str | None) -> None:
    """Print the example NAME, or list all."""
    files = _files()
    if name is None:
        width = max(map(len, files))
        for known, file in files.items():
            click.echo(f"{known:{width}}  {_sentence(file.read_text(), 78 - width)}".rstrip())
        return
    wanted = name.removeprefix("examples/").removesuffix(".yaml")
    short = {known.rpartition("/")[2]: known for known in reversed(files)}
    found = files.get(wanted) or files.get(short.get(wanted, ""))
    if found is None:
        import difflib

        close = difflib.get_close_matches(wanted, [*files, *short], n=1)
        meant = f"did you mean {close[0]}?" if close else "`dynamo example` lists all"
        raise click.ClickException(f"there is no example {name!r}: {meant}")
    click.echo(found.read_text(), nl=False)


def _files() -> dict[str, Path]:
    """Return the examples by name: in a package beside the command line, in a clone at the top."""
    here = Path(__file__).resolve()
    for folder in (here.parents[2] / "examples", here.parents[5] / "examples"):
        if (folder / "quickstart.yaml").is_file():
            found = sorted(folder.rglob("*.yaml"), key=lambda file: (len(file.parts), file.name))
            found += sorted(folder.rglob("*.py"))
            return {file.relative_to(folder).as_posix().removesuffix(".yaml"): file for file in found}
    raise click.ClickException("this installation has no examples: install dynamo-pipelines again")


def _sentence(text: str, most: int) -> str:
    """Return the first sentence of a file's comment or docstring, cut to `most` characters."""
    first = text.lstrip("#\"' ").partition("\n")[0].strip("\"' ")
    ends = [match.start() for match in re.finditer(r"[.:;,] | \(|$", first) if match.start() >= _SHORTEST_SENTENCE]
    sentence = first[: ends[0]] if ends else first
    sentence = sentence.rstrip(".,:;")
    return sentence if len(sentence) <= most else sentence[: most - 1] + "…"
