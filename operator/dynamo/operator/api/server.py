"""Fields of a component whose engine is `openai`: the server that the workers ask, in their pod or elsewhere.

With `image` (`placement.py`) the server is a container of its own in each pod; with `command` alone the worker starts
it. The operator never asks it anything: only the tenant's own pods do.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dynamo.operator.api.placement import Placement

Word = Annotated[str, Field(max_length=4096, description="One word, as it is.")]
Words = Annotated[tuple[Word, ...], Field(max_length=256)]


class ServedElsewhere(Placement):
    """What a server is, beside its image."""

    command: Words | None = Field(
        default=None,
        description="Command of the server of engine openai; default: that of the image. Without image the worker "
        "starts it, and {port} becomes a free port.",
    )
    args: Words | None = Field(
        default=None, description="Arguments of the server of engine openai; its port is what --port says, else 8000."
    )
    upstream: str | None = Field(
        default=None,
        min_length=1,
        max_length=1024,
        pattern=r"^https?://[^\s/@?#]+(/[^\s@?#]*)?$",
        description="URL of the server of engine openai, for example http://vllm.models.svc:8000/v1. With image it "
        "says where in the pod the server listens.",
    )


FIELDS = frozenset({"command", "args", "upstream"})
"""Names of the fields, for what compares pods."""
