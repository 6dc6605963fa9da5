"""Tables for people and for scripts: what a terminal of any width shows, and what a pipe gets."""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from typing import Any

import click
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from tidelog.cli import configs, doctor_unclean, groups, output, topics
from tidelog.cli.reassigning import tables
from tidelog.cli.reassigning.progress import TargetProgress
from tidelog.cli.table_layout import FOLD_AT_LEAST, arrange
from tidelog.model.topics import TopicPartition
from tidelog.planning.plan import Load

WIDTHS = (80, 120, 200)
Capture = pytest.CaptureFixture[str]
Terminal = Callable[[int], None]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make stdout a terminal of a width."""

    def make(width: int) -> None:
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
        monkeypatch.setenv("COLUMNS", str(width))

    return make


def shown(capsys: Capture, width: int) -> str:
    """What was printed, without styles; no line is wider than the terminal."""
    text = click.unstyle(capsys.readouterr().out)
    assert all(cell_len(line) <= width for line in text.splitlines()), text
    assert "…" not in text
    return text


def test_numbers_stand_right_and_what_is_missing_is_a_dash(capsys: Capture) -> None:
    output.print_table(["Name", "Size"], [["a", 10], ["[b]", None]], right=["Size"])
    assert capsys.readouterr().out == "Name  Size\na       10\n[b]      -\n"


def test_a_pipe_gets_all_columns_however_wide_they_are(capsys: Capture) -> None:
    row = ["k" * 300, "v " * 300 + "v", None, ""]
    output.print_table(["Key", "Value", "Empty", "None"], [row], spare=["Value"], folds=["Key"])
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["Key", "Value", "Empty", "None"]
    assert line == f"{row[0]}  {row[1]}  -"


CELLS = st.text(string.ascii_letters + "0123456789 ,.-_/é漢", max_size=60)


@settings(max_examples=300)
@given(st.data())
def test_no_character_of_a_key_or_a_number_is_ever_cut(data: st.DataObject) -> None:
    """Whatever the table and the width: each cell is there, unless its column is spare."""
    count = data.draw(st.integers(1, 7))
    columns = [f"Column{index}" for index in range(count)]
    rows = data.draw(st.lists(st.tuples(*[CELLS] * count), min_size=1, max_size=5))
    spare = data.draw(st.lists(st.sampled_from(columns), unique=True))
    folds = data.draw(st.sets(st.sampled_from(columns)))
    width = data.draw(st.sampled_from((20, 40, *WIDTHS)))
    layout = arrange(columns, rows, width, spare, folds)
    assert set(layout.left_out) <= set(spare)
    assert layout.shown, "a table of no column cannot be printed"
    if layout.is_blocks:
        assert not layout.left_out and not layout.once
        return
    assert not layout.once or len(rows) > 1
    assert max(layout.once, default=-1) < min(layout.shown, default=count), "the first columns"
    assert all(len({row[index] for row in rows}) == 1 for index in layout.once)
    gaps = 2 * (len(layout.widths) - 1)
    assert sum(layout.widths) + gaps <= width
    for index, wide in zip(layout.shown, layout.widths, strict=True):
        needs = max(cell_len(each) for each in (columns[index], *(row[index] for row in rows)))
        assert wide >= (min(needs, FOLD_AT_LEAST) if columns[index] in folds else needs)
    hidden = set(range(count)) - set(layout.shown) - set(layout.once)
    for index in hidden - {columns.index(name) for name in layout.left_out}:
        assert all(row[index] in ("", "-") for row in rows)


@settings(max_examples=200)
@given(rows=st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=4))
@example(rows=[("a" * 60, "b" * 60, "c" * 60)])
@example(rows=[("a" * 60, "b" * 30, "c" * 60)] * 2)
@pytest.mark.parametrize("width", [20, 40, *WIDTHS])
def test_all_that_is_shown_can_be_read_again(width: int, rows: list[tuple[str, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        said: list[str] = []
        patch.setattr(click, "echo", lambda line: said.append(click.unstyle(line)))
        patch.setattr("builtins.print", lambda line="": said.append(line))
        patch.setattr("sys.stdout.isatty", lambda: True, raising=False)
        patch.setenv("COLUMNS", str(width))
        output.print_table(["A", "Bcd", "Efghi"], rows, folds=["Bcd"])
        assert all(cell_len(line) <= width for line in said), said
        text = re.sub(r"\s", "", "".join(said))
        once = arrange(["A", "Bcd", "Efghi"], rows, width, folds=["Bcd"]).once
        rows = [
            rows[0],
            *(tuple("" if i in once else x for i, x in enumerate(r)) for r in rows[1:]),
        ]
        for character in set("".join(map("".join, rows))) - {" "}:
            assert text.count(character) >= sum("".join(row).count(character) for row in rows) - (
                sum(row.count("-") for row in rows) if character == "-" else 0
            )


LONG_TOPIC = "payments.orders.settled.europe-west.v2"
MEMBER = "order-service-7f9c6d5b8-x2x4l-3f0f8a0e-1d7b-4e86-9f0a-5d1d2f3c4b5a"


@pytest.mark.parametrize("width", WIDTHS)
def test_the_lag_of_a_group_is_whole(terminal: Terminal, capsys: Capture, width: int) -> None:
    terminal(width)
    offsets = [
        {
            "topic": LONG_TOPIC,
            "partition": index,
            "current_offset": 1_234_567_890 + index,
            "log_end_offset": 1_234_999_999,
            "lag": 432_109 - index,
            "consumer_id": MEMBER,
            "host": "/10.42.113.207",
            "client_id": "order-service",
        }
        for index in range(3)
    ]
    gates: dict[str, Any] = {"gated": [], "members_without_gates": {}}
    groups._print_offsets({"group": "settlement", "offsets": offsets, **gates})
    text = shown(capsys, width)
    for row in offsets:
        assert all(str(row[name]) in text for name in ("topic", "current_offset", "lag"))


def test_what_all_rows_have_stands_once_above_them(terminal: Terminal, capsys: Capture) -> None:
    """A group of 32 partitions took 224 lines of an 80-column terminal, a block for each."""
    terminal(80)
    rows = [["g" * 40, "t" * 40, index, 10 - index] for index in range(2)]
    output.print_table(["GROUP", "TOPIC", "PARTITION", "LAG"], rows, right=["PARTITION", "LAG"])
    assert shown(capsys, 80).splitlines() == [
        f"GROUP  {'g' * 40}",
        f"TOPIC  {'t' * 40}",
        "",
        "PARTITION  LAG",
        "        0   10",
        "        1    9",
    ]
    terminal(200)
    output.print_table(["GROUP", "TOPIC", "PARTITION", "LAG"], rows)
    assert len(shown(capsys, 200).splitlines()) == 3, "not where all columns have room"


@pytest.mark.parametrize("width", WIDTHS)
def test_a_configuration_has_its_value(terminal: Terminal, capsys: Capture, width: int) -> None:
    terminal(width)
    rows = [
        ["log.cleaner.io.max.bytes.per.second", "1.7976931348623157E308", "DEFAULT_CONFIG"],
        ["listeners", "INTERNAL://10.1.2.3:9092," * 8, "STATIC_BROKER_CONFIG"],
    ]
    entries = [[*row, f"STATIC_BROKER_CONFIG:{row[0]}={row[1]}"] for row in rows]
    configs.print_entries(entries)
    text = shown(capsys, width)
    assert all(row[0] in text for row in rows)
    assert "1.7976931348623157E308" in text
    assert text.count("INTERNAL://10.1.2.3:9092") >= 7


@pytest.mark.parametrize("width", WIDTHS)
def test_a_described_topic_has_its_partitions(
    terminal: Terminal, capsys: Capture, width: int
) -> None:
    terminal(width)
    partitions: list[dict[str, Any]] = [
        {
            "partition": index,
            "leader": 1001,
            "replicas": [1001, 1002, 1003],
            "isr": [1001, 1002],
            "offline": [],
            "leader_epoch": 123,
        }
        for index in range(2)
    ]
    topics.print_partitions(partitions, moves=False, resizes=False)
    text = shown(capsys, width)
    assert "1001,1002,1003" in text
    assert "Offline" not in text, "an empty column says nothing"


@pytest.mark.parametrize("width", WIDTHS)
def test_copies_say_what_they_wait_for(terminal: Terminal, capsys: Capture, width: int) -> None:
    terminal(width)
    why = "waits until broker 1002 has room in /var/lib/tidelog/data for the 12.3 GB that it lacks"
    where = TopicPartition(LONG_TOPIC, 117)
    copy = TargetProgress(where, 1002, 12_000_000_000, 40_000_000_000, 50e6, why)
    tables.print_copies([copy])
    text = shown(capsys, width)
    assert f"{LONG_TOPIC}-117" in text
    assert "Copied" in text, "the names of columns are words, not classes"
    assert "CostOf" not in text
    assert "1002" in text
    assert all(word in text for word in why.split())


@pytest.mark.parametrize("width", WIDTHS)
def test_loads_have_before_and_after(terminal: Terminal, capsys: Capture, width: int) -> None:
    terminal(width)
    before = {1001: Load(1_234, 567, 12_345_678_901_234), 1002: Load(0, 0, 0)}
    after = {1001: Load(617, 283, 6_172_839_450_617), 1002: Load(617, 284, 6_172_839_450_617)}
    racks = {1001: "europe-west1-b/ip-10-42-113-207", 1002: None}
    tables.print_loads(before, after, racks)
    text = shown(capsys, width)
    assert "1234 → 617" in text and "567 → 283" in text
    assert "11.2 TiB → 5.6 TiB" in text and racks[1001] in text


@pytest.mark.parametrize("width", WIDTHS)
def test_an_unclean_election_has_its_losses(
    terminal: Terminal, capsys: Capture, width: int
) -> None:
    terminal(width)
    lost = {"from_offset": 60, "to_offset": 1_234_567_890, "epochs": [5, 6], "replicas": [1001]}
    election = {
        "topic": LONG_TOPIC,
        "partition": 3,
        "leader": 1002,
        "leader_epoch": 7,
        "log_end_offset": 60,
        "log_end_epoch": 5,
        "handled": True,
        "lost": [lost] * 2,
        "lost_offsets": 1_234_567_830,
    }
    doctor_unclean.print_elections([election])
    text = shown(capsys, width)
    assert f"{LONG_TOPIC}-3" in text
    assert "1234567830" in text and "60-1234567889" in text


def test_what_is_left_out_is_said(terminal: Terminal, capsys: Capture) -> None:
    terminal(40)
    output.print_table(
        ["Name", "Size", "Source"], [["n" * 20, "1" * 12, "s" * 20]], spare=["Source"]
    )
    said = capsys.readouterr()
    assert "s" * 20 not in said.out
    assert said.err == "not shown at 40 columns: Source; --json has them\n"


def test_without_any_room_each_row_is_a_block(terminal: Terminal, capsys: Capture) -> None:
    terminal(30)
    output.print_table(["Name", "Value"], [["n" * 25, "v" * 25], ["m", "w " * 20 + "w"]])
    assert shown(capsys, 30).splitlines() == [
        *(f"Name   {'n' * 23}", f"{' ' * 7}nn", f"Value  {'v' * 23}", f"{' ' * 7}vv", ""),
        *("Name   m", f"Value  {'w ' * 10}w", f"{' ' * 7}{'w ' * 9}w"),
    ]


@pytest.mark.parametrize("same", ["g", "gh"])
def test_a_table_whose_other_columns_are_all_spare_is_blocks(
    terminal: Terminal, capsys: Capture, same: str
) -> None:
    """It failed: below the line of the group no column was left."""
    terminal(40)
    rows = [[letter * 50, "s" * 50] for letter in (same[0], same[-1])]
    output.print_table(["GROUP", "STATE"], rows, spare=["STATE", "GROUP"][: len(same)])
    said = capsys.readouterr()
    text = click.unstyle(said.out)
    assert all(text.count(letter) >= 50 for letter in same)
    assert text.count("s") == 100 and not said.err


@pytest.mark.parametrize("option", ["right", "spare", "folds"])
def test_a_column_that_the_table_does_not_have_is_a_bug(option: str) -> None:
    with pytest.raises(ValueError, match="Sizes"):
        output.print_table(["Name", "Size"], [["a", 1]], **{option: ["Sizes"]})  # type: ignore[arg-type]
