"""The two inputs of `dynamo-run` that are people or pipes: `in=text` and `in=stdin`.

Both ask the frontend that runs in this process; answers go to standard output as they
come, everything else to standard error.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from dynamo.cli.asgi_client import Client, RequestError
from dynamo.cli.conversation import Conversation, text_of
from dynamo.cli.run import stdin

if TYPE_CHECKING:
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.key_binding.key_processor import KeyPressEvent

CHAT: Final = "/v1/chat/completions"
_MODEL_SECONDS: Final = 300.0
COMMANDS: Final = ("/bye", "/exit", "/quit", "/help", "/?", "/clear")
HELP: Final = """/clear begins anew, /bye ends, /help says this; Ctrl-C cancels an answer.
A prompt of several lines begins and ends with \"\"\"."""
_QUOTES: Final = '"""'
_LOOK_SECONDS: Final = 0.1
_SAY_SECONDS: Final = 5.0


async def answer(client: Client, talk: Conversation, text: str, out: TextIO) -> bool:
    """Take one turn: ask, print the answer as it comes; False (and a line on stderr) where it failed."""
    parts: list[str] = []
    try:
        async with aclosing(client.events(CHAT, talk.ask(text))) as events:
            async for event in events:
                if piece := text_of(event):
                    parts.append(piece)
                    out.write(piece)
                    out.flush()
    except RequestError as error:
        talk.failed()
        out.write("\n" if parts else "")
        print(f"error: {error}", file=sys.stderr)
        return False
    out.write("\n")
    out.flush()
    talk.answered("".join(parts))
    return True


async def answer_pipe(client: Client, talk: Conversation) -> int:
    """Answer one prompt, all of standard input; returns the exit code."""
    prompt = (await stdin.everything(sys.stdin.fileno())).rstrip("\n")
    if not prompt.strip():
        print("error: nothing came on standard input: echo 'your prompt' | dynamo-run ...", file=sys.stderr)
        return 2
    return 0 if await answer(client, talk, prompt, sys.stdout) else 1


async def chat(client: Client, talk: Conversation) -> int:
    """Ask until the person leaves; the exit code."""
    async with aclosing(_turns()) as turns:
        async for text in turns:
            if sys.stdin.isatty() and text.strip() in COMMANDS:
                if not _command(talk, text.strip()):
                    return 0
            elif text.strip():
                await _cancellable(answer(client, talk, text, sys.stdout), talk)
    return 0


def _command(talk: Conversation, word: str) -> bool:
    """Carry out a word of the chat itself; False where the person leaves."""
    if word == "/clear":
        talk.clear()
        print("the conversation begins anew", file=sys.stderr)
    elif word in ("/help", "/?"):
        print(HELP, file=sys.stderr)
    return word not in ("/bye", "/exit", "/quit")


async def _cancellable(turn: Coroutine[Any, Any, bool], talk: Conversation) -> None:
    """Take a turn that Ctrl-C cancels; at the prompt, Ctrl-C ends the conversation."""
    if not sys.stdin.isatty():
        await turn
        return
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(turn)
    before = signal.getsignal(signal.SIGINT)
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        await asyncio.wait([task])
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)
        task.cancel()
    if task.cancelled():
        talk.failed()
        print("\ncancelled; Ctrl-C again, or /bye, ends the conversation", file=sys.stderr)
    else:
        task.result()


async def _turns() -> AsyncGenerator[str, None]:
    """Yield what the user types, turn by turn, until Ctrl-C, Ctrl-D or the end of input."""
    if not sys.stdin.isatty():
        async for line in stdin.lines(sys.stdin.fileno()):
            yield line
        return
    print("Ctrl-C or Ctrl-D ends the conversation; /help lists more.", file=sys.stderr)
    from prompt_toolkit import PromptSession

    session: PromptSession[str] = PromptSession(history=history(), key_bindings=_keys())
    while True:
        try:
            yield await _whole(lambda said: session.prompt_async(said), "User: ")
        except (KeyboardInterrupt, EOFError):
            return


def _keys() -> KeyBindings:
    """Return the keys that mean something here and nothing to the prompt."""
    from prompt_toolkit.application import get_app
    from prompt_toolkit.filters import Condition
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()
    # Ctrl-D that is typed while an answer comes waits in the terminal's own queue, which turns it into a NUL.
    keys.add("c-@", filter=Condition(lambda: not get_app().current_buffer.text))(_leave)
    return keys


def _leave(event: KeyPressEvent) -> None:
    event.app.exit(exception=EOFError)


async def _whole(prompt: Callable[[str], Awaitable[str]], said: str) -> str:
    """Return a line, or all lines between three quotes."""
    text = await prompt(said)
    if not text.lstrip().startswith(_QUOTES):
        return text
    text = text.lstrip().removeprefix(_QUOTES)
    while not text.rstrip().endswith(_QUOTES):
        text += "\n" + await prompt("... ")
    return text.rstrip().removesuffix(_QUOTES)


def history() -> History:
    """Return what was typed in earlier chats, and where new prompts are added."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    path = history_file(os.environ)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError as error:
        print(f"no history is kept: {error}", file=sys.stderr)
        return InMemoryHistory()
    return FileHistory(str(path))


def history_file(environ: Any) -> Path:
    """Return where typed prompts are kept between runs."""
    state = environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "dynamo" / "history"


async def first_model(
    served: Callable[[], list[str]], wanted: str, say: Callable[[str], None], *, more_may_come: bool
) -> str:
    """Return the model to talk to: `wanted`, or the first one served; waits for it with a line that says so."""
    loop = asyncio.get_running_loop()
    start = said = loop.time()
    while True:
        names = served()
        if wanted in names or (names and not wanted):
            return wanted or names[0]
        now = loop.time()
        if (names and not more_may_come) or now - start > _MODEL_SECONDS:
            raise RequestError(404, _no_model(wanted, names))
        if now - said > _SAY_SECONDS:
            said = now
            what = f"waiting for a worker that serves {wanted or 'a model'}" if more_may_come else "still loading"
            say(f"{what} ({now - start:.0f} s)")
        await asyncio.sleep(_LOOK_SECONDS)


def _no_model(wanted: str, names: list[str]) -> str:
    there = f"; served are {', '.join(names)}" if names else "; is a worker up?"
    return f"nobody serves {wanted or 'a model'}{there}"
