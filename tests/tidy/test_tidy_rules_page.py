"""The page of `make docs` that maps promises and KIP rules to tests has all of them."""

from __future__ import annotations

import pytest

from tests.support import rules


def test_each_promise_and_each_kip_of_a_table_is_on_the_page() -> None:
    page = rules.page()
    missing = 0
    for promise in rules.promises(rules.PROMISES.read_text(encoding="utf-8")):
        assert f"| {promise.number}. {promise.title} |" in page
        missing += promise.parts["Tests"].count("not yet (KIP-253)")
    # None of them is lost on the page.
    assert page.count("not yet (KIP-253)") == missing


@pytest.mark.parametrize(
    ("text", "promised", "kips"),
    [
        ("Promises 14 to 16 and 19, KIP-516", {14, 15, 16, 19}, {516}),
        ("promises 1-3", {1, 2, 3}, set()),
        ("promise 20 (KIP-253, KIP 455)", {20}, {253, 455}),
        ("no promise at all", set(), set()),
    ],
)
def test_citations_are_read(text: str, promised: set[int], kips: set[int]) -> None:
    assert rules.cited_numbers(text) == (promised, kips)
