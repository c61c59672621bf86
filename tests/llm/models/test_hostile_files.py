"""Model files that are broken on purpose: a sentence for each, in bounded time, and never the end of the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.llm.models import hostile_files as hostile

from dynamo.llm.models import sentencepiece, tiktoken
from dynamo.llm.models.added_tokens import stated
from dynamo.llm.models.file_cache import FileCache
from dynamo.llm.models.gguf import open_gguf
from dynamo.llm.models.gguf_pretokenizers import NAMES
from dynamo.llm.processing.template_files import LARGEST_JSON, read_json
from dynamo.llm.tokenizer.checks import check_expression
from dynamo.llm.tokenizer.huggingface import MOST_WAITING, NativeStream, open_hf_tokenizer
from dynamo.llm.tokenizer.panics import as_refusals
from dynamo.runtime.errors import InvalidArgument

LIMITED = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
from dynamo.llm.tokenizer.huggingface import open_hf_tokenizer
from dynamo.runtime.errors import InvalidArgument
for path in sys.argv[1:]:
    try:
        open_hf_tokenizer(Path(path), "default")
        print("taken", path)
    except InvalidArgument as refusal:
        print("refused" if len(refusal.message) < 1000 else "refused at length", path)
"""
"""In a process of its own: what the library does to memory and time ends that one."""


def test_every_tokenizer_json_is_refused(tmp_path: Path) -> None:
    """Within memory and CPU time that are bounded, without a crash, and in a sentence that can be read."""
    paths = []
    for number, make in enumerate(hostile.TOKENIZER_JSON.values()):
        path = tmp_path / f"{number}.json"
        path.write_bytes(make())
        paths.append(str(path))
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *paths], capture_output=True, text=True, timeout=600, check=False
    )
    lines = [line.rsplit(" ", 1) for line in done.stdout.splitlines()]
    said = {path: word for word, path in lines}
    names = dict(zip(paths, hostile.TOKENIZER_JSON, strict=True))
    assert {names[path]: said.get(path, done.stderr[-200:]) for path in paths if said.get(path) != "refused"} == {}


@pytest.mark.parametrize("name", hostile.GGUF)
def test_gguf(name: str, tmp_path: Path) -> None:
    """No header is read beyond what it may hold."""
    path = tmp_path / "model.gguf"
    path.write_bytes(hostile.GGUF[name]())
    with pytest.raises(InvalidArgument) as refusal:
        open_gguf(path, FileCache(tmp_path / "cache"))
    assert len(refusal.value.message) < 1000


@pytest.mark.parametrize("name", hostile.TIKTOKEN)
def test_tiktoken(name: str) -> None:
    """A token of 400,000 bytes took 30 s."""
    with pytest.raises(InvalidArgument) as refusal:
        tiktoken.build(hostile.TIKTOKEN[name](), {"tokenizer_class": "QWenTokenizer"}, [])
    assert len(refusal.value.message) < 1000


@pytest.mark.parametrize("name", hostile.SENTENCEPIECE)
def test_sentencepiece(name: str) -> None:
    """Likewise."""
    with pytest.raises(InvalidArgument) as refusal:
        sentencepiece.build(hostile.SENTENCEPIECE[name](), {})
    assert len(refusal.value.message) < 1000


def test_long_code_is_not_parsed() -> None:
    """10 MB of a list in Python took 71 s."""
    code = hostile.long_code()
    assert tiktoken.pattern_in(code) is None
    assert tiktoken.pattern_in(code[-40:].partition("\n")[2]) == r"\p{L}"


def test_added_tokens_of_a_configuration() -> None:
    """They have a number, and so has each of them."""
    with pytest.raises(InvalidArgument, match="adds more than 65536 tokens"):
        stated(hostile.many_added_settings())
    assert stated({"added_tokens_decoder": {"5": {"content": "a" * 2000}, "9" * 100_000: {"content": "b"}}}) == {}


def test_a_large_configuration_is_not_read(tmp_path: Path) -> None:
    """JSON takes ten times its size in memory."""
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(LARGEST_JSON + 1)
    with pytest.raises(InvalidArgument, match="at most"):
        read_json(path)


@pytest.mark.parametrize(
    "expression",
    [
        *(entry for kind in NAMES.values() for entry in ([kind] if isinstance(kind, str) else kind)),
        r"(?=(\d{3})+(?!\d))",
        r"\p{N}{1,3}(?=(?:\p{N}{3})*\b)",
        r" ?[^(\s|[.,!?…。，、।۔،])]+",
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s",
        r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    ],
)
def test_expressions_of_models_are_taken(expression: str) -> None:
    """Those that cut words in one pass."""
    check_expression(expression)


class PanicException(BaseException):
    """As PyO3 makes it anew in each library."""


def test_a_panic_is_a_refusal() -> None:
    """A library's own end is not the frontend's; an interrupt stays one."""
    with pytest.raises(InvalidArgument, match="the text: index out of bounds"), as_refusals("the text"):
        raise PanicException("index out of bounds")
    with pytest.raises(KeyboardInterrupt), as_refusals("the text"):
        raise KeyboardInterrupt


def test_a_panic_while_a_text_is_tokenised(tmp_path: Path) -> None:
    """It reaches the caller as the refusal of one text; the tokenizer goes on."""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(hostile.tokenizer_json(pre_tokenizer={"type": "Whitespace"}))
    tokenizer = open_hf_tokenizer(path, "default")

    class Broken:
        def encode_batch_fast(self, *args: object, **options: object) -> None:
            raise PanicException("over")

    whole, tokenizer._native = tokenizer._native, Broken()  # type: ignore[assignment]
    with pytest.raises(InvalidArgument, match="failed on the text: over"):
        tokenizer.encode("never seen")
    tokenizer._native = whole
    assert tokenizer.encode("a a") == [0, 0]


def test_tokens_that_never_make_a_character() -> None:
    """The library looks at all of them again with each: after some they are text, and it begins anew."""
    looked: list[int] = []

    class Stream:
        def __init__(self) -> None:
            self.ids = 0

        def step(self, native: object, token_id: int) -> None:
            self.ids += 1
            looked.append(self.ids)

    class Native:
        def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
            return "\ufffd" * len(ids)

    class Counted(NativeStream):
        def _start(self, ids: list[int]) -> Stream:  # type: ignore[override]
            return Stream()

    stream = Counted(Native(), (), True)  # type: ignore[arg-type]
    text = "".join(stream.step(7) for _ in range(10 * MOST_WAITING))
    assert (text, max(looked)) == ("\ufffd" * 10 * MOST_WAITING, MOST_WAITING)
