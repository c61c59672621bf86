"""The model card: what a frontend must know of a model that a worker serves.

It travels as a plain dict inside the instance's record. Files (tokenizer, template,
configuration) are named by the digest of their content, so that a frontend without a model
on its disk fetches them from any worker that has them (`dynamo.llm.models.file_cache`). `digest` covers
what turns text into tokens and back: workers with different digests form different sets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

import msgspec

from dynamo.runtime.errors import InvalidArgument

TOKENIZER: Final = "tokenizer"
"""Role of `tokenizer.json`."""
TOKENIZER_CONFIG: Final = "tokenizer_config"
CONFIG: Final = "config"
GENERATION_CONFIG: Final = "generation_config"
CHAT_TEMPLATE: Final = "chat_template"
"""Role of a Jinja file; named templates beside the default have the role `chat_template.<name>`."""
CHAT_TEMPLATE_JSON: Final = "chat_template_json"
"""Role of a file that holds templates as a tokenizer's configuration does."""

CHAT: Final = "chat"
COMPLETIONS: Final = "completions"
EMBEDDING: Final = "embedding"
GENERATES: Final = (CHAT, COMPLETIONS)
"""What a card's `model_types` are unless it says otherwise."""


class FileRef(msgspec.Struct, frozen=True):
    """A file by its content."""

    digest: str
    """blake2b-256, lower-case hex."""
    size: int
    name: str
    """For messages only; never a path."""


class ImageTraits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a model takes images: where they stand in a prompt, and how many tokens one becomes."""

    placeholder: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """The token that its chat template writes for an image; None: its template knows of none."""
    tokens: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 1
    """Of every image, where `patch` is 0."""
    patch: Annotated[int, msgspec.Meta(ge=0, le=1 << 16)] = 0
    """Pixels of the side of a square that becomes one token; images are resized to whole squares."""
    least_pixels: Annotated[int, msgspec.Meta(ge=0)] = 0
    most_pixels: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)] = 1 << 30
    """Smaller and larger images are resized into these bounds first."""


class ModelCard(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One model as one worker serves it."""

    name: str
    model_input: Literal["tokens", "text"] = "tokens"
    model_types: list[str] = msgspec.field(default_factory=lambda: [*GENERATES])
    """What can be asked of it, of `CHAT`, `COMPLETIONS` and `EMBEDDING`."""
    role: Literal["aggregated", "prefill", "decode"] = "aggregated"
    context_length: int | None = None
    kv_cache_block_size: Annotated[int, msgspec.Meta(ge=1)] = 16
    migration_limit: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """How often a request for it goes on elsewhere; None: as the frontends say."""
    router_mode: str | None = None
    """How its worker is chosen, in `--router-mode`'s words; None: as the frontends say."""
    tool_call_parser: str | None = None
    """What turns its answers' text into tool calls, by the names of `parsers/parser_names.py`; None: nothing does."""
    reasoning_parser: str | None = None
    """What tells its thoughts from its answers, likewise."""
    tokenizer: Literal["bytes", "hf", "none"] = "bytes"
    """`bytes`: the built-in one; `hf`: the file of role `tokenizer`; `none`: a text engine's own."""
    vocab_size: int | None = None
    eos_token_ids: list[int] = []
    bos_token_id: int | None = None
    add_bos: bool | None = None
    """None: as the tokenizer file says."""
    special_tokens: dict[str, str] = {}
    """What a chat template may name: `bos_token`, `eos_token`, `pad_token`, `unk_token`."""
    files: dict[str, FileRef] = {}
    images: ImageTraits | None = None
    """There where its prompts may hold images."""
    images_hint: str = ""
    """What would have it take images, where it takes none."""
    resumes_constraints: bool = False
    """Given the first tokens of an answer that keeps to a grammar or schema, its engine goes on within it."""
    user_data: dict[str, Any] = {}

    @property
    def digest(self) -> str:
        """Name the set of workers among which a request is routed."""
        routed_alike = ["card-2", self.name, self.context_length, self.kv_cache_block_size, *self._tokens]
        if not self.same_types(GENERATES):  # so that a frontend and a worker of different versions agree on all others
            routed_alike.append(sorted({*self.model_types}))
        if self.router_mode is not None:
            routed_alike.append(self.router_mode)
        if self.tool_call_parser is not None or self.reasoning_parser is not None:
            routed_alike.append(["parsers", self.tool_call_parser, self.reasoning_parser])
        return hashlib.blake2b(msgspec.msgpack.encode(routed_alike), digest_size=16).hexdigest()

    @property
    def _tokens(self) -> list[Any]:
        """Return all that decides which tokens a prompt becomes, and which text tokens become."""
        images = [] if self.images is None else [["images", *msgspec.structs.astuple(self.images)]]
        return [
            self.model_input, self.tokenizer, sorted(self.eos_token_ids), self.bos_token_id, self.add_bos,
            sorted(self.special_tokens.items()), sorted((role, ref.digest) for role, ref in self.files.items()),
            *images,
        ]  # fmt: skip

    def takes_over(self, other: ModelCard) -> bool:
        """Tell whether requests that were made for `other` can go to workers of this card."""
        room, needed = self.context_length, other.context_length
        fits = room is None or (needed is not None and room >= needed)
        return fits and self.same_types(other.model_types) and self.same_tokens(other)

    def same_types(self, types: Iterable[str]) -> bool:
        """Tell whether just these can be asked of it."""
        return {*self.model_types} == {*types}

    def same_tokens(self, other: ModelCard) -> bool:
        """Tell whether it is the same model, and its prompts become the same tokens."""
        return self.name == other.name and self._tokens == other._tokens

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for the instance's record."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def card_from_dict(data: Any) -> ModelCard:
    """Read a card out of an instance's record; `InvalidArgument` says which field is wrong."""
    try:
        return msgspec.convert(data, ModelCard)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"the model card of an instance can't be read: {error}") from error


def card_role(data: Any) -> str:
    """Return the part of the work that a card in a record names; empty where it can't be read."""
    try:
        return card_from_dict(data).role
    except InvalidArgument:
        return ""


def card_digest(data: Any) -> str:
    """Return the digest of a card as it stands in a record; empty where it can't be read."""
    try:
        return card_from_dict(data).digest
    except InvalidArgument:
        return ""
