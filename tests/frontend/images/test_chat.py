"""Images in chats, over a whole frontend and the mocker: counted, described, bounded, told apart."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.frontend.images.samples import data_url, gif, jpeg, part, png, png_header, webp

Serve = Callable[..., Any]


def ask(site: Any, *content: Any, **more: Any) -> Any:
    body = {"model": "m", "messages": [{"role": "user", "content": list(content)}], "max_tokens": 200, **more}
    return site.post("/v1/chat/completions", body)


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


def test_openais_sdk_shows_an_image(site: Any, serve: Serve) -> None:
    """Whole and streamed, the mocker says what it was shown, and the prompt's count has the image's tokens."""
    serve(site)
    shown: Any = [{"role": "user", "content": [part(png(280, 140)), text("What is this?")]}]
    with site.client() as client:
        alone = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "?\nWhat is this?"}], max_tokens=5
        )
        whole = client.chat.completions.create(model="m", messages=shown, max_tokens=200)
        stream = client.chat.completions.create(
            model="m", messages=shown, max_tokens=200, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        models = client.models.list().data
    assert "I see 1 image: png of 280 x 140 pixels, 50 tokens" in (whole.choices[0].message.content or "")
    assert whole.usage is not None
    assert alone.usage is not None
    assert whole.usage.prompt_tokens == alone.usage.prompt_tokens + 49
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert models[0].model_extra is not None
    assert models[0].model_extra["input_modalities"] == ["text", "image"]


def test_each_format_by_its_bytes(site: Any, serve: Serve) -> None:
    """Whatever the URL calls it, and in several messages."""
    serve(site)
    for data in (png(), jpeg(), gif(), webp(), webp(b"VP8L"), webp(b"VP8 ")):
        shown = {"type": "image_url", "image_url": {"url": data_url(data, "application/octet-stream"), "detail": "low"}}
        turn = {"role": "user", "content": [shown, text("x"), shown]}
        answer = site.post("/v1/chat/completions", {"model": "m", "messages": [turn, turn], "max_tokens": 300})
        assert answer.status_code == 200, answer.text
        assert "I see 4 images" in answer.json()["choices"][0]["message"]["content"]


PLACE = "messages[0].content[1]"


def url(value: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": value}}


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    (url("data:image/png;base64,!!!!"), "invalid_image", PLACE),
    (url("data:image/png;base64," + "A" * 5), "invalid_image", PLACE),
    (url("data:image/png,abc"), "invalid_image", PLACE),
    (url(data_url(b"<svg/>", "image/svg+xml")), "invalid_image", PLACE),
    (url(data_url(png_header(1 << 16, 1 << 16))), "image_too_large", PLACE),
    ({"type": "image_url", "image_url": {}}, "missing_required_parameter", f"{PLACE}.image_url"),
    ({"type": "image_url"}, "missing_required_parameter", f"{PLACE}.image_url"),
    (url(7), "invalid_type", f"{PLACE}.image_url"),
    (url("http://127.0.0.1/x.png"), "unsupported_value", PLACE),
    (url("file:///etc/passwd"), "unsupported_value", PLACE),
    ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "unsupported_value", PLACE),
    ({"type": "file", "file": {"file_id": "f"}}, "unsupported_value", PLACE),
    ({"type": "video_url", "video_url": {"url": "x"}}, "unsupported_value", PLACE),
]


def test_what_is_refused(site: Any, serve: Serve) -> None:
    """A 400 with the field and a code, and sound and files by their names."""
    serve(site)
    for content, code, param in REFUSED:
        answer = ask(site, text("x"), content)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, code, param), error
        assert content["type"] == "image_url" or repr(content["type"]) in error["message"]


def test_bounds(make_site: Any, serve: Serve) -> None:
    """Count, bytes and pixels hold for a request as a whole; what they keep out is not decoded."""
    site = make_site(image_max_count=3, image_max_mb=0.01, image_max_megapixels=0.1)
    serve(site)
    assert ask(site, *[part(png())] * 3).status_code == 200
    for content, code in (
        ([part(png())] * 4, "too_many_images"),
        ([part(png(200, 200))] * 3, "image_too_large"),
        ([part(png(4, 4) + bytes(4000))] * 3, "image_too_large"),
        ([part(png(4, 4) + bytes(20000))], "image_too_large"),
    ):
        answer = ask(site, *content)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, code), answer.text


def test_a_large_body_of_small_images_is_refused_soon(site: Any, serve: Serve) -> None:
    """A thousand images in 4 MB: counted, not decoded, while the frontend answers others."""
    serve(site)
    began = time.monotonic()
    answer = ask(site, *[part(png() + bytes(2800))] * 1000)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "too_many_images")
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("engine", ["echo_core", "echo_full"])
def test_engines_without_images(site: Any, serve: Serve, engine: str) -> None:
    """A 400 that names the image, the model, and a model that takes some."""
    serve(site, engine, "")
    assert "No model here does" in ask(site, part(png())).json()["error"]["message"]
    serve(site, name="seer")
    error = ask(site, text("x"), part(png())).json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_value", "messages[0].content[1]")
    assert "'m' takes no images. Models here that do: 'seer'" in error["message"]
    assert ask(site, text("x")).status_code == 200


def test_a_prompt_over_the_context_with_its_images(site: Any, serve: Serve) -> None:
    """Images' tokens count before anything is sent."""
    serve(site, args='{"speedup_ratio": 0, "max_model_len": 100}')
    answer = ask(site, part(png(280, 280)))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_images_are_counted_while_they_are_held(make_site: Any, serve: Serve, within: Any) -> None:
    """What all answers hold of images is bounded; it is free again when they have left."""
    site = make_site(image_budget_mb=0.02, image_max_mb=0.01)
    serve(site, args='{"speedup_ratio": 1, "decode_speedup_ratio": 0.01}')
    large: Any = [{"role": "user", "content": [part(png() + bytes(7000))]}]
    with site.client() as client:
        held = [client.chat.completions.create(model="m", messages=large, stream=True, max_tokens=50) for _ in range(2)]
        answer = ask(site, part(png() + bytes(7000)), max_tokens=1)
        assert answer.status_code == 503, answer.text
        assert "of images" in answer.json()["error"]["message"]
        for stream in held:
            stream.close()
    within("it is free", lambda: ask(site, part(png() + bytes(7000)), max_tokens=1).status_code == 200)


def test_caches_tell_images_apart(make_site: Any, serve: Serve) -> None:
    """In kv mode: the same image again comes from a cache, another one of its size does not."""
    site = make_site(router_mode="kv")
    serve(site)

    def cached(shade: int) -> int:
        answer = ask(site, part(png(560, 560, shade)), max_tokens=1)
        usage = answer.json()["usage"]
        assert usage["prompt_tokens"] > 400
        return int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

    assert cached(1) == 0
    assert cached(1) > 350
    assert cached(2) < 32
    assert cached(2) > 350


def test_a_stream_goes_on_with_its_images(make_site: Any, serve: Serve) -> None:
    """A worker that is lost: the next one is sent the images again, and says the rest of the same answer."""
    site = make_site(migration_limit=1)
    slow = '{"speedup_ratio": 10, "decode_speedup_ratio": 1}'
    first = serve(site, args=slow)
    large: Any = [{"role": "user", "content": [part(png(280, 140) + bytes(1_500_000)), text("x")]}]
    with site.client() as client:
        whole = client.chat.completions.create(model="m", messages=large, max_tokens=120)
        stream = client.chat.completions.create(model="m", messages=large, max_tokens=120, stream=True)
        said = [next(stream).choices[0].delta.content or "" for _ in range(10)]
        serve(site, args=slow)
        site.stop_worker(first, 0)
        said += [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(said) == whole.choices[0].message.content
    assert "I see 1 image: png of 280 x 140 pixels" in "".join(said)
    assert site.metric("model_migration_total", model="m") == 1
