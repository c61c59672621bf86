"""OpenAI requests to token requests: template, tokens, limits. One `Preprocessor` per card digest.

The frontend calls it once per request, with a body whose types and ranges it has checked.
Long texts are tokenised in a thread, so that other streams go on meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from dynamo.llm.model_card import ModelCard
from dynamo.llm.processing import request_options as options
from dynamo.llm.processing.chat_template import ChatTemplate, continued, flatten_message
from dynamo.llm.processing.image_prompts import ImageMark, placed
from dynamo.llm.processing.infill import infilled
from dynamo.llm.processing.template_files import load_template
from dynamo.llm.processing.token_limits import TOKEN_FIELDS, limit_tokens, truncated
from dynamo.llm.protocols import ImageInput, PreprocessedRequest, RoutingHints
from dynamo.llm.tokenizer import load_tokenizer
from dynamo.llm.tokenizer.tokenizer import Mode, Tokenizer
from dynamo.runtime.errors import InvalidArgument

_FAR: Final = 4
"""A text that many times over the context is refused by its length: tokenising it would keep a core busy for
nothing. Not 1, since a tokenizer may drop spaces before it counts."""


_LARGE_CHAT: Final = 1 << 19
"""Rendering more characters than this takes milliseconds: in a thread."""
_MANY: Final = 128
"""Making more requests than this takes milliseconds, too."""
_PER_MESSAGE: Final = 500
"""What a message costs to render beside its text, in characters."""


_PER_PARSED: Final = 8
"""What a character costs that is parsed as JSON and printed again, in characters that are only copied."""
MOST_PROMPT_TOKENS: Final = 1 << 20
"""Tokens of prompts, once per answer, in one request; or four contexts, where that is more. Workers compute, and the
bus carries, each of them."""
MOST_BYTES: Final = 16 << 20
"""What one request may send to workers beside that."""
_ANY_CONTEXT: Final = 1 << 19
"""Tokens, where a model's context isn't known."""
_COUNTED: Final = 1 << 17
"""Characters of a text that is counted before it is tokenised whole, which takes 150 bytes a token for a moment."""
_PART: Final = 1 << 16
_CUT: Final = 64
"""Tokens that a cut may add, where it goes through a word."""


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
        self._template = template or load_template(card, {})
        self._digest = card.digest

    @classmethod
    def load(cls, card: ModelCard, files: Mapping[str, Path], mode: Mode = "auto") -> Preprocessor:
        """Open tokenizer and template from files by role or digest. Slow: call it in a thread."""
        return cls(card, load_tokenizer(card, files, mode), load_template(card, files))

    @property
    def template_text(self) -> str | None:
        """Return the model's own chat template, as it is written."""
        return self._template.source

    async def chat(
        self, body: Mapping[str, Any], *, blocking: bool = False, images: Sequence[ImageInput] = (),
        rendered: Callable[[], object] | None = None,
    ) -> list[PreprocessedRequest]:  # fmt: skip
        """Return one request per choice of a chat body. `blocking`: it is called in a thread, and never waits.

        `images`: those of its content parts, in their order. `rendered` is called once the template is.
        """
        if (given := options.nvext_of(body).get("token_data")) is not None:
            if images:
                raise InvalidArgument("nvext.token_data: a prompt with images can't come as tokens")
            return self._requests(body, [self._checked_ids(given, "nvext.token_data")], chat=True)
        if images:
            made = (
                self.image_prompt(body, images)
                if blocking
                else await asyncio.to_thread(self.image_prompt, body, images)
            )
            return self._requests(body, [made[0]], chat=True, images=made[1])
        large = not blocking and content_size(body.get("messages")) > _LARGE_CHAT
        prompt = await asyncio.to_thread(self.chat_prompt, body) if large else self.chat_prompt(body)
        if rendered is not None:
            rendered()
        ids = await self._encode(prompt, add_special=False, blocking=blocking)
        return self._requests(body, [self._truncated(body, ids, chat=True)], chat=True)

    async def completion(self, body: Mapping[str, Any], *, blocking: bool = False) -> list[PreprocessedRequest]:
        """Return the requests of a completions body: choice c of prompt p is at `p * n + c`; else as `chat`."""
        prompts = read_prompts(body.get("prompt"))
        if (given := options.nvext_of(body).get("token_data")) is not None:
            if len(prompts) > 1:
                raise InvalidArgument(f"nvext.token_data stands for one prompt, and there are {len(prompts)}")
            prompts = [given]
        ids, tokens, answers = [], 0, options.choices(body)
        suffix = body.get("suffix")
        follows = await self._encode(suffix, add_special=False, blocking=blocking) if suffix else []
        for prompt in prompts:
            if not isinstance(prompt, str):
                prompt = self._truncated(body, prompt, chat=False)
            ids.append(self._truncated(body, await self._prompt_ids(prompt, blocking), chat=False))
            if suffix:
                ids[-1] = infilled(self.tokenizer, self.card.name, ids[-1], follows)
            tokens += len(ids[-1])
            check_work(tokens, answers, self.card.context_length)  # before the rest is read
        if not blocking and len(ids) * answers > _MANY:
            return await asyncio.to_thread(self._requests, body, ids, chat=False)
        return self._requests(body, ids, chat=False)

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        """Return the tokens of a text that may be some times over the context. Blocks while a long one is read."""
        self._refuse_over(text, _FAR)
        return self.tokenizer.encode(text, add_special)

    def over(self, text: str, times: int = 1) -> int:
        """Return how many tokens a text has at least where that is over `times` the context, else 0; it may be over
        it all the same. Blocks while a long text is counted, part by part, until it is over."""
        context = self.card.context_length or _ANY_CONTEXT
        if least := far_over(text, self.tokenizer, context):
            return least
        if len(text) <= _COUNTED or size_of(text) <= _FAR * context:
            return 0
        count = 0
        for cuts, begin in enumerate(range(0, len(text), _PART)):
            count += self.tokenizer.count(text[begin : begin + _PART])
            least = count - cuts * _CUT
            if least > times * context:
                return least
        return 0

    def text_request(self, kind: str, body: Mapping[str, Any]) -> PreprocessedRequest:
        """Read one request to a text engine, `chat` or `completions`, of one prompt: for such an engine, which ends
        and counts as those do that take tokens. Blocks while a long prompt is read."""
        chat = kind == "chat"
        text = self.chat_prompt(body) if chat else read_prompts(body.get("prompt"))[0]
        ids = self.tokenizer.encode(text, not chat) if isinstance(text, str) else list(text)
        return self._requests({**body, "n": 1}, [ids], chat=chat)[0]

    def image_prompt(self, body: Mapping[str, Any], images: Sequence[ImageInput]) -> tuple[list[int], list[ImageInput]]:
        """Return the tokens of a chat with images, and the images with their places. Blocks."""
        traits = self.card.images
        if traits is None:
            raise InvalidArgument(f"messages: the model '{self.card.name}' takes no images")
        mark = ImageMark.of(traits, self.tokenizer)
        text = self.chat_prompt(body, mark)
        self._refuse_over(text, 1)
        ids, places = mark.tokens(text, self.tokenizer)
        return ids, placed(images, places, traits)

    def chat_tokens(self, body: Mapping[str, Any], images: Sequence[ImageInput] = ()) -> int:
        """Count the tokens of a chat's prompt, which may be some times over the context. Blocks."""
        if not images:
            return len(self.encode(self.chat_prompt(body), add_special=False))
        ids, own = self.image_prompt(body, images)
        return len(ids) + added_tokens(own)

    def chat_prompt(self, body: Mapping[str, Any], mark: ImageMark | None = None) -> str:
        """Render the messages of a chat body; `mark` stands for its images."""
        messages = body.get("messages")
        if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
            raise InvalidArgument("messages must be a list with at least one message")
        read = options.reader(body)
        if read("use_raw_prompt"):
            return "\n".join(flatten_message(m, i)["content"] for i, m in enumerate(messages))
        variables = read("chat_template_kwargs") or read("chat_template_args")
        if variables and not isinstance(variables, Mapping):
            raise InvalidArgument("chat_template_kwargs must be an object")
        if (effort := body.get("reasoning_effort")) is not None:
            variables = {"reasoning_effort": effort, "enable_thinking": effort != "none", **(variables or {})}
        if body.get("chat_template"):
            raise InvalidArgument("chat_template: not taken from requests; start the worker with --chat-template")
        generate, continues = body.get("add_generation_prompt"), bool(body.get("continue_final_message"))
        prompt = self._template.render(
            messages,
            add_generation_prompt=not continues if generate is None else bool(generate),
            tools=None if body.get("tool_choice") == "none" else body.get("tools"),
            variables=variables,
            mark=mark,
        )
        return continued(prompt, messages) if continues else prompt

    def echo_texts(self, body: Mapping[str, Any]) -> list[str]:
        """Return what `echo` puts before the answers of a completions body, one text per prompt."""
        prompts = read_prompts(body.get("prompt"))
        return [prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt) for prompt in prompts]

    async def _encode(self, text: str, *, add_special: bool, blocking: bool) -> list[int]:
        if blocking:
            self._refuse_over(text, 1)
            return self.tokenizer.encode(text, add_special)
        context = self.card.context_length
        if context is not None and (least := far_over(text, self.tokenizer, context)):
            raise ContextLengthExceeded(least, context, at_least=True)
        return await self.tokenizer.encode_async(text, add_special)

    def _refuse_over(self, text: str, times: int) -> None:
        if least := self.over(text, times):
            raise ContextLengthExceeded(least, self.card.context_length or _ANY_CONTEXT, at_least=True)

    async def _prompt_ids(self, prompt: str | list[int], blocking: bool) -> list[int]:
        if isinstance(prompt, str):
            return await self._encode(prompt, add_special=True, blocking=blocking)
        return self._checked_ids(prompt, "prompt")

    def _checked_ids(self, ids: Sequence[int], field: str) -> list[int]:
        clip_tokens(len(ids), None, self.card.context_length)  # before looking at each
        if ids and (max(ids) >= self._vocabulary or min(ids) < 0):
            wrong, last = next(token for token in ids if not 0 <= token < self._vocabulary), self._vocabulary - 1
            raise InvalidArgument(f"{field} has the token id {wrong}, but the vocabulary ends at {last}")
        return list(ids)

    def _truncated(self, body: Mapping[str, Any], ids: list[int], *, chat: bool) -> list[int]:
        if (most := body.get("truncate_prompt_tokens")) is None:
            return ids
        return truncated(ids, most, self.card.context_length, options.wanted_tokens(body, chat) or 1)

    @property
    def _vocabulary(self) -> int:
        return self.card.vocab_size or self.tokenizer.vocab_size

    def _requests(
        self,
        body: Mapping[str, Any],
        prompts: Sequence[list[int]],
        *,
        chat: bool,
        images: list[ImageInput] | None = None,
    ) -> list[PreprocessedRequest]:
        wanted = options.wanted_tokens(body, chat)
        output = options.output_options(body, chat)
        added, choices = 0 if images is None else added_tokens(images), options.choices(body)
        check_work(sum(map(len, prompts)) + added, choices, self.card.context_length)
        annotations = options.nvext_of(body).get("annotations") or ()
        sampling = [options.sampling_options(body, choice) for choice in range(choices)]
        if not TOKEN_FIELDS.isdisjoint(body):
            limit_tokens(body, sampling, self.tokenizer)
        salt = options.field(body, "cache_salt")
        routing = RoutingHints(cache_salt=salt) if salt else None
        if (biased := sampling[0].logit_bias) and (wrong := max(map(int, biased))) >= self._vocabulary:
            last = self._vocabulary - 1
            raise InvalidArgument(f"logit_bias has the token id {wrong}, but the vocabulary ends at {last}")
        made = []
        for ids in prompts:
            conditions = options.stop_conditions(body, clip_tokens(len(ids) + added, wanted, self.card.context_length))
            if conditions.stop:
                conditions.stop_token_ids += self._special_stops(conditions.stop)
            made += [
                PreprocessedRequest(
                    model=self.card.name,
                    token_ids=ids,
                    stop_conditions=conditions,
                    sampling_options=chosen,
                    output_options=output,
                    eos_token_ids=self.card.eos_token_ids,
                    mdc_sum=self._digest,
                    annotations=list(annotations),
                    images=images,
                    routing=routing,
                    choice=choice,
                )
                for choice, chosen in enumerate(sampling)
            ]
        if len(made) > 1:
            check_options(made[0], len(made))
        return made

    def _special_stops(self, stops: Sequence[str]) -> list[int]:
        """Return the ids of stop strings that are special tokens: those never show up in the text."""
        ids = (self.tokenizer.token_id(stop) for stop in stops)
        return [token_id for token_id in ids if token_id is not None and self.tokenizer.decode([token_id]) == ""]


def added_tokens(images: Sequence[ImageInput]) -> int:
    """Count the tokens that images take beside those that stand for them."""
    return sum(image.tokens - 1 for image in images)


def far_over(text: str, tokenizer: Tokenizer, context: int) -> int:
    """Return how many tokens a text has at least, where its length alone shows that they are far too many; else 0."""
    if len(text) <= context:  # it may fit, whatever its tokens are
        return 0
    least = len(text) // tokenizer.longest_token
    return least if least > _FAR * context else 0


def size_of(text: str) -> int:
    """Return how many bytes of UTF-8 a text has: no tokenizer makes more tokens of it."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def check_work(tokens: int, answers: int, context: int | None) -> None:
    """Raise where so many answers to prompts of so many tokens are more than one request may ask workers for."""
    most = max(_FAR * (context or 0), MOST_PROMPT_TOKENS)
    if tokens * answers > most:
        field = "n" if answers > 1 else "prompt"
        raise InvalidArgument(
            f"{field}: {answers} answer(s) to {tokens} prompt tokens are {tokens * answers} tokens to compute, but at "
            f"most {most} are taken in one request; ask in several"
        )


def check_options(request: PreprocessedRequest, requests: int) -> None:
    """Raise where what so many requests say beside their prompts is too much: each of them carries it."""
    images = sum(len(image.data) for image in request.images or ())
    try:
        size = (
            images + len(msgspec.msgpack.encode(msgspec.structs.replace(request, token_ids=[], images=None)))
        ) * requests
    except OverflowError as error:
        raise InvalidArgument(f"a number of the request can't travel: {error}") from None
    if size > MOST_BYTES:
        raise InvalidArgument(
            f"n: {requests} answers send {size} bytes of options and images to workers: at most {MOST_BYTES} are "
            "taken in one request; ask in several"
        )


def content_size(messages: Any) -> int:
    """Estimate the work of rendering, from the lengths alone."""
    if not isinstance(messages, list):
        return 0
    size = _PER_MESSAGE * len(messages)
    for message in messages:
        if not isinstance(message, dict):
            continue
        content, calls = message.get("content"), message.get("tool_calls")
        if isinstance(content, list):
            size += sum(len(part.get("text") or "") for part in content if isinstance(part, dict))
        elif isinstance(content, str):
            size += len(content)
        if isinstance(calls, list):
            size += sum(map(_call_size, calls))
    return size


def _call_size(call: Any) -> int:
    """Return what a call's arguments cost: they are parsed, and printed again."""
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    return _PER_MESSAGE + _PER_PARSED * (len(arguments) if isinstance(arguments, str) else 0)


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


async def load_preprocessor(card: ModelCard, files: Mapping[str, Path], mode: Mode = "auto") -> Preprocessor:
    """Call `Preprocessor.load` in a thread."""
    return await asyncio.to_thread(Preprocessor.load, card, files, mode)
