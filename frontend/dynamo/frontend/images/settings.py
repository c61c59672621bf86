"""What a frontend takes of images: a group of its settings."""

from __future__ import annotations

from dataclasses import dataclass

from dynamo.runtime.process.settings import out_of_range, setting


@dataclass(frozen=True)
class ImageSettings:
    """Bounds of images, and whether they are fetched."""

    max_count: int = setting(
        32, "Images in one request.", env="DYN_IMAGE_MAX_COUNT", name="image_max_count"
    )  # fmt: skip
    max_mb: float = setting(
        16.0, "MB of all images in one request, decoded from base64 or fetched.", env="DYN_IMAGE_MAX_MB",
        name="image_max_mb",
    )  # fmt: skip
    max_megapixels: float = setting(
        64.0, "Millions of pixels of all images in one request.", env="DYN_IMAGE_MAX_MEGAPIXELS",
        name="image_max_megapixels",
    )  # fmt: skip
    budget_mb: float = setting(
        512.0, "MB of images in all requests that are being answered; further ones wait, then get 503.",
        env="DYN_IMAGE_BUDGET_MB", name="image_budget_mb",
    )  # fmt: skip
    fetch: bool = setting(
        False, "Fetch images by http and https URLs, from public addresses only.", env="DYN_IMAGE_FETCH",
        name="image_fetch",
    )  # fmt: skip
    fetch_timeout: float = setting(
        10.0, "Seconds in which the images of a request must be fetched.", env="DYN_IMAGE_FETCH_TIMEOUT_SECS",
        name="image_fetch_timeout_secs",
    )  # fmt: skip

    @property
    def max_bytes(self) -> int:
        """Return the bytes of all images in one request."""
        return int(self.max_mb * 1024 * 1024)

    @property
    def max_pixels(self) -> int:
        """Return the pixels of all images in one request."""
        return int(self.max_megapixels * 1_000_000)

    @property
    def budget(self) -> int:
        """Return the bytes of images in all requests."""
        return int(self.budget_mb * 1024 * 1024)

    def problem(self) -> str | None:
        """Return why these limits can't hold, in one sentence; None where they can."""
        if self.budget_mb < self.max_mb:
            return "--image-budget-mb must be at least --image-max-mb: a request that is larger would never be answered"
        return out_of_range(self, "max_count", least=1) or out_of_range(
            self, "max_mb", "max_megapixels", "budget_mb", "fetch_timeout", above=True
        )
