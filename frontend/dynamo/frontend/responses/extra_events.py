"""What a stream carries only where it is asked for: NVIDIA Dynamo's annotations before it, the usage so far in it.

Neither costs other streams anything: the first is bytes that are written once, the second stands in the way of the
output's `append` of that stream alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from dynamo.frontend.errors import bad_request
from dynamo.frontend.openai.request_structs import Sampling
from dynamo.frontend.responses.generation_events import usage_dict
from dynamo.frontend.responses.response import Response, ResponseOptions
from dynamo.frontend.responses.stream import ResponseStream
from dynamo.llm.processing.preprocess import Preprocessor
from dynamo.llm.processing.request_options import nvext_of
from dynamo.llm.protocols import PreprocessedRequest

_NO_USAGE: Final = b'"usage":null}\n\n'
_CHOICE: Final = b'"choices":[{"index":'
MOST_SCORES: Final = 1 << 12
"""Log probabilities of prompts in one answer: each takes a microsecond or two, and is written at once."""
MOST_IDS: Final = 1 << 17
"""Token ids of prompts in one answer: writing them takes milliseconds."""
_encode = msgspec.json.encode


def tell_prompts(
    options: ResponseOptions, request: Sampling, rid: str, preprocessor: Preprocessor, body: dict[str, Any],
    made: Sequence[PreprocessedRequest],
) -> None:  # fmt: skip
    """Note what an answer tells of its prompts, where that is asked for."""
    options.token_ids, options.named_by_ids = bool(request.return_token_ids), bool(request.return_tokens_as_token_ids)
    if options.scores is not None or options.token_ids:
        options.prompt_ids = [prompt.token_ids for prompt in made]
        _bound(request, sum(map(len, options.prompt_ids)))
    if request.stream and request.nvext is not None and (asked := request.nvext.annotations):
        options.preface = _preface(asked, rid, preprocessor, body, made[0])


def _bound(request: Sampling, tokens: int) -> None:
    if request.prompt_logprobs is not None and (wanted := tokens * (request.prompt_logprobs + 1)) > MOST_SCORES:
        text = f"prompt_logprobs: {wanted} log probabilities are asked for, but at most {MOST_SCORES} are given."
        raise bad_request(text, "prompt_logprobs")
    if request.return_token_ids and tokens > MOST_IDS:
        text = f"return_token_ids: the prompts have {tokens} tokens, once per answer, but at most {MOST_IDS} are told."
        raise bad_request(text, "return_token_ids")


def _preface(
    asked: Sequence[str], rid: str, preprocessor: Preprocessor, body: dict[str, Any], made: PreprocessedRequest
) -> bytes:
    """Return the events of the annotations that are known: a name, and a JSON string as a comment."""
    texts: dict[str, Callable[[], str]] = {
        "request_id": lambda: rid,
        "formatted_prompt": lambda: _formatted(preprocessor, body, made),
        "token_ids": lambda: _encode(made.token_ids).decode(),
    }
    known = (name for name in dict.fromkeys(asked) if name in texts)
    return b"".join(b"event: %b\n: %b\n\n" % (name.encode(), _encode(texts[name]())) for name in known)


def _formatted(preprocessor: Preprocessor, body: dict[str, Any], made: PreprocessedRequest) -> str:
    """Return the text that a body's prompt became, or that its tokens stand for where they came otherwise."""
    if "messages" in body and made.images is None and nvext_of(body).get("token_data") is None:
        return preprocessor.chat_prompt(body)
    return preprocessor.tokenizer.decode(made.token_ids, skip_special=False)


def count_each(output: ResponseStream, answer: Response) -> None:
    """Have each chunk of a stream say the tokens of its choice so far, in place of null."""
    append = output.append

    def counted(data: bytes) -> None:
        if data.endswith(_NO_USAGE):
            at = data.index(_CHOICE) + len(_CHOICE)
            choice = answer.choices[int(data[at : data.index(b",", at)])]
            usage = _encode(usage_dict(choice.prompt_tokens, choice.tokens, choice.cached))
            data = b'%b"usage":%b}\n\n' % (data[: -len(_NO_USAGE)], usage)
        append(data)

    output.append = counted
