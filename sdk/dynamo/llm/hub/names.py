"""How people name a model of the hub, and which of its files an engine needs. Pure: names in, names out.

`org/repo`, `org/repo@revision`, `org/repo:Q4_K_M`, `org/repo/file.gguf`, with `hf://` before it or nothing, or the
address of its page. Of a repository only what an engine reads is loaded: the same weights often lie there five times.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Final, Literal

from dynamo.runtime.errors import InvalidArgument

SCHEME: Final = "hf://"
DESCRIPTION: Final = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")
"""What tells how a model is talked to; the rest is weights and pictures."""
TEMPLATES: Final = "additional_chat_templates/*.jinja"
CODE: Final = "*.py"
"""Of models with code of their own; a tiktoken model's holds the expression that cuts words."""
_OTHERS: Final = (
    "*.h5", "*.msgpack", "*.onnx", "*.onnx_data", "*.ot", "*.tflite", "*.mlmodel", "*.mlpackage/*", "*.pth",
    "original/*", "metal/*", "onnx/*", "openvino*", "coreml/*", "*.tar.gz", "*.zip",
)  # fmt: skip
"""The same weights for other programs."""
_LEFT_OUT: Final = (".*", "*/.*", "*.md", "*.png", "*.jpg", "*.jpeg", "*.gif", "*.svg", "*.pdf", "*.mp4", "LICENSE*")
_TORCH: Final = ("*.bin", "*.pt")
"""The same weights once more where there are safetensors."""
_ONE_PIECE: Final = "consolidated*.safetensors"
"""The same once more, as Mistral's own program reads them."""
_NO_MODEL: Final = ("mmproj*", "*imatrix*", "*/mmproj*")
"""GGUF files that are parts for something else."""

Weights = Literal["any", "gguf", "none"]
"""What an engine reads: whatever there is (safetensors first), GGUF files only, or no weights at all."""

_PAGE: Final = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/")
_NAME: Final = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)"
    r"(?:/(?:(?:blob|resolve|tree)/(?P<page_revision>[^/]+)/?)?(?P<file>[^:@]+\.gguf)?|:(?P<variant>[\w.-]+))?"
    r"(?:@(?P<revision>[^@\s]+))?"
)
_REVISION_FIRST: Final = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)@(?P<revision>[^@\s/]+)/(?P<file>[^:@]+\.gguf)")
_PART: Final = re.compile(r"-(\d{5})-of-(\d{5})$")
_VARIANT: Final = re.compile(r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP\d\w*|B?F16|FP16|F32))(?=[-._/]|$)", re.I)
_PREFERRED: Final = ("Q4_K_M", "Q4_K_S", "Q4_0", "Q5_K_M", "Q8_0")
"""Which quantisation of several is meant by a bare name: llama.cpp's own choice, then what comes near to it."""


@dataclass(frozen=True)
class HubModel:
    """One model of the hub, as somebody named it."""

    repo: str
    revision: str | None = None
    file: str | None = None
    """A GGUF file in it."""
    variant: str | None = None
    """A quantisation, as in `Q4_K_M`."""

    def __str__(self) -> str:
        what = f"/{self.file}" if self.file else f":{self.variant}" if self.variant else ""
        return f"{SCHEME}{self.repo}{what}" + (f"@{self.revision}" if self.revision else "")


def parse(source: str) -> HubModel | None:
    """Read a name, None where it can't be one of a model of the hub."""
    page = _PAGE.match(source)
    text = source[page.end() :].partition("?")[0] if page else source.removeprefix(SCHEME).rstrip("/")
    match = _REVISION_FIRST.fullmatch(text) or _NAME.fullmatch(text.rstrip("/"))
    if match is None or any(part in (".", "..") for part in text.split("/")):
        return None
    named = match.groupdict()
    revision = named.get("revision") or named.get("page_revision")
    return HubModel(named["repo"], revision, named.get("file"), named.get("variant"))


@dataclass(frozen=True)
class Choice:
    """Choice of what to load of a repository."""

    names: list[str]
    gguf: str | None = None
    """The file that the engine opens, where it is not the folder."""


def choose(model: HubModel, names: Iterable[str], weights: Weights) -> Choice:
    """Choose the files that an engine needs; `InvalidArgument` where what was named is not there."""
    kept = [name for name in names if not _any(name, _LEFT_OUT)]
    described = [name for name in kept if _describes(name)]
    groups = _gguf_groups(kept)
    if model.file or model.variant:
        return _with_gguf(described, _named_group(model, groups))
    has_tokenizer = any(name == "tokenizer.json" or name.endswith((".model", ".tiktoken")) for name in described)
    if weights == "none" and (has_tokenizer or not groups):
        return Choice(described)
    tensors = [name for name in kept if name.endswith((".safetensors", *(kind[1:] for kind in _TORCH)))]
    if weights == "gguf" or (groups and not tensors):
        if not groups:
            raise InvalidArgument(f"{model} has no GGUF file, and the engine reads nothing else")
        return _with_gguf(described, _preferred(groups))
    return Choice(_without_copies(kept))


def _without_copies(names: list[str]) -> list[str]:
    """Return all but the same weights in other forms."""
    left_out: tuple[str, ...] = (*_OTHERS, "*.gguf")
    if any(name.endswith(".safetensors") for name in names):
        left_out += _TORCH
    if any(fnmatch(name, "model*.safetensors") for name in names):
        left_out += (_ONE_PIECE,)
    return [name for name in names if not _any(name, left_out)]


def _describes(name: str) -> bool:
    return fnmatch(name, TEMPLATES) or ("/" not in name and _any(name, (*DESCRIPTION, CODE)))


def _with_gguf(described: list[str], group: list[str]) -> Choice:
    return Choice([*described, *group], group[0])


def _gguf_groups(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the GGUF models by their name without ending and part number, parts in order."""
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        if name.lower().endswith(".gguf") and not _any(name, _NO_MODEL):
            groups.setdefault(_PART.sub("", name[:-5]), []).append(name)
    return groups


def _named_group(model: HubModel, groups: dict[str, list[str]]) -> list[str]:
    if model.file:
        for group in groups.values():
            if model.file in group:
                return group
        close = difflib.get_close_matches(model.file, [name for group in groups.values() for name in group], n=1)
        hint = f"did you mean {close[0]}?" if close else _listed("its GGUF files are", sorted(groups))
        raise InvalidArgument(f"{model}: the model has no such file; {hint}")
    wanted = str(model.variant)
    for stem, group in groups.items():
        if variant_of(stem).lower() == wanted.lower() or stem.lower().endswith(f"-{wanted.lower()}"):
            return group
    has = sorted({variant for stem in groups if (variant := variant_of(stem))})
    raise InvalidArgument(f"{model}: the model has no {wanted}; {_listed('it has', has)}")


def _preferred(groups: dict[str, list[str]]) -> list[str]:
    by_variant = {variant_of(stem).upper(): stem for stem in reversed(groups)}
    stem = next((by_variant[variant] for variant in _PREFERRED if variant in by_variant), next(iter(groups)))
    return groups[stem]


def variant_of(stem: str) -> str:
    """Return the quantisation that a GGUF file's name tells, "" where it tells none."""
    variants = _VARIANT.findall(stem)
    return variants[-1] if variants else ""


def _listed(before: str, names: Sequence[str]) -> str:
    if not names:
        return "it has no GGUF files"
    return f"{before} {', '.join(names[:12])}" + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def _any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)
