"""The images of one request, from its messages to bytes with a size: read out of it, or fetched.

Bytes of all requests that are being answered count against one budget, since an answer may take long and its images
are kept for another worker that may have to go on with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dynamo.frontend.errors import bad_request
from dynamo.frontend.http.body_budget import BodyBudget, Share
from dynamo.frontend.images.fetch import ByteRoom, FetchError, ImageFetcher, TooLargeError
from dynamo.frontend.images.parts import ImageRef, check_count, is_data, measured, read_data, too_large
from dynamo.frontend.images.settings import ImageSettings
from dynamo.llm.protocols import ImageInput
from dynamo.runtime.errors import DeadlineExceeded

_SIDE_BY_SIDE: Final = 4
"""Fetches of one request: what one caller may have of the budget leaves places for others."""
_WAIT_SECONDS: Final = 1.0
"""For other answers' images to leave; most stay for longer."""


class ImageLoader:
    """Loads images of all requests of a process."""

    def __init__(self, settings: ImageSettings, budget: BodyBudget, fetcher: ImageFetcher | None) -> None:
        self.settings, self._budget, self._fetcher = settings, budget, fetcher

    @classmethod
    def of(cls, settings: ImageSettings, refused: Callable[[str], None]) -> ImageLoader:
        """Return the loader of a frontend."""
        budget = BodyBudget(settings.budget, refused, "of images")
        return cls(settings, budget, ImageFetcher() if settings.fetch else None)

    def close(self) -> None:
        """Fetch nothing more."""
        if self._fetcher is not None:
            self._fetcher.close()

    def check(self, refs: Sequence[ImageRef]) -> None:
        """Raise the 400 of what isn't taken, whatever is in it."""
        check_count(refs, self.settings.max_count)
        for ref in refs:
            if self._fetcher is None and not is_data(ref):
                text = (
                    f"{ref.path}: images aren't fetched here; send data:image/png;base64,… instead, or start the "
                    "frontend with --image-fetch."
                )
                raise bad_request(text, ref.path, "unsupported_value")

    async def take(self, refs: Sequence[ImageRef], caller: bytes) -> Share:
        """Take the bytes that they may have from the budget; raises the 503 where those stay taken."""
        most = self.settings.max_bytes
        size = sum(len(ref.url) // 4 * 3 for ref in refs if is_data(ref))
        size = most if any(not is_data(ref) for ref in refs) else min(size, most)
        return await self._budget.take(caller, size, _WAIT_SECONDS)

    def give_back(self, share: Share, left: int = 0) -> None:
        """Give back what isn't needed any more, all but `left` bytes."""
        self._budget.shrink(share, left)

    async def fetched(self, refs: Sequence[ImageRef], deadline: float | None) -> dict[str, bytes]:
        """Return what stands at the URLs that lead elsewhere; raises the 400 of the first that can't be fetched."""
        wanted = {ref.url: ref for ref in refs if not is_data(ref)}
        if not wanted or self._fetcher is None:
            return {}
        seconds = self.settings.fetch_timeout
        own = deadline is not None and deadline - time.monotonic() < seconds
        if deadline is not None and own:
            seconds = max(0.0, deadline - time.monotonic())
        room = ByteRoom(self.settings.max_bytes)
        places = asyncio.Semaphore(_SIDE_BY_SIDE)

        async def fetch(fetcher: ImageFetcher, url: str) -> bytes:
            async with places:
                return await fetcher.fetch(url, room)

        tasks = {ref: asyncio.ensure_future(fetch(self._fetcher, ref.url)) for ref in wanted.values()}
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*tasks.values())
        except TimeoutError:
            if own:
                raise DeadlineExceeded("the request's time limit passed before its images were here") from None
        except FetchError:
            pass  # told below, with its image
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        # What failed comes before what was given up for it.
        ended = sorted(tasks.items(), key=lambda item: item[1].cancelled())
        return {ref.url: _result(ref, task, self.settings.fetch_timeout) for ref, task in ended}

    def read(self, refs: Sequence[ImageRef], fetched: Mapping[str, bytes]) -> list[ImageInput]:
        """Return all of them, measured; raises the 400 of the first that is none, or too large. May take long."""
        images, left, pixels = [], self.settings.max_bytes, self.settings.max_pixels
        for ref in refs:
            data = fetched[ref.url] if ref.url in fetched else read_data(ref, left)
            left -= len(data)
            if left < 0:
                raise too_large(ref)
            images.append(measured(ref, data, pixels))
            pixels -= images[-1].width * images[-1].height
        return images


def _result(ref: ImageRef, task: asyncio.Future[bytes], seconds: float) -> bytes:
    """Return what was fetched; the 400 names its image."""
    error: Any = None if task.cancelled() else task.exception()
    if isinstance(error, TooLargeError):
        raise too_large(ref)
    if error is None and not task.cancelled():
        return task.result()
    if error is not None and not isinstance(error, FetchError):
        raise error
    why = str(error) if error is not None else f"it isn't here after {seconds:g} s"
    raise bad_request(f"{ref.path}: this image can't be fetched: {why}.", ref.path, "invalid_image_url")
