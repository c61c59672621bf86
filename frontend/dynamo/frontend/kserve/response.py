"""Answers of POST /v1/completions as `ModelInferResponse`s. Pure; `service.py` calls it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from dynamo.frontend.kserve import inference_pb2 as messages
from dynamo.frontend.kserve.request import FINISH_REASON, TEXT_OUTPUT, Asked

VERSION: Final = "1"
FINAL: Final = "triton_final_response"
"""Parameter of streamed answers; Triton's clients look for the last one of a request by it."""
_DATA: Final = b"data: "
_DONE: Final = b"[DONE]"


class Piece(msgspec.Struct):
    """Piece: what one write of a stream says."""

    text: str = ""
    finish_reason: str | None = None
    error: str = ""


def whole(asked: Asked, body: bytes) -> Any:
    """Return the answer that a JSON body is; one element per choice."""
    answer = msgspec.json.decode(body)
    texts = [choice["text"] for choice in answer["choices"]]
    return _response(asked, answer["model"], texts, [choice["finish_reason"] for choice in answer["choices"]])


def piece(events: bytes) -> Piece:
    """Put server-sent events together: a client that reads slowly gets fewer and longer ones."""
    result, texts = Piece(), []
    for event in events.split(b"\n\n"):
        data = event.removeprefix(_DATA)
        if not data or data == _DONE:
            continue
        chunk = msgspec.json.decode(data)
        if (error := chunk.get("error")) is not None:
            result.error = error["message"]
        for choice in chunk.get("choices", ()):
            texts.append(choice["text"])
            result.finish_reason = choice["finish_reason"] or result.finish_reason
    result.text = "".join(texts)
    return result


def streamed(asked: Asked, part: Piece) -> Any:
    """Return a message of a stream: text, the end, or a failure in mid-answer."""
    message = messages.ModelStreamInferResponse(error_message=part.error)
    if part.error:
        message.infer_response.id = asked.id
        return message
    answer = _response(asked, asked.body["model"], [part.text], [part.finish_reason or ""])
    answer.parameters[FINAL].bool_param = part.finish_reason is not None
    message.infer_response.CopyFrom(answer)
    return message


def in_stream(asked: Asked, answer: Any) -> Any:
    """Return a whole answer, where a stream asked for it."""
    answer.parameters[FINAL].bool_param = True
    return messages.ModelStreamInferResponse(infer_response=answer)


def _response(asked: Asked, model: str, texts: list[str], reasons: list[str]) -> Any:
    answer = messages.ModelInferResponse(model_name=model, model_version=VERSION, id=asked.id)
    for name, elements in ((TEXT_OUTPUT, texts), (FINISH_REASON, reasons)):
        if name in asked.outputs:
            _add(answer, name, elements)
    return answer


def _add(answer: Any, name: str, elements: Iterable[str]) -> None:
    data = [element.encode() for element in elements]
    tensor = answer.outputs.add(name=name, datatype="BYTES", shape=[len(data)])
    tensor.contents.bytes_contents.extend(data)
