"""`python -m dynamo.operator.credentials nats|etcd`: prints a Secret for the chart, for who keeps Secrets in Git.

Nobody needs it otherwise: where the chart is given no Secret, the operator makes it. `renew`
reads the Secret of NATS on standard input and prints it with a new signing key.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

import yaml

from dynamo.operator.credentials import nats_keys
from dynamo.operator.credentials.nats_keys import KeysError
from dynamo.operator.credentials.platform import new_etcd_login, new_nats_keys, platform_secret
from dynamo.operator.credentials.secret import Data, data_in


def main(argv: Sequence[str] | None = None) -> None:
    """Print a Secret; exit with 1 and one sentence where standard input is no such Secret."""
    given = _arguments(argv)
    data = {"nats": new_nats_keys, "etcd": new_etcd_login, "renew": _renewed}[given.what]()
    yaml.safe_dump(platform_secret(given.name, data), sys.stdout, sort_keys=False)


def _renewed() -> Data:
    try:
        secret: Any = yaml.safe_load(sys.stdin)
    except (yaml.YAMLError, UnicodeDecodeError):
        secret = None  # what is wrong with it would show what is in it
    if not isinstance(secret, dict) or secret.get("kind") != "Secret":
        _fail("standard input holds no Secret: pipe in `kubectl get secret NAME -o yaml`")
    try:
        return nats_keys.renewed_platform(data_in(secret), lambda: os.urandom(32), int(time.time()))
    except KeyError as error:
        _fail(f"the Secret has no {error.args[0]}: it isn't one that this command made")
    except KeysError as error:
        _fail(str(error))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m dynamo.operator.credentials", description="Prints a Secret for charts/dynamo-platform."
    )
    parser.add_argument("what", choices=["nats", "etcd", "renew"], help="what signs in; renew: NATS' Secret on stdin")
    parser.add_argument("--name", required=True, help="of the Secret, as *.auth.existingSecret says")
    return parser.parse_args(argv)


def _fail(sentence: str) -> NoReturn:
    sys.stderr.write(f"dynamo.operator.credentials: {sentence}\n")
    raise SystemExit(1)


if __name__ == "__main__":
    main()
