"""Secrets printed for who keeps them in Git, and NATS' keys renewed."""

from __future__ import annotations

import io
from typing import Any

import pytest
import yaml

from dynamo.operator.credentials import nats_keys, permissions
from dynamo.operator.credentials.__main__ import main
from dynamo.operator.credentials.nats_keys import NatsIssuer
from dynamo.operator.credentials.secret import data_in


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    main([*argv, "--name", "keys"])
    document: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    assert (document["kind"], document["metadata"]["name"]) == ("Secret", "keys")
    return document


def test_a_secret_for_each_server(capsys: pytest.CaptureFixture[str]) -> None:
    """Different every time, since nobody else may have the same."""
    first, second = (data_in(printed(capsys, "etcd")) for _ in range(2))
    assert (first["username"], len(first["password"]) > 40) == (b"root", True)
    assert first != second
    assert NatsIssuer.of(data_in(printed(capsys, "nats"))).account.startswith("A")


def test_renewed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The account stays, its signing key is another one; the server will take users of both."""
    old = printed(capsys, "nats")
    monkeypatch.setattr("sys.stdin", io.StringIO(yaml.safe_dump(old)))
    before, after = (NatsIssuer.of(data_in(entry)) for entry in (old, printed(capsys, "renew")))
    assert before.account == after.account
    assert before.public != after.public
    user = nats_keys.new_user(before, "x", permissions.subjects("ns"), lambda: b"u" * 32, 1)
    assert not nats_keys.is_user_of(user, after, permissions.subjects("ns"))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "standard input holds no Secret"),
        ("a: [SECRET", "standard input holds no Secret"),
        ("{kind: Secret, data: {}}", "has no account"),
        ("{kind: Secret, data: {account: QQ==, signing.nk: U0VDUkVU}}", "signing.nk holds no seed"),
    ],
)
def test_what_is_no_such_secret(
    text: str, sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence, and nothing of what was given."""
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    with pytest.raises(SystemExit):
        main(["renew", "--name", "x"])
    said = capsys.readouterr()
    assert sentence in said.err
    assert "SECRET" not in said.err + said.out
