"""Stored responses and background runs of several frontend processes of one namespace, over a real NATS."""

from __future__ import annotations

from functools import partial
from typing import Any

import openai
import pytest
from tests.waiting import eventually

ASK: Any = {"model": "m", "max_output_tokens": 4}
MOST_TURNS = 40


@pytest.fixture(scope="module")
def pair(shared_stack: Any) -> list[Any]:
    """Two frontends, one of them with two processes, and a worker."""
    stack = shared_stack
    stack.worker()
    frontends = [stack.frontend("--workers", "2", name="several"), stack.frontend(name="single")]
    for frontend in frontends:
        frontend.wait_for()
    return frontends


def sdk(frontend: Any, **options: Any) -> Any:
    """The SDK; each of its requests has a connection of its own, so that any process may get it."""
    asked = {"api_key": "any", "default_headers": {"connection": "close"}, **options}
    return openai.OpenAI(base_url=f"{frontend.url}/v1", max_retries=0, timeout=30, **asked)


def made_by(response: Any) -> str:
    """The process that an id names."""
    name: str = response.id
    return name.removeprefix("resp_")[:14]


def test_a_conversation_over_all_processes(pair: list[Any]) -> None:
    """Whichever process answers, the model sees all of the conversation, and items are found by their ids."""
    with sdk(pair[0]) as several, sdk(pair[1]) as single:
        previous, turn = None, -1
        processes: set[str] = set()
        while len(processes) < 3 and turn < MOST_TURNS:  # the kernel spreads connections over both by chance
            turn += 1
            client = single if turn % 3 == 2 else several
            answer = client.responses.create(**ASK, input=f"turn {turn}", previous_response_id=previous)
            processes.add(made_by(answer))
            previous = answer.id
        assert len(processes) == 3, "the kernel spreads connections over both processes; the third is the single one"
        for client in (several, single):
            listed = list(client.responses.input_items.list(answer.id, order="asc"))
            texts = [item.content[0].text for item in listed if item.role == "user"]
            assert texts == [f"turn {number}" for number in range(turn + 1)]
            assert client.responses.retrieve(answer.id) == answer
            counted = client.responses.input_tokens.count(
                model="m", input=f"turn {turn}", previous_response_id=answer.previous_response_id
            )
            assert counted.input_tokens == answer.usage.input_tokens
            named: Any = [{"type": "item_reference", "id": answer.output[0].id}, {"role": "user", "content": "and?"}]
            assert client.responses.create(**ASK, input=named).status == "incomplete"


def _has(client: Any, name: str, items: int) -> bool:
    return len(list(client.conversations.items.list(name))) == items


def test_a_kept_conversation_over_all_processes(pair: list[Any]) -> None:
    """Items, metadata and responses of a conversation go to the process that has it, whichever was asked."""
    with sdk(pair[0]) as several, sdk(pair[1]) as single:
        made = single.conversations.create(items=[{"role": "user", "content": "zero"}])
        for turn in range(4):
            several.responses.create(**ASK, input=f"turn {turn}", conversation=made.id)
            eventually("it is added", partial(_has, several, made.id, 3 + 2 * turn))
        added = several.conversations.items.create(made.id, items=[{"role": "user", "content": "x" * 300_000}] * 2)
        listed = list(single.conversations.items.list(made.id))
        assert (len(listed), listed[1].id) == (11, added.data[0].id), "they came in two messages"
        several.conversations.items.delete(added.data[0].id, conversation_id=made.id)
        assert several.conversations.update(made.id, metadata={"a": "b"}).metadata == {"a": "b"}
        assert single.conversations.retrieve(made.id).metadata == {"a": "b"}
        with pytest.raises(openai.BadRequestError, match="smaller"):
            several.conversations.items.create(made.id, items=[{"role": "user", "content": "x" * 600_000}])
        several.conversations.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            single.conversations.retrieve(made.id)


def test_others_see_nothing(pair: list[Any]) -> None:
    """A process answers another one for the caller whose response it is, and for nobody else."""
    with sdk(pair[1]) as single:
        mine = single.responses.create(**ASK, input="secret")
    with sdk(pair[0], api_key="other") as client:
        for ask in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                ask(mine.id)
        with pytest.raises(openai.BadRequestError, match="isn't stored here"):
            client.responses.create(**ASK, input="and?", previous_response_id=mine.id)
    with sdk(pair[0]) as client:
        client.responses.delete(mine.id)
    with sdk(pair[1]) as single, pytest.raises(openai.NotFoundError):
        single.responses.retrieve(mine.id)


@pytest.fixture(scope="module")
def keyed(shared_stack: Any, pair: list[Any], tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Two frontends that ask for keys, of which two are one tenant's."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("sk-a\nsk-b\nsk-c tenant=c\nsk-d tenant=c\n")
    made = [shared_stack.frontend("--api-keys-file", str(keys), name=f"keyed-{number}") for number in range(2)]
    for frontend in made:
        frontend.process.ready_line()
        with sdk(frontend, api_key="sk-a") as client:
            eventually("it serves", partial(client.models.retrieve, "m"), despite=(openai.APIStatusError,))
    return made


@pytest.mark.parametrize(("owner", "others"), [("sk-a", {"sk-b", "sk-c", "sk-d"}), ("sk-c", {"sk-a", "sk-b"})])
def test_a_key_is_the_same_caller_in_every_process(keyed: list[Any], owner: str, others: set[str]) -> None:
    """A response is found by its key, or by any key of its tenant, and by no other."""
    with sdk(keyed[0], api_key=owner) as client:
        mine = client.responses.create(**ASK, input="mine")
    for key in ("sk-a", "sk-b", "sk-c", "sk-d"):
        with sdk(keyed[1], api_key=key) as client:
            if key in others:
                with pytest.raises(openai.NotFoundError):
                    client.responses.retrieve(mine.id)
            else:
                assert client.responses.retrieve(mine.id) == mine


def test_large_ones_come_in_pieces(pair: list[Any]) -> None:
    """What is larger than a message of the bus is read whole."""
    with sdk(pair[1]) as single, sdk(pair[0]) as several:
        tools: Any = [{"type": "function", "name": f"f{n}", "description": "x" * 60_000} for n in range(16)]
        first = single.responses.create(**ASK, input="hi", tools=tools, tool_choice="none")
        assert several.responses.retrieve(first.id) == first
        assert several.responses.create(**ASK, input="on", previous_response_id=first.id).status == "incomplete"


def test_background_elsewhere(pair: list[Any]) -> None:
    """A run is followed, asked for and cancelled by way of any process."""
    long: Any = {"model": "m", "input": "y" * 200, "background": True, "max_output_tokens": 100}
    with sdk(pair[1]) as single, sdk(pair[0]) as several:
        with single.responses.create(**long, stream=True) as stream:
            response = next(stream).response
        events = list(several.responses.retrieve(response.id, stream=True, starting_after=0))
        assert [event.sequence_number for event in events] == list(range(1, len(events) + 1))
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert events[-1].response.output_text == "".join(deltas) != ""
        assert several.responses.retrieve(response.id) == events[-1].response
        running = single.responses.create(**{**long, "max_output_tokens": 2000})
        assert several.responses.cancel(running.id).status == "cancelled"
        assert single.responses.retrieve(running.id).status == "cancelled"


def test_a_process_that_is_gone(shared_stack: Any, pair: list[Any]) -> None:
    """What it had is gone, which the others say at once; an id that was made up is the same."""
    third = shared_stack.frontend(name="third")
    third.wait_for()
    with sdk(third) as client:
        lost = client.responses.create(**ASK, input="secret")
    third.process.kill()
    with sdk(pair[1]) as single:
        for name in (lost.id, f"resp_{1:014x}{'0' * 32}", "resp_none"):
            with pytest.raises(openai.BadRequestError, match="the frontend that had it is gone"):
                single.responses.create(**ASK, input="and?", previous_response_id=name)
            with pytest.raises(openai.NotFoundError):
                single.responses.retrieve(name)
