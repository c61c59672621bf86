"""OpenAI bodies to token requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dynamo.llm import ContextLengthExceeded, Preprocessor, open_model
from dynamo.llm.processing.chat_template import flatten_message
from dynamo.llm.processing.preprocess import check_work, clip_tokens, content_size, read_prompts
from dynamo.llm.protocols import PreprocessedRequest
from dynamo.runtime.errors import InvalidArgument

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def model(checkout: Path) -> Preprocessor:
    """The trained model: 64 tokens of context, BOS before texts, chat markers."""
    opened = open_model(checkout)
    return Preprocessor.load(opened.card, opened.files)


@pytest.fixture
def large(checkout: Path) -> Preprocessor:
    """The same with a context for books."""
    opened = open_model(checkout)
    card = msgspec.structs.replace(opened.card, context_length=100_000)
    return Preprocessor.load(card, opened.files)


def at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of what never waits."""
    with pytest.raises(StopIteration) as end:
        work.send(None)
    return end.value.value


def chat(model: Preprocessor, **body: Any) -> list[PreprocessedRequest]:
    """Make a chat request."""
    return asyncio.run(model.chat({"model": "m", "messages": HELLO, **body}))


def completion(model: Preprocessor, **body: Any) -> list[PreprocessedRequest]:
    """Make a completions request."""
    return asyncio.run(model.completion({"model": "m", **body}))


def test_chat_goes_through_the_template_without_a_second_bos(model: Preprocessor) -> None:
    """The template writes all special tokens itself."""
    (request,) = chat(model)
    text = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert model.tokenizer.decode(request.token_ids, skip_special=False) == text
    assert request.token_ids == model.tokenizer.encode(text, add_special=False)
    assert request.model == "tiny-chat"
    assert request.mdc_sum == model.card.digest
    assert request.eos_token_ids == [2, 1]


def test_chat_may_fill_the_context_completions_stop_at_sixteen(model: Preprocessor) -> None:
    """OpenAI's defaults."""
    (request,) = chat(model)
    assert request.stop_conditions.max_tokens == 64 - len(request.token_ids)
    assert completion(model, prompt="Hello")[0].stop_conditions.max_tokens == 16


def test_max_tokens_is_clipped_to_what_fits(model: Preprocessor) -> None:
    """Asking for more than the context is no error, as long as the prompt fits."""
    (request,) = completion(model, prompt="Hello", max_tokens=1000)
    assert request.stop_conditions.max_tokens == 64 - len(request.token_ids)
    assert chat(model, max_completion_tokens=3, max_tokens=9)[0].stop_conditions.max_tokens == 3
    assert chat(model, max_tokens=2)[0].stop_conditions.max_tokens == 2
    assert completion(model, prompt="x", max_tokens=0, echo=True)[0].stop_conditions.max_tokens == 0


def test_an_over_long_prompt_names_both_lengths(model: Preprocessor) -> None:
    """Before any worker is asked."""
    with pytest.raises(ContextLengthExceeded, match=r"64 tokens.*prompt has 100 tokens") as caught:
        completion(model, prompt=[5] * 100)
    assert (caught.value.prompt, caught.value.context) == (100, 64)
    with pytest.raises(ContextLengthExceeded):
        chat(model, messages=[{"role": "user", "content": "word " * 100}])
    with pytest.raises(ContextLengthExceeded):
        completion(model, prompt=[5] * 64)
    assert completion(model, prompt=[5] * 63)[0].stop_conditions.max_tokens == 1


def test_a_prompt_far_over_the_context_is_not_tokenised(model: Preprocessor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Megabytes of text can't be used to keep a core busy."""
    monkeypatch.setattr(model.tokenizer, "_encode_all", None)
    with pytest.raises(ContextLengthExceeded, match="at least"):
        completion(model, prompt="word " * 1_000_000)


def test_the_four_forms_of_a_prompt(model: Preprocessor) -> None:
    """Text gets its BOS, token ids are taken as they are."""
    hello = model.tokenizer.encode("Hello")
    assert hello[0] == 3
    assert [r.token_ids for r in completion(model, prompt="Hello")] == [hello]
    assert [r.token_ids for r in completion(model, prompt=["Hello", "x"])] == [hello, model.tokenizer.encode("x")]
    assert [r.token_ids for r in completion(model, prompt=[7, 8])] == [[7, 8]]
    assert [r.token_ids for r in completion(model, prompt=[[7], [8, 9]])] == [[7], [8, 9]]


@pytest.mark.parametrize("prompt", [None, 5, [], [[]], ["a", 1], [1, "a"], [True], [[1.5]], {}, [["a"]]])
def test_other_prompts_are_refused(prompt: Any) -> None:
    """Mixed, empty and nested prompts are the caller's mistake."""
    with pytest.raises(InvalidArgument, match="prompt must be"):
        read_prompts(prompt)


@pytest.mark.parametrize("token", [-1, 10**9])
def test_token_ids_outside_the_vocabulary_are_refused(model: Preprocessor, token: int) -> None:
    """An engine would read beyond its tables."""
    with pytest.raises(InvalidArgument, match=rf"token id {token}.*vocabulary ends at"):
        completion(model, prompt=[5, token])


def test_an_empty_prompt_needs_a_bos(model: Preprocessor) -> None:
    """With BOS an empty text is a prompt; without, there is nothing to continue."""
    assert completion(model, prompt="")[0].token_ids == [3]
    with pytest.raises(InvalidArgument, match="prompt is empty"):
        clip_tokens(0, 5, None)


def test_choices_multiply_prompts_with_seeds_of_their_own(model: Preprocessor) -> None:
    """Prompt by prompt; the same seed for all choices would make them alike."""
    requests = completion(model, prompt=[[7], [8]], n=2, seed=10)
    assert [(r.token_ids, r.sampling_options.seed) for r in requests] == [([7], 10), ([7], 11), ([8], 10), ([8], 11)]
    assert [r.sampling_options.seed for r in completion(model, prompt="x", n=2)] == [None, None]


def test_stop_conditions_of_all_dialects(model: Preprocessor) -> None:
    """OpenAI's, vLLM's at top level and Dynamo's in `nvext`."""
    ends = chat(model, stop="END", stop_token_ids=[5], min_tokens=2, ignore_eos=True)[0].stop_conditions
    assert (ends.stop, ends.stop_token_ids, ends.min_tokens, ends.ignore_eos) == (["END"], [5], 2, True)
    assert chat(model, stop=["a", "b"], nvext={"ignore_eos": True})[0].stop_conditions.ignore_eos
    assert chat(model, stop=None, ignore_eos=None)[0].stop_conditions.stop == []
    with pytest.raises(InvalidArgument, match=r"min_tokens \(9\) is larger than the 3"):
        chat(model, min_tokens=9, max_tokens=3)


def test_stop_strings_are_bounded(model: Preprocessor) -> None:
    """Each token of an answer is compared with all of them."""
    with pytest.raises(InvalidArgument, match="stop has 65 strings: at most 64"):
        chat(model, stop=["x"] * 65)
    with pytest.raises(InvalidArgument, match="300 characters: at most 256"):
        chat(model, stop="x" * 300)


def test_a_stop_string_that_is_a_special_token_stops_by_id(model: Preprocessor) -> None:
    """Special tokens are hidden, so their name never shows up in the text."""
    ends = chat(model, stop=["<|endoftext|>", "fox", "END"], stop_token_ids=[7])[0].stop_conditions
    assert (ends.stop, ends.stop_token_ids) == (["<|endoftext|>", "fox", "END"], [7, 2])


def test_large_chats_are_rendered_in_a_thread(model: Preprocessor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rendering megabytes would hold up other streams."""
    threads: list[Any] = []

    async def to_thread(function: Any, *args: Any) -> Any:
        threads.append(function)
        return function(*args)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    parts = [{"type": "text", "text": "word " * 200_000}]
    for content in ("Hello", "word " * 200_000, parts):
        with contextlib.suppress(ContextLengthExceeded):
            chat(model, messages=[{"role": "user", "content": content}])
    assert threads.count(model.chat_prompt) == 2


def test_sampling_fields_arrive(model: Preprocessor) -> None:
    """Each field under its own name; what is absent stays the engine's choice."""
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "presence_penalty": 1.0}
    sampling = chat(model, **fields, logit_bias={5: -1}, nvext={"repetition_penalty": 1.1})[0].sampling_options
    assert all(getattr(sampling, name) == value for name, value in fields.items())
    assert (sampling.logit_bias, sampling.repetition_penalty) == ({"5": -1.0}, 1.1)
    assert sampling.frequency_penalty is None
    assert chat(model, include_stop_str_in_output=True)[0].sampling_options.include_stop_str_in_output
    assert chat(model, temperature=1, nvext={"greed_sampling": True})[0].sampling_options.temperature == 0


def test_guided_decoding_in_every_spelling(model: Preprocessor) -> None:
    """OpenAI's response format, vLLM's fields, Dynamo's."""
    schema = {"type": "object", "properties": {}}
    for body in (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
        {"guided_json": schema},
        {"nvext": {"guided_json": schema}},
    ):
        assert chat(model, **body)[0].sampling_options.guided_decoding == {"json": schema}
    assert chat(model, response_format={"type": "text"})[0].sampling_options.guided_decoding is None
    any_object = chat(model, response_format={"type": "json_object"})[0].sampling_options.guided_decoding
    assert any_object == {"json": {"type": "object"}}


def test_logprobs_of_both_routes(model: Preprocessor) -> None:
    """Chat has a switch and a number, completions a number; `echo` wants the prompt's too."""
    assert chat(model)[0].output_options.logprobs is None
    assert chat(model, logprobs=True)[0].output_options.logprobs == 0
    assert chat(model, logprobs=True, top_logprobs=3)[0].output_options.logprobs == 3
    assert chat(model, logprobs=False, top_logprobs=3)[0].output_options.logprobs is None
    output = completion(model, prompt="x", logprobs=0, echo=True)[0].output_options
    assert (output.logprobs, output.prompt_logprobs) == (0, 0)
    assert completion(model, prompt="x", echo=True)[0].output_options.prompt_logprobs is None
    assert not chat(model, skip_special_tokens=False)[0].output_options.skip_special_tokens


def test_echo_texts_are_the_prompts(model: Preprocessor) -> None:
    """Text as it was sent, ids as what they decode to."""
    ids = model.tokenizer.encode("fox", add_special=False)
    assert model.echo_texts({"prompt": ["a", "b"]}) == ["a", "b"]
    assert model.echo_texts({"prompt": [ids, ids]}) == ["fox", "fox"]


def test_raw_prompts_and_template_arguments(model: Preprocessor) -> None:
    """The template may be passed by or spoken to."""
    assert model.chat_prompt({"messages": HELLO, "nvext": {"use_raw_prompt": True}}) == "Hello"
    open_end = model.chat_prompt({"messages": HELLO, "add_generation_prompt": False})
    assert open_end == "<|im_start|>user\nHello<|im_end|>\n"
    wrong: list[Any] = [None, [], "text"]
    for messages in wrong:
        with pytest.raises(InvalidArgument, match="messages must be a list"):
            model.chat_prompt({"messages": messages})
    with pytest.raises(InvalidArgument, match="chat_template_kwargs must be an object"):
        model.chat_prompt({"messages": HELLO, "chat_template_kwargs": 5})
    with pytest.raises(InvalidArgument, match=r"messages\[0\] must be an object"):
        model.chat_prompt({"messages": [5], "use_raw_prompt": True})


def test_surrogates_in_a_prompt_are_refused(model: Preprocessor) -> None:
    """In both routes, before anything is sent."""
    with pytest.raises(InvalidArgument, match="lone surrogate"):
        completion(model, prompt="a\udc00")
    with pytest.raises(InvalidArgument, match="lone surrogate"):
        chat(model, messages=[{"role": "user", "content": "\ud83d"}])


def test_annotations_are_passed_on(model: Preprocessor) -> None:
    """Dynamo's clients ask for extra events by name."""
    assert chat(model, nvext={"annotations": ["token_ids"]})[0].annotations == ["token_ids"]


def test_a_long_text_is_counted_part_by_part(
    model: Preprocessor, large: Preprocessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is far too long is refused before all of it is looked at; what may fit is tokenised whole."""
    counted: list[int] = []
    own = type(large.tokenizer).count

    def count(self: Any, text: str) -> int:
        counted.append(len(text))
        return own(self, text)

    monkeypatch.setattr(type(large.tokenizer), "count", count)
    monkeypatch.setattr(type(large.tokenizer), "encode", None)
    with pytest.raises(ContextLengthExceeded, match="at least"):
        at_once(large.completion({"model": "m", "prompt": "ŋɣ" * 2_000_000}, blocking=True))
    assert sum(counted) < 1_000_000
    monkeypatch.undo()
    text = "Hello world " * 5
    assert at_once(model.completion({"model": "m", "prompt": text}, blocking=True)) == completion(model, prompt=text)


def test_work_asked_for_at_once_is_bounded() -> None:
    """Prompt tokens count once per answer; four contexts are always allowed, and a million tokens."""
    check_work(8192, 128, 8192)
    check_work(131_072, 8, 131_072)
    check_work(2_000_000, 2, 1_000_000)
    for tokens, answers, context in ((8193, 128, 8192), (1_048_577, 1, None), (2_000_001, 2, 1_000_000)):
        with pytest.raises(InvalidArgument, match="ask in several"):
            check_work(tokens, answers, context)


def test_prompts_are_not_all_tokenised_where_the_first_are_too_much(
    model: Preprocessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that is more than one request may ask for is refused as soon as that is clear."""
    monkeypatch.setattr("dynamo.llm.processing.preprocess.MOST_PROMPT_TOKENS", 100)
    read: list[str] = []
    own = type(model.tokenizer).encode

    def encode(self: Any, text: str, add_special: bool = True) -> list[int]:
        read.append(text)
        return own(self, text, add_special)

    monkeypatch.setattr(type(model.tokenizer), "encode", encode)
    prompts = ["Hello world Hello world Hello"] * 500
    with pytest.raises(InvalidArgument, match="prompt: 1 answer"):
        at_once(model.completion({"model": "m", "prompt": prompts}, blocking=True))
    assert len(read) < 200


def test_arguments_of_calls_count_as_work() -> None:
    """A chat whose calls carry much is rendered in a thread, as one with long texts is."""
    call = {"function": {"name": "f", "arguments": "[" + "1," * 100_000 + "1]"}}
    assert content_size([{"role": "assistant", "tool_calls": [call]}]) > 1 << 19
    assert content_size([{"role": "assistant", "tool_calls": [{}, None, {"function": {"arguments": 3}}]}]) < 5000


def test_the_last_message_is_gone_on_with(model: Preprocessor) -> None:
    """`continue_final_message` ends the prompt with its text, and begins no other turn."""
    begun = [*HELLO, {"role": "assistant", "content": "The answer is "}]
    (request,) = chat(model, messages=begun, continue_final_message=True)
    text = model.tokenizer.decode(request.token_ids, skip_special=False)
    assert text == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nThe answer is"


def test_thoughts_in_an_assistants_content(model: Preprocessor) -> None:
    """Parts in which clients send thoughts back are no text; templates get them as reasoning."""
    parts = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Hi"}]
    flat = flatten_message({"role": "assistant", "content": parts}, 0)
    assert (flat["content"], flat["reasoning_content"]) == ("Hi", "Hm.")
    assert "reasoning_content" not in flatten_message({"role": "assistant", "content": parts[1:]}, 0)


@pytest.mark.parametrize(("role", "reasoning", "thought"), [("assistant", "Hm.", "Hm."), ("assistant", 7, None),
                                                            ("user", "Hm.", None)])  # fmt: skip
def test_thoughts_that_come_back_by_their_short_name(role: str, reasoning: Any, thought: str | None) -> None:
    """vLLM calls them `reasoning`; templates read `reasoning_content`, which counts where both are there."""
    message = {"role": role, "content": "Hi", "reasoning": reasoning}
    assert flatten_message(message, 0).get("reasoning_content") == thought
    both = flatten_message({**message, "reasoning_content": "Other."}, 0)
    assert both["reasoning_content"] == "Other."
