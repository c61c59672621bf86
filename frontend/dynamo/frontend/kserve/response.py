"""Answers of POST /v1/completions as `ModelInferResponse`s. Pure; `service.py` calls it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from dynamo.frontend.kserve import inference_pb2 as messages
from dynamo.frontend.kserve.asked import FINISH_REASON, TEXT_OUTPUT, Asked

VERSION: Final = "1"
FINAL: Final = "triton_final_response"
"""Parameter of streamed answers; Triton's clients look for the last one of a request by it."""
_DATA: Final = b"data: "
_DONE: Final = b"[DONE]"


class Piece(msgspec.Struct):
    """What one write of a stream says."""

    text: str = ""
    finish_reason: str | None = None
    error: str = ""


def whole(asked: Asked, body: bytes) -> Any:
    """The answer that a JSON body is; one element per choice."""
    answer = msgspec.json.decode(body)
    texts = [choice["text"] for choice in answer["choices"]]
    return _response(asked, answer["model"], texts, [choice["finish_reason"] for choice in answer["choices"]])


def piece(events: bytes) -> Piece:
    """Server-sent events, put together: a client that reads slowly gets fewer and longer ones."""
    found, texts = Piece(), []
    for event in events.split(b"\n\n"):
        data = event.removeprefix(_DATA)
        if not data or data == _DONE:
            continue
        said = msgspec.json.decode(data)
        if (error := said.get("error")) is not None:
            found.error = error["message"]
        for choice in said.get("choices", ()):
            texts.append(choice["text"])
            found.finish_reason = choice["finish_reason"] or found.finish_reason
    found.text = "".join(texts)
    return found


def streamed(asked: Asked, one: Piece) -> Any:
    """A message of a stream: text, the end, or a failure in mid-answer."""
    message = messages.ModelStreamInferResponse(error_message=one.error)
    if one.error:
        message.infer_response.id = asked.id
        return message
    answer = _response(asked, asked.body["model"], [one.text], [one.finish_reason or ""])
    answer.parameters[FINAL].bool_param = one.finish_reason is not None
    message.infer_response.CopyFrom(answer)
    return message


def in_stream(asked: Asked, answer: Any) -> Any:
    """A whole answer, where a stream asked for it."""
    answer.parameters[FINAL].bool_param = True
    return messages.ModelStreamInferResponse(infer_response=answer)


def _response(asked: Asked, model: str, texts: list[str], reasons: list[str]) -> Any:
    answer = messages.ModelInferResponse(model_name=model, model_version=VERSION, id=asked.id)
    for name, elements in ((TEXT_OUTPUT, texts), (FINISH_REASON, reasons)):
        if name in asked.outputs:
            _add(answer, name, elements)
    return answer


def _add(answer: Any, name: str, elements: Iterable[str]) -> None:
    data = [one.encode() for one in elements]
    tensor = answer.outputs.add(name=name, datatype="BYTES", shape=[len(data)])
    tensor.contents.bytes_contents.extend(data)
