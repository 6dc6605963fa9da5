"""Tables for people and for scripts: the plain form has the bytes of the one that rich makes."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.cli import output

CELLS = st.one_of(
    st.none(), st.integers(), st.text(string.ascii_letters + " []-/é", max_size=12), st.just("")
)


@settings(max_examples=50)
@given(
    rows=st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=5), right=st.sets(st.sampled_from("abc"))
)
def test_a_table_without_a_terminal_is_as_rich_prints_it(
    rows: list[tuple[object, ...]], right: set[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        said: list[str] = []
        patch.setattr("builtins.print", lambda line: said.append(line))
        output.print_table(["a", "b", "c"], rows, right=right)
        found, said[:] = list(said), []
        patch.setattr(output, "_is_plain", lambda cell: False)
        output.print_table(["a", "b", "c"], rows, right=right)
        assert found == said


def test_numbers_stand_right_and_what_is_missing_is_a_dash(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.print_table(["Name", "Size"], [["a", 10], ["[b]", None]], right=["Size"])
    assert capsys.readouterr().out == "Name  Size\na       10\n[b]      -\n"
