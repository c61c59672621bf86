"""Images of the tests beside those of the platform: the same registry, repository and tag, another ending."""

from __future__ import annotations

import yaml
from e2e.cluster.installation import Platform
from e2e.cluster.outage import home, operator_selector


def worker_image(platform: Platform, name: str) -> str:
    """Return the image `worker-NAME`, beside that of the platform's llama.cpp workers."""
    (config,) = home(platform).list("v1/ConfigMap", operator_selector(platform))
    image: str = yaml.safe_load(config["data"]["config.yaml"])["images"]["workers"]["llamacpp"]
    return image.replace("/worker-llamacpp", f"/worker-{name}")
