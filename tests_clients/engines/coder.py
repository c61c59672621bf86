"""A tokens engine that plays a model which repairs code: it reads the file, edits it, runs the tests, and says so.

What it does next follows from the conversation alone. So any worker goes on with what another one has begun.
The chat template beside this file shows it the conversation as JSON; without a tokenizer, a token is a byte.
"""

import asyncio
import json
import re

PIECE = 6
"""Bytes of one step; an answer takes a second or so, in which its worker may be killed."""
PAUSE = 0.008
TASK = re.compile(r"Repair (/\S+\.py)\b")
WRONG = re.compile(r"return a - b - (\d+)")
READS, EDITS = ("read", "read_file", "view"), ("edit", "edit_file", "str_replace")
SHELLS = ("bash", "exec_command", "shell_command", "shell", "local_shell")


async def generate(request):
    """Called for each request: the prompt is a conversation, and behind it what another worker has answered."""
    tokens, answered = request["token_ids"], request["answered_tokens"]
    prompt = json.loads(bytes(tokens[: len(tokens) - answered]))
    answer = "".join(said(prompt["messages"], prompt["tools"])).encode()
    for start in range(answered, len(answer), PIECE):
        yield {"token_ids": list(answer[start : start + PIECE])}
        await asyncio.sleep(PAUSE)
    yield {"token_ids": [], "finish_reason": "stop"}


def said(messages, tools):
    """Yield the parts of an answer: a thought, a sentence, and the call of a tool."""
    users = [(place, TASK.search(text(message))) for place, message in enumerate(messages) if message["role"] == "user"]
    tasks = [(place, task.group(1)) for place, task in users if task]
    if not tasks or not tools:
        yield "A repair of code"  # agents ask for titles of conversations, and the like
        return
    start, path = tasks[-1]
    results = [text(message) for message in messages[start:] if message["role"] == "tool"]
    yield (
        f"<think>\n{len(results)} results have come of {path}. " + "I think of what to do next. " * 5 + "\n</think>\n\n"
    )
    try:
        yield from step(results, path, {tool["function"]["name"].lower(): tool["function"] for tool in tools})
    except LookupError as error:
        yield f"I give up: {error}"


def step(results, path, tools):
    """Yield what follows from the results that have come."""
    if not results:
        yield "I read the file."
        yield reading(tools, path)
    elif len(results) == 1:
        wrong = WRONG.search(results[0])
        if wrong is None:
            raise LookupError(f"no mistake in {results[0][:2000]!r}")
        yield "It subtracts where it should add."
        yield editing(tools, path, wrong.group(0), f"return a + b + {wrong.group(1)}")
    elif len(results) == 2:
        yield "I run the tests."
        yield running(tools, f"cd {path.rpartition('/')[0]} && python3 -m unittest -q")
    elif "OK" in results[-1]:
        yield "Repaired: the tests pass."
    else:
        raise LookupError(f"the tests say {results[-1][:2000]!r}, after {results[-2][:2000]!r}")


def reading(tools, path):
    """Return a call that reads a file."""
    for name in READS:
        if name in tools:
            return call(tools[name], path=path)
    return running(tools, f"cat {path}")


def editing(tools, path, old, new):
    """Return a call that replaces a text in a file."""
    patch = f"*** Begin Patch\n*** Update File: {path}\n@@\n-    {old}\n+    {new}\n*** End Patch\n"
    if "apply_patch" in tools:
        names = tools["apply_patch"]["parameters"].get("properties", {})
        return call(tools["apply_patch"], **{next(iter(names), "input"): patch})
    for name in EDITS:
        if name in tools:
            return call(tools[name], path=path, old=old, new=new)
    return running(tools, f"apply_patch <<'EOF'\n{patch}EOF")


def running(tools, command):
    """Return a call that runs a command."""
    for name in SHELLS:
        if name in tools:
            return call(tools[name], command=command)
    raise LookupError(f"no shell among {sorted(tools)}")


NAMES = {
    "path": ("file_path", "filepath", "path"), "old": ("old_string", "oldstring", "old_str"),
    "new": ("new_string", "newstring", "new_str"), "command": ("command", "cmd"),
}  # fmt: skip


def call(tool, **meant):
    """Return the call of a tool, whose parameters are found by what they mean."""
    arguments: dict[str, object] = {}
    for name, schema in tool["parameters"].get("properties", {}).items():
        meaning = next((key for key in meant if name.lower() in NAMES.get(key, (key,))), None)
        if meaning and schema.get("type") == "array":
            arguments[name] = ["bash", "-lc", meant[meaning]]
        elif meaning:
            arguments[name] = meant[meaning]
        elif name in tool["parameters"].get("required", ()) and schema.get("type") == "string":
            arguments[name] = "a step of the repair"
    return f"\n<tool_call>\n{json.dumps({'name': tool['name'], 'arguments': arguments})}\n</tool_call>"


def text(message):
    """Return what a message says, as one text."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part.get("text") or "" for part in content)
