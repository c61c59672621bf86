"""Images among a prompt's tokens: by the model's own token, or by a mark; and how many tokens each becomes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from dynamo.llm.model_card import CONFIG, FileRef, ImageTraits, ModelCard
from dynamo.llm.models.image_traits import read_traits, traits_of
from dynamo.llm.processing.chat_template import ChatTemplate
from dynamo.llm.processing.image_prompts import tokens_of
from dynamo.llm.processing.preprocess import Preprocessor
from dynamo.llm.protocols import ImageInput, PreprocessedRequest
from dynamo.llm.tokenizer import byte_level
from dynamo.runtime.errors import InvalidArgument

QWEN: str = (
    "{% for message in messages %}<{{ message.role }}>{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for content in message.content %}{% if content.type == 'image' or 'image_url' in content %}"
    "[<|begin|>]{% elif 'text' in content %}{{ content.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
)
LLAVA: str = (
    "{% for message in messages %}{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "<|begin|>{% endfor %}{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ content['text'] }}{% endfor %}{% endfor %}"
)


class Tokenizer(byte_level.ByteTokenizer):
    """Bytes, and one special token that text may name."""

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        ids: list[int] = []
        for number, piece in enumerate(text.split("<|begin|>")):
            ids += [byte_level.BOS_ID] * bool(number) + super().encode(piece)
        return ids


def part(kind: str = "image_url") -> dict[str, Any]:
    return {"type": kind, "image_url": {"url": "data:"}}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def made(
    source: str | None, content: Any, images: int = 1, placeholder: int | None = byte_level.BOS_ID, **more: Any
) -> PreprocessedRequest:
    traits = ImageTraits(placeholder=placeholder, patch=28, least_pixels=1, most_pixels=1 << 30)
    card = ModelCard(name="m", images=traits, context_length=1024)
    preprocessor = Preprocessor(card, Tokenizer(), ChatTemplate(source) if source else None)
    inputs = [ImageInput(data=b"", format="png", digest="0" * 32, width=56, height=28 * (n + 1)) for n in range(images)]
    body = {"messages": [{"role": "user", "content": content}], **more}
    return asyncio.run(preprocessor.chat(body, images=inputs))[0]


@pytest.mark.parametrize(("source", "said"), [(QWEN, b"<user>a[\0]b[\0]"), (LLAVA, b"\0\0ab")])
def test_templates_that_take_parts(source: str, said: bytes) -> None:
    """The template writes the model's token for each image; its places are found among the tokens."""
    request = made(source, [text("a"), part(), text("b"), part("image")], images=2)
    assert bytes(0 if token == byte_level.BOS_ID else token for token in request.token_ids) == said
    assert request.images is not None
    places = [at for at, token in enumerate(request.token_ids) if token == byte_level.BOS_ID]
    assert [(image.at, image.tokens) for image in request.images] == [(places[0], 2), (places[1], 4)]
    assert request.prompt_tokens == len(request.token_ids) + 4


def test_a_template_of_text_gets_a_mark() -> None:
    """Where the model has no token, and no client can write what stands for one."""
    template = "{% for message in messages %}{{ message.content }}|{% endfor %}"
    request = made(template, [text("a\0<image>"), part(), text("b")], placeholder=None)
    assert bytes(request.token_ids) == b"a\0<image>\n\0\nb|"
    assert request.images is not None
    assert request.images[0].at == 10
    request = made(QWEN, [text("a"), part(), text("b")], placeholder=None)
    assert bytes(request.token_ids) == b"<user>a\0b"


def test_templates_that_read_parts_only_get_texts_as_parts() -> None:
    """Also in chats without images: LLaVA's would print nothing else."""
    assert ChatTemplate(LLAVA).render([{"role": "user", "content": "hello"}]) == "hello"
    assert ChatTemplate(QWEN).render([{"role": "user", "content": "hello"}]) == "<user>hello"


def test_a_text_that_holds_the_models_token_is_refused() -> None:
    """It would move the places of all images behind it; so is a template that leaves one out."""
    with pytest.raises(InvalidArgument, match="2 image"):
        made(QWEN, [text("<|begin|>"), part()])
    with pytest.raises(InvalidArgument, match="0 image"):
        made("{{ 'image' }}{{ messages | length }}", [part()])


def test_work_is_bounded_with_images() -> None:
    """Their tokens count for the context, and their bytes once per answer."""
    with pytest.raises(InvalidArgument, match="context length"):
        made(QWEN, [part()] * 40, images=40)
    assert made(QWEN, [part()], n=2).prompt_tokens == 10


@pytest.mark.parametrize(
    ("width", "height", "tokens"),
    [
        (28, 28, 4), (1, 1, 4), (280, 140, 50), (1000, 10, 20), (1120, 896, 1280), (4000, 3000, 1230), (60000, 1, 490),
        (727, 11, 17), (1262, 13, 20), (14, 700, 15), (15, 700, 25), (1 << 24, 100, 1280),
    ],
)  # fmt: skip
def test_tokens_of_a_size(width: int, height: int, tokens: int) -> None:
    """As Qwen2-VL's processor resizes, with its bounds: a side under half a patch makes it grow. What it doesn't take,
    since it is too long and thin, has no more than the bound."""
    traits = ImageTraits(patch=28, least_pixels=4 * 784, most_pixels=1280 * 784)
    assert tokens_of(traits, width, height) == tokens


def test_what_configurations_say() -> None:
    """Families by their fields; a model without a vision part takes no images."""
    vision = {"patch_size": 14, "spatial_merge_size": 2}
    bounds = {"min_pixels": 3136, "max_pixels": 1003520}
    qwen = read_traits({"model_type": "qwen2_5_vl", "image_token_id": 7, "vision_config": vision}, bounds)
    assert qwen == ImageTraits(placeholder=7, patch=28, least_pixels=3136, most_pixels=1003520)
    llava = {"model_type": "llava", "image_token_index": 3, "vision_config": {"image_size": 336, "patch_size": 14}}
    assert read_traits(llava, {}) == ImageTraits(placeholder=3, tokens=576)
    for more in ({"vision_config": {"model_type": "pixtral", "image_size": 1024, "patch_size": 16}},
                 {"vision_feature_select_strategy": "full"}):  # fmt: skip
        assert read_traits({**llava, **more}, {}) == ImageTraits(placeholder=3)
    gemma = {"model_type": "gemma3", "boi_token_index": 5, "image_token_index": 6, "vision_config": {}}
    assert read_traits(gemma, {}) == ImageTraits(placeholder=5)
    assert read_traits({"model_type": "qwen3"}, {}) is None
    assert read_traits({"model_type": "qwen2_vl", "image_token_id": "7", "vision_config": []}, {}) is None


def test_where_models_say_how_images_are_resized(tmp_path: Path) -> None:
    """Newer ones in a field of `processor_config.json`, which goes first; what can't be read says nothing."""
    vision = {"patch_size": 14, "spatial_merge_size": 2}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "qwen2_vl", "image_token_id": 7, "vision_config": vision}))
    card = ModelCard(name="m", files={CONFIG: FileRef(digest="d", size=1, name="config.json")})

    def most() -> int:
        traits = traits_of(card, {"d": config})
        assert traits is not None
        return traits.most_pixels

    assert most() == 16384 * 28 * 28
    (tmp_path / "preprocessor_config.json").write_text('{"max_pixels": 50176}')
    assert most() == 50176
    processor = tmp_path / "processor_config.json"
    processor.write_text('{"image_processor": {"size": {"longest_edge": 100352}}}')
    assert most() == 100352
    processor.write_text('{"image_processor": []}')
    assert most() == 50176
