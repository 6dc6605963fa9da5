"""Which names are suggested for one that does not exist."""

from __future__ import annotations

import pytest

from tidelog.cli.suggestions import did_you_mean


@pytest.mark.parametrize(
    ("name", "there", "meant"),
    [
        ("flghts", "flights", True),
        ("order", "orders", True),
        ("fligths", "flights", True),
        ("orders-v3", "orders-v2", True),
        # These were suggested.
        ("billing", "mailing", False),
        ("orders", "readers", False),
        ("payments", "shipments", False),
        ("t", "t2", False),
    ],
)
def test_only_a_name_that_is_much_alike_is_suggested(name: str, there: str, meant: bool) -> None:
    assert did_you_mean(name, [name, there]) == (f"did you mean {there!r}?" if meant else "")
