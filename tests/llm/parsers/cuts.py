"""Feeding a parser every way a text can be cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dynamo.llm.parsers.events import Call, CallStart, CallText, Content, Event, Parser, Thought


def joined(events: Iterable[Event]) -> list[Event]:
    """The events with neighbours of one kind put together, and streamed calls made whole."""
    results: list[Event] = []
    for event in events:
        last = results[-1] if results else None
        if isinstance(event, Content) and isinstance(last, Content):
            results[-1] = Content(last.text + event.text)
        elif isinstance(event, Thought) and isinstance(last, Thought):
            results[-1] = Thought(last.text + event.text)
        elif isinstance(event, CallStart):
            results.append(Call(event.name, "", event.id))
        elif isinstance(event, CallText):
            assert isinstance(last, Call), "arguments of no call"
            results[-1] = Call(last.name, last.arguments + event.text, last.id)
        else:
            results.append(event)
    return results


def read(make: Callable[[], Parser], pieces: Iterable[str]) -> list[Event]:
    """What a parser says of an answer that comes in these pieces."""
    parser, events = make(), []
    for piece in pieces:
        events += parser.feed(piece)
    return joined(events + parser.finish())


def in_every_way(make: Callable[[], Parser], text: str) -> list[Event]:
    """What is said of the whole text, which must be the same for all cuts in two, three, and single characters."""
    whole = read(make, [text])
    for cut in range(1, len(text)):
        assert read(make, [text[:cut], text[cut:]]) == whole, f"cut at {cut}: {text[:cut]!r} | {text[cut:]!r}"
        middle = (cut + len(text)) // 2
        assert read(make, [text[:cut], text[cut:middle], text[middle:]]) == whole, f"cut at {cut} and {middle}"
    for size in (1, 2, 3, 5, 7):
        assert read(make, [text[at : at + size] for at in range(0, len(text), size)]) == whole, f"pieces of {size}"
    return whole


def call(name: str, arguments: str = "{}", id: str | None = None) -> Call:  # noqa: A002 - the field's name
    """A call."""
    return Call(name, arguments, id)
