"""What coding agents send: tools that are no functions, thoughts as summaries, prompts marked for a cache, silence."""

from __future__ import annotations

import asyncio
import functools
import json
from pathlib import Path
from typing import Any, Final

import anthropic
import httpx
import openai
import pytest

from dynamo.frontend import assembly
from dynamo.frontend.responses.pings import Pings
from dynamo.llm.models.file_cache import FileCache
from dynamo.llm.protocols import delta

TEMPLATE: Final = (
    "{% for t in tools or [] %}<{{ t.function.name }}: {{ t.function.description }}>{% endfor %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}(calls {{ c.function.name }} {{ c.function.arguments | tojson }}){% endfor %}"
    "{% endfor %}{% if reasoning_effort is defined %}<{{ reasoning_effort }} {{ enable_thinking }}>{% endif %}"
)
PATCH: Final = "*** Begin Patch\n+ü\n*** End Patch"
CODEX: Final[list[Any]] = [
    {"type": "function", "name": "view", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}},
    {"type": "custom", "name": "apply_patch", "description": "Edit files.",
     "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "***" /.+/'}},
    {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "close", "parameters": {}}]},
    {"type": "local_shell"}, {"type": "web_search", "external_web_access": False}, {"type": "image_generation"},
]  # fmt: skip


def call(name: str, arguments: Any) -> str:
    """A call, as a model with Hermes' format writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.fixture
def talking(make_site: Any, speaker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A frontend whose model thinks and calls as the speaker says, and pings after a tenth of a second."""
    monkeypatch.setenv("DYN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(assembly, "Pings", functools.partial(Pings, seconds=0.05))
    site = make_site()
    site.worker(
        speaker, tool_call_parser="hermes", reasoning_parser="qwen3", context_length=100_000,
        files={"chat_template": FileCache(tmp_path).keep(TEMPLATE.encode(), "chat_template.jinja")},
    )  # fmt: skip
    return site


def prompt_of(speaker: Any) -> str:
    return bytes(speaker.seen[-1]["token_ids"]).decode()


def test_a_forced_custom_tool_keeps_to_its_expression(talking: Any, speaker: Any) -> None:
    """A `regex` grammar becomes the schema's pattern, over the whole input; the answer is held to that schema."""
    speaker.answer = '{"input": "123"}'
    grammar = {"type": "grammar", "syntax": "regex", "definition": "[0-9]{3}|x"}
    tool: Any = {"type": "custom", "name": "number", "format": grammar}
    with talking.client() as client:
        choice: Any = {"type": "custom", "name": "number"}
        answer = client.responses.create(model="m", input="hi", tools=[tool], tool_choice=choice, store=False)
    assert "^(?:[0-9]{3}|x)$" in json.dumps(speaker.seen[-1]["sampling_options"]["guided_decoding"])
    assert [(item.type, item.input) for item in answer.output] == [("custom_tool_call", "123")]


def test_codexs_tools(talking: Any, speaker: Any) -> None:
    """Calls come as items of the tool's own kind; the model sees functions, none that others run, and its own calls."""
    calls: Any = (("apply_patch", {"input": PATCH}), ("local_shell", {"command": ["ls", "-l"]}), ("agents__close", {}))
    speaker.answer = "".join(call(name, arguments) for name, arguments in calls)
    with talking.client() as client:
        events = list(client.responses.create(model="m", input="hi", tools=CODEX, stream=True, store=False))
        first = events[-1].response
        patch, shell, close = first.output
        assert (close.type, close.namespace, close.name) == ("function_call", "agents", "close")
        assert (patch.type, patch.name, patch.input) == ("custom_tool_call", "apply_patch", PATCH)
        assert (shell.type, shell.action.command, shell.action.type) == ("local_shell_call", ["ls", "-l"], "exec")
        done = [event for event in events if event.type == "response.custom_tool_call_input.done"]
        assert [event.input for event in done] == [PATCH]
        assert len([event for event in events if event.type == "response.function_call_arguments.done"]) == 1
        assert [tool.type for tool in first.tools] == [tool["type"] for tool in CODEX]
        prompt = prompt_of(speaker)
        assert '<apply_patch: Edit files.\n\nThe input must match this lark grammar:\nstart: "***" /.+/>' in prompt
        assert "search" not in prompt
        assert "image" not in prompt
        speaker.answer = "ok"
        history: list[Any] = [
            {"role": "user", "content": "hi"}, *(item.to_dict() for item in first.output),
            {"type": "custom_tool_call_output", "call_id": patch.call_id, "output": "patched"},
            {"type": "local_shell_call_output", "call_id": shell.call_id, "output": "a b"},
            {"type": "function_call_output", "call_id": close.call_id, "output": "closed"},
        ]  # fmt: skip
        client.responses.create(model="m", input=history, tools=CODEX)
    assert prompt_of(speaker).endswith(
        f"[user]hi[assistant](calls apply_patch {json.dumps({'input': PATCH}, ensure_ascii=False)})"
        '(calls local_shell {"command": ["ls", "-l"]})(calls agents__close {})[tool]patched[tool]a b[tool]closed'
    )


def test_an_answer_that_was_cut_within_a_call_is_gone_on_from(talking: Any, speaker: Any) -> None:
    """No result is asked for: the call is left out, what was said before it stays; whole calls still need theirs."""
    tools: Any = [{"type": "function", "name": "view", "parameters": {"type": "object"}}]
    speaker.answer = "Let me look. " + call("view", {"path": "a/long/path/of/a/file"})
    most = len(speaker.answer.encode()) - 30
    with talking.client() as client:
        first = client.responses.create(model="m", input="hi", tools=tools, max_output_tokens=most)
        assert [(item.type, item.status) for item in first.output] == [
            ("message", "completed"), ("function_call", "incomplete"),
        ]  # fmt: skip
        client.responses.create(model="m", input="go on", tools=tools, previous_response_id=first.id)
        assert prompt_of(speaker).endswith("[user]hi[assistant]Let me look.[user]go on")
        history: list[Any] = [{"role": "user", "content": "hi"}, *(item.to_dict() for item in first.output)]
        client.responses.create(model="m", input=[*history, {"role": "user", "content": "more"}], tools=tools)
        assert prompt_of(speaker).endswith("[user]hi[assistant]Let me look.[user]more")
        only_cut = [history[0], history[2], {"role": "user", "content": "more"}]
        client.responses.create(model="m", input=only_cut, tools=tools)
        assert prompt_of(speaker).endswith("[user]hi[user]more")
        whole = client.responses.create(model="m", input="hi", tools=tools)
        with pytest.raises(openai.BadRequestError, match="needs its result"):
            client.responses.create(model="m", input="go on", tools=tools, previous_response_id=whole.id)


def test_other_tools_of_the_client(talking: Any, speaker: Any) -> None:
    """A shell and a patch by their own types, forced by them, and stored with what they were called with."""
    tools: Any = [{"type": "shell"}, {"type": "apply_patch"}]
    operation = {"type": "create_file", "path": "a", "diff": "+b"}
    speaker.answer = call("apply_patch", operation) + call("shell", {"commands": ["ls"]})
    with talking.client() as client:
        first = client.responses.create(model="m", input="hi", tools=tools)
        patch, shell = first.output
        assert (patch.type, patch.operation.to_dict()) == ("apply_patch_call", operation)
        assert (shell.type, shell.action.commands) == ("shell_call", ["ls"])
        outputs: Any = [
            {"type": "apply_patch_call_output", "call_id": patch.call_id, "status": "completed"},
            {"type": "shell_call_output", "call_id": shell.call_id, "output": [
                {"stdout": "x", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
            ]},
        ]  # fmt: skip
        speaker.answer = "ok"
        client.responses.create(model="m", input=outputs, tools=tools, previous_response_id=first.id)
        assert '[tool]completed[tool][{"stdout":"x"' in prompt_of(speaker)
        speaker.answer = json.dumps(operation)
        forced = client.responses.create(model="m", input="hi", tools=tools, tool_choice={"type": "apply_patch"})
        assert [item.type for item in forced.output] == ["apply_patch_call"]
        speaker.answer = '<tool_call>\n{"name": "shell", "arguments": "no object"}\n</tool_call>'
        odd = client.responses.create(model="m", input="hi", tools=tools)
        assert all(item.type != "shell_call" or item.action.commands == [] for item in odd.output)


def test_summaries_and_effort(talking: Any, speaker: Any) -> None:
    """Who asks for a summary gets the thought as one, and may send it back. A chat's effort is the template's, too."""
    speaker.answer = "<think>Hm.</think>ok"
    with talking.client() as client:
        asked: Any = {"model": "m", "input": "hi", "reasoning": {"effort": "low", "summary": "auto"}}
        events = list(client.responses.create(**asked, stream=True))
        assert prompt_of(speaker).endswith("<low True>")
        thought = events[-1].response.output[0]
        assert ([part.text for part in thought.summary], thought.content) == (["Hm."], [])
        deltas = [event.delta for event in events if event.type == "response.reasoning_summary_text.delta"]
        assert "".join(deltas) == "Hm."
        kinds = [event.type.removeprefix("response.reasoning_summary_") for event in events if "summary" in event.type]
        assert (kinds[0], kinds[-2:]) == ("part.added", ["text.done", "part.done"])
        assert client.responses.create(**asked).output[0].summary[0].text == "Hm."
        client.responses.create(model="m", input=[thought.to_dict(), {"role": "user", "content": "on"}])
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], reasoning_effort="none")
        assert prompt_of(speaker).endswith("<none False>")


def sdk(site: Any) -> Any:
    return anthropic.Anthropic(base_url=site.url, api_key="any", max_retries=0, timeout=20)


def test_claude_codes_tools(talking: Any, speaker: Any) -> None:
    """Tools with a schema of Anthropic's are functions; what its servers run is left out."""
    tools: Any = [
        {"type": "bash_20250124", "name": "bash"}, {"type": "web_search_20250305", "name": "web_search"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 10},
    ]  # fmt: skip
    speaker.answer = call("bash", {"command": "ls"})
    with sdk(talking) as client:
        answer = client.messages.create(
            model="m", max_tokens=99, messages=[{"role": "user", "content": "x"}], tools=tools
        )
        assert (answer.content[0].name, answer.content[0].input) == ("bash", {"command": "ls"})
        assert "<str_replace_based_edit_tool: View" in prompt_of(speaker)
        assert "web_search" not in prompt_of(speaker)
        counted = client.messages.count_tokens(
            model="m", messages=[{"role": "user", "content": "x"}], tools=tools, system=[{"type": "text", "text": "s"}]
        )
        assert counted.input_tokens == answer.usage.input_tokens + len("[system]s")


def test_what_a_cache_has(talking: Any, speaker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the engine says what it had cached, a prompt with `cache_control` counts the rest as written there."""
    known = True

    async def speak(incoming: Any, payload: dict[str, Any]) -> None:
        incoming.finish(delta([65], "stop", {"cached_tokens": 5} if known else None))

    monkeypatch.setattr(speaker, "speak", speak)
    marked: Any = [{"role": "user", "content": [
        {"type": "text", "text": "x" * 20, "cache_control": {"type": "ephemeral"}},
    ]}]  # fmt: skip
    quoting: Any = [{"role": "user", "content": '"cache_control"' + "x" * 5}]
    asked: Any = {"model": "m", "max_tokens": 9}
    with sdk(talking) as client:
        for messages, cached, expected in (
            (marked, True, (0, 21, 5)), (quoting, True, (21, 0, 5)), (marked, False, (26, 0, 0)),
        ):  # fmt: skip
            known = cached
            whole = client.messages.create(**asked, messages=messages).usage
            last = list(client.messages.create(**asked, messages=messages, stream=True))[-2]
            for usage in (whole, last.usage):
                counts = usage.input_tokens, usage.cache_creation_input_tokens, usage.cache_read_input_tokens
                assert counts == expected


def test_pings_in_silence(talking: Any, speaker: Any) -> None:
    """A stream says that it lives while a prompt is computed, and between two tokens; a failure is an event then."""
    speaker.hold = asyncio.Event()

    async def speak(incoming: Any, payload: dict[str, Any]) -> None:
        await speaker.hold.wait()
        incoming.send(delta([65], None))
        await asyncio.sleep(0.2)
        incoming.finish(delta([66], "stop") if speaker.answer == "hello" else delta([], "error", {"message": "gone"}))

    speaker.speak = speak
    body = {"model": "m", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "x"}]}
    with httpx.stream("POST", f"{talking.url}/v1/messages", json=body, timeout=20) as answer:
        lines = answer.iter_lines()
        kinds: list[str] = []
        for line in lines:
            kinds += [line.removeprefix("event: ")] if line.startswith("event: ") else []
            if kinds.count("ping") == 3:
                talking.call(speaker.hold.set)
                break
        assert kinds == ["message_start", "ping", "ping", "ping"]
        kinds += [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    rest = [kind for kind in kinds[4:] if kind != "ping"]
    assert rest[:2] == ["content_block_start", "content_block_delta"]
    assert rest[-1] == "message_stop"
    between = kinds[kinds.index("content_block_start") : kinds.index("content_block_stop")]
    assert "ping" in between
    assert talking.metric("time_to_first_token_seconds_count", model="m") == 1
    assert talking.metric("inter_token_latency_seconds_count", model="m") == 1


def test_models_for_its_sdk(talking: Any) -> None:
    """One model as Anthropic describes it, and its absence."""
    with sdk(talking) as client:
        assert client.models.retrieve("m").display_name == "m"
        assert [model.id for model in client.models.list()] == ["m"]
        with pytest.raises(anthropic.NotFoundError) as absent:
            client.models.retrieve("nobody")
        body: Any = absent.value.body
        assert body["error"]["type"] == "not_found_error"
    assert httpx.get(f"{talking.url}/v1/models/m").json()["object"] == "model"
