"""OpenAI requests to token requests: template, tokens, limits. One `Preprocessor` per card digest.

The frontend calls it once per request, with a body whose types and ranges it has checked.
Long texts are tokenised in a thread, so that other streams go on meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dynamo.llm import request_options as options
from dynamo.llm.card import CHAT_TEMPLATE, CHAT_TEMPLATE_JSON, TOKENIZER_CONFIG, ModelCard
from dynamo.llm.protocols import PreprocessedRequest
from dynamo.llm.template import ChatTemplate, flatten_message
from dynamo.llm.tokenizer import Mode, Tokenizer, card_file, load_tokenizer
from dynamo.runtime.errors import InvalidArgument

_FAR: Final = 4
"""A text that many times over the context is refused by its length: tokenising it would keep a core busy for
nothing. Not 1, since a tokenizer may drop spaces before it counts."""


_LARGE_CHAT: Final = 1 << 19
"""Rendering more characters than this takes milliseconds: in a thread."""
_PER_MESSAGE: Final = 500
"""What a message costs to render beside its text, in characters."""


class ContextLengthExceeded(InvalidArgument):
    """The prompt is longer than the model's context."""

    def __init__(self, prompt: int, context: int, *, at_least: bool = False) -> None:
        super().__init__(
            f"This model's maximum context length is {context} tokens, but the prompt has "
            f"{'at least ' if at_least else ''}{prompt} tokens. "
            "Please shorten the prompt: at least one token must be left for the answer."
        )
        self.prompt = prompt
        self.context = context


class Preprocessor:
    """Makes the requests of one model."""

    def __init__(self, card: ModelCard, tokenizer: Tokenizer, template: ChatTemplate | None = None) -> None:
        self.card = card
        self.tokenizer = tokenizer
        self._template = template or ChatTemplate(special_tokens=card.special_tokens)
        self._digest = card.digest

    @classmethod
    def load(cls, card: ModelCard, files: Mapping[str, Path], mode: Mode = "auto") -> Preprocessor:
        """Open tokenizer and template from files by role or digest. Slow: call it in a thread."""
        return cls(card, load_tokenizer(card, files, mode), load_template(card, files))

    async def chat(self, body: Mapping[str, Any]) -> list[PreprocessedRequest]:
        """Return one request per choice of a chat body."""
        large = content_size(body.get("messages")) > _LARGE_CHAT
        prompt = await asyncio.to_thread(self.chat_prompt, body) if large else self.chat_prompt(body)
        ids = await self._encode(prompt, add_special=False)
        return self._requests(body, [ids], chat=True)

    async def completion(self, body: Mapping[str, Any]) -> list[PreprocessedRequest]:
        """Return the requests of a completions body: choice c of prompt p is at `p * n + c`."""
        prompts = read_prompts(body.get("prompt"))
        ids = [await self._prompt_ids(prompt) for prompt in prompts]
        return self._requests(body, ids, chat=False)

    def text_request(self, kind: str, body: Mapping[str, Any]) -> PreprocessedRequest:
        """Read one request to a text engine, `chat` or `completions`, of one prompt: for such an engine, which ends
        and counts as those do that take tokens. Blocks while a long prompt is read."""
        chat = kind == "chat"
        text = self.chat_prompt(body) if chat else read_prompts(body.get("prompt"))[0]
        ids = self.tokenizer.encode(text, not chat) if isinstance(text, str) else list(text)
        return self._requests({**body, "n": 1}, [ids], chat=chat)[0]

    def chat_prompt(self, body: Mapping[str, Any]) -> str:
        """Render the messages of a chat body."""
        messages = body.get("messages")
        if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
            raise InvalidArgument("messages must be a list with at least one message")
        if options.field(body, "use_raw_prompt"):
            return "\n".join(flatten_message(m, i)["content"] for i, m in enumerate(messages))
        variables = options.field(body, "chat_template_kwargs") or options.field(body, "chat_template_args")
        if variables and not isinstance(variables, Mapping):
            raise InvalidArgument("chat_template_kwargs must be an object")
        generate = body.get("add_generation_prompt")
        return self._template.render(
            messages,
            add_generation_prompt=True if generate is None else bool(generate),
            tools=None if body.get("tool_choice") == "none" else body.get("tools"),
            variables=variables,
        )

    def echo_texts(self, body: Mapping[str, Any]) -> list[str]:
        """Return what `echo` puts before the answers of a completions body, one text per prompt."""
        prompts = read_prompts(body.get("prompt"))
        return [prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt) for prompt in prompts]

    async def _encode(self, text: str, *, add_special: bool) -> list[int]:
        context = self.card.context_length
        if context is not None and (least := far_over(text, self.tokenizer, context)):
            raise ContextLengthExceeded(least, context, at_least=True)
        return await self.tokenizer.encode_async(text, add_special)

    async def _prompt_ids(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):
            return await self._encode(prompt, add_special=True)
        clip_tokens(len(prompt), None, self.card.context_length)  # before looking at each
        limit = self.card.vocab_size or self.tokenizer.vocab_size
        if prompt and (max(prompt) >= limit or min(prompt) < 0):
            wrong = next(token for token in prompt if not 0 <= token < limit)
            raise InvalidArgument(f"prompt has the token id {wrong}, but the vocabulary ends at {limit - 1}")
        return list(prompt)

    def _requests(
        self, body: Mapping[str, Any], prompts: Sequence[list[int]], *, chat: bool
    ) -> list[PreprocessedRequest]:
        wanted = options.wanted_tokens(body, chat)
        output = options.output_options(body, chat)
        made = []
        for ids in prompts:
            conditions = options.stop_conditions(body, clip_tokens(len(ids), wanted, self.card.context_length))
            conditions.stop_token_ids += self._special_stops(conditions.stop)
            made += [
                PreprocessedRequest(
                    model=self.card.name,
                    token_ids=ids,
                    stop_conditions=conditions,
                    sampling_options=options.sampling_options(body, choice),
                    output_options=output,
                    eos_token_ids=self.card.eos_token_ids,
                    mdc_sum=self._digest,
                    annotations=list(options.nvext_of(body).get("annotations") or ()),
                )
                for choice in range(options.choices(body))
            ]
        return made

    def _special_stops(self, stops: Sequence[str]) -> list[int]:
        """Return the ids of stop strings that are special tokens: those never show up in the text."""
        found = (self.tokenizer.token_id(stop) for stop in stops)
        return [token_id for token_id in found if token_id is not None and self.tokenizer.decode([token_id]) == ""]


def far_over(text: str, tokenizer: Tokenizer, context: int) -> int:
    """How many tokens a text has at least, where its length alone shows that they are far too many; else 0."""
    if len(text) <= context:  # it may fit, whatever its tokens are
        return 0
    least = len(text) // tokenizer.longest_token
    return least if least > _FAR * context else 0


def content_size(messages: Any) -> int:
    """Estimate the work of rendering, from the lengths alone."""
    if not isinstance(messages, list):
        return 0
    size = _PER_MESSAGE * len(messages)
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            size += sum(len(part.get("text") or "") for part in content if isinstance(part, dict))
        elif isinstance(content, str):
            size += len(content)
    return size


def clip_tokens(prompt: int, wanted: int | None, context: int | None) -> int | None:
    """Return how many tokens may be made; `ContextLengthExceeded` where the prompt leaves no room."""
    if prompt == 0:
        raise InvalidArgument("the prompt is empty: it has no tokens")
    if context is None:
        return wanted
    if prompt >= context:
        raise ContextLengthExceeded(prompt, context)
    return context - prompt if wanted is None else min(wanted, context - prompt)


def read_prompts(prompt: Any) -> list[str | list[int]]:
    """Read OpenAI's four forms of `prompt`: text, texts, token ids, lists of token ids."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        kinds = set(map(type, prompt))
        if kinds == {int}:
            return [prompt]
        if kinds == {str}:
            return list(prompt)
        if kinds == {list} and all(set(map(type, item)) == {int} for item in prompt):
            return list(prompt)
    raise InvalidArgument("prompt must be a string, a list of strings, a list of token ids or a list of such lists")


def load_template(card: ModelCard, files: Mapping[str, Path]) -> ChatTemplate:
    """Open the card's templates: Jinja files before `chat_template.json` before the tokenizer's configuration."""
    from dynamo.llm.checkout import read_json, templates_of

    default: str | None = None
    named: dict[str, str] = {}
    for role in (TOKENIZER_CONFIG, CHAT_TEMPLATE_JSON):  # the later one wins
        if path := card_file(card, files, role):
            own, more = templates_of(read_json(path))
            default, named = own or default, {**named, **more}
    if path := card_file(card, files, CHAT_TEMPLATE):
        # A template of its own replaces all that the configuration says, for tools too.
        default, named = _read(path), {}
    for role in card.files:
        if role.startswith(f"{CHAT_TEMPLATE}.") and (path := card_file(card, files, role)):
            named[role.removeprefix(f"{CHAT_TEMPLATE}.")] = _read(path)
    return ChatTemplate(default, named=named, special_tokens=card.special_tokens)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the chat template {path.name!r} can't be read: {error}") from error


async def load_preprocessor(card: ModelCard, files: Mapping[str, Path], mode: Mode = "auto") -> Preprocessor:
    """`Preprocessor.load` in a thread."""
    return await asyncio.to_thread(Preprocessor.load, card, files, mode)
