"""What the frontend and the engines say to each other, inside the runtime's requests and items.

`PreprocessedRequest` (tokens in) keeps the names that programs written for NVIDIA Dynamo
know. An engine answers with *deltas*: a list `[produced, finish, extras]`, since it is
made and read once per token:

- `produced`: token ids (`list[int]`) of a tokens engine, or text (`str`) of a text engine;
- `finish`: None, or one of `EOS STOP LENGTH CANCELLED ERROR`;
- `extras`: None, or a dict with any of the keys named by the constants below.

One token and nothing else, as nearly every delta of a running stream is, travels as the bare
token id (`int`): that is half of the bytes and a third of the objects. NVIDIA Dynamo's dict form
`{"token_ids": [...], "finish_reason": ...}` is accepted too (`read_delta` turns all into the list).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

EOS: Final = "eos"
STOP: Final = "stop"
LENGTH: Final = "length"
CANCELLED: Final = "cancelled"
ERROR: Final = "error"

LOG_PROBS: Final = "log_probs"
"""extras: one float per produced token."""
TOP_LOGPROBS: Final = "top_logprobs"
"""extras: per produced token a list of `[token_id, logprob]`, best first."""
PROMPT_LOGPROBS: Final = "prompt_logprobs"
"""extras of the first delta: per prompt token a float, or None for the first."""
PROMPT_TOP_LOGPROBS: Final = "prompt_top_logprobs"
"""extras of the first delta: per prompt token a list of `[token_id, logprob]`, best first, or None for the first."""
CACHED_TOKENS: Final = "cached_tokens"
"""extras: prompt tokens that came from the engine's prefix cache."""
PROMPT_TOKENS: Final = "prompt_tokens"
"""extras of a text engine, or of the first delta of one that takes images: exact prompt token count; best with the
first delta, since an answer may be cut short."""
COMPLETION_TOKENS: Final = "completion_tokens"
"""extras of a text engine: how many tokens it has produced so far, this delta's included; without, each delta with
text counts as one."""
MESSAGE: Final = "message"
"""extras of a delta whose finish is ERROR: the sentence for the user."""
DISAGGREGATED_PARAMS: Final = "disaggregated_params"
"""extras of a prefill engine's last delta: what a decode engine needs to go on, an object of the engine's own."""
STOP_REASON: Final = "stop_reason"
"""extras of the last delta: the stop string or token id that matched."""

Delta: TypeAlias = list[Any]

MOST_IDS: Final = 1024
"""Token ids that end a stream, of either kind, and those that have a bias: whoever reads a request looks at each."""
_Ids: TypeAlias = Annotated[list[int], msgspec.Meta(max_length=MOST_IDS)]
_Bias: TypeAlias = Annotated[dict[str, float], msgspec.Meta(max_length=MOST_IDS)]
_Texts: TypeAlias = Annotated[list[str], msgspec.Meta(max_length=256)]


class StopConditions(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Conditions that end a stream. `stop` strings are the frontend's work for tokens engines."""

    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: _Texts = []
    stop_token_ids: _Ids = []
    ignore_eos: bool = False


class SamplingOptions(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Options of how the next token is chosen; None leaves it to the engine."""

    n: int = 1
    best_of: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    logit_bias: _Bias | None = None
    bad_words: _Texts | None = None
    """Texts of several tokens that an answer must not have; those of one token are in `logit_bias`."""
    guided_decoding: dict[str, Any] | None = None
    include_stop_str_in_output: bool = False


SAMPLING_FIELDS: Final = (
    "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k", "min_p", "seed",
)  # fmt: skip
"""Fields of `SamplingOptions` that engines take as they are, if not under these names."""


class OutputOptions(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Options of what else is wanted beside the tokens."""

    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True


class RoutingHints(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Hints of a request for the worker that it was sent to; NVIDIA Dynamo's other names are for routers."""

    dp_rank: int | None = None
    """Which of its data-parallel ranks; None: the worker chooses."""
    cache_salt: str | None = None
    """Requests of another salt, or none, share no KV block with it."""


class PrefillResult(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Result of a prefill engine, for the decode engine that goes on."""

    disaggregated_params: dict[str, Any]


class BootstrapInfo(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Place where both engines of a request meet while its prompt is being computed; NVIDIA Dynamo's names."""

    bootstrap_host: str
    """Of the prefill engine, in words that the decode engine knows: an address, or an instance."""
    bootstrap_port: int = 0
    bootstrap_room: int
    """Of this request there."""


MOST_IMAGES: Final = 1024
"""Images of one request, whatever a frontend takes."""
ImageFormat: TypeAlias = Literal["png", "jpeg", "webp", "gif"]


class ImageInput(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Image of a prompt as the client sent it: its header has been read, and nobody has decoded it."""

    data: bytes
    format: ImageFormat
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    """Of `data`, 128 bits: it tells images apart in KV caches, where they are the same tokens."""
    width: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
    height: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
    at: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)] = 0
    """Index in `token_ids` of the token that stands for it."""
    tokens: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 1
    """How many tokens the model makes of that one."""


class PreprocessedRequest(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One sequence to continue. `n > 1` is the frontend's work: one request per choice."""

    model: str
    token_ids: list[int]
    stop_conditions: StopConditions = msgspec.field(default_factory=StopConditions)
    sampling_options: SamplingOptions = msgspec.field(default_factory=SamplingOptions)
    output_options: OutputOptions = msgspec.field(default_factory=OutputOptions)
    eos_token_ids: _Ids = []
    mdc_sum: str = ""
    annotations: _Texts = []
    routing: RoutingHints | None = None
    prefill_result: PrefillResult | None = None
    bootstrap_info: BootstrapInfo | None = None
    """To both engines of a request whose prompt one of them computes for the other."""
    dp_rank: int | None = None
    """Where older callers say what `routing.dp_rank` says."""
    answered_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How many of `token_ids`, at their end, are answer already: another worker made them before it was lost."""
    choice: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Which of several answers to the prompt it makes: a simulated engine, which draws nothing, tells them apart."""
    images: Annotated[list[ImageInput], msgspec.Meta(max_length=MOST_IMAGES)] | None = None
    """In the order of their places; None: the prompt is text alone."""

    @property
    def prompt_tokens(self) -> int:
        """Return how many tokens the prompt takes in the model, those of its images counted."""
        count = len(self.token_ids)
        return count if self.images is None else count + sum(image.tokens - 1 for image in self.images)

    @property
    def computed_elsewhere(self) -> bool:
        """Tell whether another engine computes its prompt, or has; said to those that go on with it."""
        return self.prefill_result is not None or self.bootstrap_info is not None

    @property
    def wanted_rank(self) -> int | None:
        """Return the data-parallel rank that it must go to; None: any."""
        if self.routing is not None and self.routing.dp_rank is not None:
            return self.routing.dp_rank
        return self.dp_rank


class TextRequest(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One request for a text engine: the OpenAI body as the client sent it."""

    model: str
    kind: str
    """`chat` or `completions`."""
    body: dict[str, Any]
    images: Annotated[list[ImageInput], msgspec.Meta(max_length=MOST_IMAGES)] | None = None
    """Of a chat, in the order of its image parts, which have no URLs then; None: it has none."""


def delta(produced: list[int] | str, finish: str | None = None, extras: dict[str, Any] | None = None) -> Delta:
    """Build a delta."""
    return [produced, finish, extras]


_DICT_EXTRAS: Final = (
    LOG_PROBS, TOP_LOGPROBS, PROMPT_LOGPROBS, PROMPT_TOP_LOGPROBS, CACHED_TOKENS, PROMPT_TOKENS, COMPLETION_TOKENS,
    STOP_REASON, DISAGGREGATED_PARAMS,
)  # fmt: skip


def count_of(extras: dict[str, Any], name: str, before: int) -> int:
    """Return a count in a delta's extras; `before` where there is none that can be one."""
    value = extras.get(name)
    return value if type(value) is int and 0 <= value < 1 << 53 else before


def read_delta(data: Any) -> Delta:
    """Return `data` as a delta, or raise `ValueError` saying what is wrong with it."""
    if type(data) is list and len(data) == 3 and type(data[0]) in (list, str):
        return data
    if type(data) is int:
        return [[data], None, None]
    if isinstance(data, dict):
        return _from_dict(data)
    raise ValueError(f"an engine sent {type(data).__name__} where a delta was expected")


def output_dict(data: Any) -> Any:
    """Return a delta as NVIDIA Dynamo's output: `{"token_ids": [...], "finish_reason": ...}`.

    Anything else stays as it is.
    """
    if type(data) is int:
        return {"token_ids": [data]}
    if type(data) is not list or len(data) != 3 or type(data[0]) not in (list, str):
        return data
    produced, finish, extras = data
    output: dict[str, Any] = {"text": produced, "token_ids": []} if type(produced) is str else {"token_ids": produced}
    output |= extras or {}
    if finish is not None:
        output["finish_reason"] = {"error": output.pop(MESSAGE, "")} if finish == ERROR else finish
    return output


def _from_dict(data: dict[str, Any]) -> Delta:
    produced = data.get("token_ids")
    if not produced and data.get("text") is not None:
        produced = data["text"]
    if not isinstance(produced, (list, str)):
        raise ValueError("an engine's output needs token_ids (a list) or text")
    finish = data.get("finish_reason")
    extras = {name: data[name] for name in _DICT_EXTRAS if data.get(name) is not None}
    if isinstance(finish, dict):
        extras[MESSAGE] = str(finish.get("error", finish))
        finish = ERROR
    elif isinstance(finish, str) and finish.startswith("error:"):
        extras[MESSAGE] = finish.removeprefix("error:").strip()
        finish = ERROR
    return [produced, finish, extras or None]
