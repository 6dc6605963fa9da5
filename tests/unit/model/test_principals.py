"""Principals as text: what may stand in a rule, a request or a line of the audit log."""

from __future__ import annotations

import pytest

from tidelog.model.principals import ANONYMOUS, MOST_NAME_CHARACTERS, PROCESS, Principal, parse


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("User:alice", Principal("User", "alice")),
        ("User:ANONYMOUS", ANONYMOUS),
        ("User:CN=a, OU=b:c", Principal("User", "CN=a, OU=b:c")),
        ("User:*", Principal("User", "*")),
        ("User:\u00e4\u4e2d", Principal("User", "\u00e4\u4e2d")),
        ("user:alice", Principal("user", "alice")),
        ("User:" + "x" * MOST_NAME_CHARACTERS, Principal("User", "x" * MOST_NAME_CHARACTERS)),
        ("User:" + "x" * (MOST_NAME_CHARACTERS + 1), None),
        ("User:" + "x" * 100_000, None),
        ("alice", None),
        ("", None),
        (":", None),
        ("User:", None),
        (":alice", None),
        ("User:a\nb", None),
        ("User:a\0", None),
        ("User:a\u2028b", None),
        ("User:a\x1b[2J", None),
        ("Us\ter:a", None),
    ],
)
def test_what_a_principal_is(text: str, found: Principal | None) -> None:
    assert parse(text) == found
    assert found is None or str(found) == text


def test_no_user_is_a_process() -> None:
    assert PROCESS.type != ANONYMOUS.type
    assert parse("User:cluster-secret") != PROCESS
