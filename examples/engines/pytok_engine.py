"""A tokens engine: it answers with the tokens of the prompt, --times over. See docs/how-to/serve/engines/python.md."""

import argparse
import asyncio
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--times", type=int, default=1)
options, _ = parser.parse_known_args(sys.argv[1:])  # the file is run as a script is, so its top level may read these


async def generate(request):
    """Called for each request: token_ids, stop_conditions, sampling_options, ..."""
    answered = request["answered_tokens"]  # how much of the answer another worker gave before it was lost
    prompt = request["token_ids"][: len(request["token_ids"]) - answered]
    for token in (prompt * options.times)[answered:]:
        yield {"token_ids": [token]}  # max_tokens, EOS and stop token ids are watched over by the worker
        await asyncio.sleep(0)
    yield {"token_ids": [], "finish_reason": "stop"}
