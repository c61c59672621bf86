"""How a release was made, as SLSA's provenance in an in-toto statement. Pure.

Source: slsa.dev/spec/v1.0/provenance. cosign signs the list of checksums that this file is in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_STATEMENT: Final = "https://in-toto.io/Statement/v1"
_PREDICATE: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "urn:dynamo-pipelines:make-release:v1"
"""`make release` on a clean checkout of the commit, within locks/."""


def statement(
    digests: Mapping[str, str], commit: str, locks: Mapping[str, str], builder: str, *, images: bool
) -> dict[str, Any]:
    """Return the statement about files, by their sha256.

    `locks`: what the build could install, by sha256, too. `builder`: who made it, as a URI.
    """
    return {
        "_type": _STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(digests.items())],
        "predicateType": _PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"commit": commit, "images": images},
                "internalParameters": {},
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": commit}},
                    *({"name": name, "digest": {"sha256": digest}} for name, digest in sorted(locks.items())),
                ],
            },
            "runDetails": {"builder": {"id": builder}},
        },
    }
