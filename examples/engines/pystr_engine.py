"""A text engine: it repeats what the user said, word by word. See docs/how-to/serve/engines/python.md."""

import argparse
import asyncio

options = argparse.Namespace(shout=False, pause=0.0)


async def initialize(args):
    """Called once, before the first request, with the arguments of the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shout", action="store_true", help="Answer in capitals.")
    parser.add_argument("--pause", type=float, default=0.0, help="Seconds between two words.")
    parser.parse_known_args(args, namespace=options)  # --model-path and --model-name may stand there too


async def generate(request, context):
    """Called for each request, with the body that the client sent."""
    words = spoken(request).split()
    limit = request.get("max_tokens") or request.get("max_completion_tokens") or len(words)
    for count, word in enumerate(words[:limit]):
        text = word.upper() if options.shout else word
        yield chunk(text if count == 0 else " " + text)
        await asyncio.sleep(options.pause)
    yield chunk("", finish_reason="stop" if limit >= len(words) else "length")
    used = {"prompt_tokens": len(words), "completion_tokens": min(limit, len(words))}
    yield {"choices": [], "usage": used}


def spoken(request):
    """The last message's text, or the prompt of /v1/completions."""
    if "prompt" in request:
        return request["prompt"]
    content = request["messages"][-1]["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def chunk(text, finish_reason=None):
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}]}
