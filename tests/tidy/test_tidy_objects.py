"""An object is small over its whole inheritance, and no other file uses its private names.

A class that is cut into parents, one in each file, passes every limit of a file and is one object
all the same. So the limits are of the whole chain, with each exception named and its reason; an
exception that is no longer needed, or that allows more than there is, fails too.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.support.objects import Figures, figures_of, private_names
from tests.support.repository import PRODUCT, PYTHON, ROOT, parsed, text_of, where

MOST = Figures(attributes=18, methods=40, lines=600)

PARENTS = "cut by inheritance: becomes parts"
STATE = "a table of what is known, whose rules are functions in other modules"
WIDE = "one class with several tasks: becomes parts"
RECORD = "the finished parts of a process, and one field that is set later"
INTERFACE = "the methods of a public interface, each of which goes to its part"

LARGER: dict[tuple[str, str], tuple[Figures, str]] = {
    ("tidelog/aio/consumer.py", "Consumer"): (Figures(24, 60, 574), INTERFACE),
    ("tidelog/broker/broker.py", "Broker"): (Figures(42, 3, 70), RECORD),
    ("tidelog/broker/control_plane/session.py", "ControllerSession"): (Figures(28, 20, 305), WIDE),
    ("tidelog/broker/partitions/partition.py", "HostedPartition"): (Figures(23, 39, 440), STATE),
    ("tidelog/client/cluster.py", "Cluster"): (Figures(12, 41, 487), WIDE),
    ("tidelog/client/fetching/assigned.py", "FetchedPartition"): (Figures(23, 7, 127), STATE),
    ("tidelog/client/groups/group_member.py", "GroupMember"): (Figures(20, 31, 413), WIDE),
    ("tidelog/client/producing/send_queue.py", "SendQueue"): (Figures(22, 21, 275), WIDE),
    ("tidelog/controller/decisions/cluster.py", "ClusterState"): (Figures(49, 22, 271), STATE),
    ("tidelog/groups/group.py", "Group"): (Figures(37, 26, 308), STATE),
    ("tidelog/storage/directory/log_directory.py", "LogDirectory"): (Figures(22, 32, 408), WIDE),
    ("tidelog/storage/log/partition_log.py", "PartitionLog"): (Figures(39, 9, 222), PARENTS),
    ("tidelog/storage/log/state.py", "LogState"): (Figures(39, 9, 180), STATE),
    ("tidelog/storage/segments/apart.py", "SegmentApart"): (Figures(22, 35, 429), PARENTS),
    ("tidelog/storage/segments/segment.py", "Segment"): (Figures(22, 33, 373), WIDE),
}
"""Objects above the limits: how large each is at most, and why it is."""

SHARED_WITHIN: dict[str, tuple[set[str], str]] = {
    "tidelog/aio/consumer.py": (
        {"_cluster", "_counts", "_matching", "_offsets", "_refuse_closed"},
        PARENTS,
    ),
    "tidelog/client/cluster.py": ({"_send_to_any"}, PARENTS),
    "tidelog/storage/segments/apart.py": ({"_disk"}, PARENTS),
}
"""Files that use private names of classes in other files, which, and why."""

MOST_PRIVATE_PLACES_IN_TESTS = 454
"""Places of tests that use a private name of the product: none is added, and each change of a class
takes its own away. Lower the number with them."""


def exceeds(one: Figures, limit: Figures) -> bool:
    return (
        one.attributes > limit.attributes or one.methods > limit.methods or one.lines > limit.lines
    )


def at_least(limit: Figures, larger: Figures) -> Figures:
    """Return the limit of an exception: what it does not exceed stays within the common limit."""
    return Figures(
        max(limit.attributes, larger.attributes),
        max(limit.methods, larger.methods),
        max(limit.lines, larger.lines),
    )


@cache
def of_product() -> dict[tuple[str, str], Figures]:
    return figures_of(PRODUCT, ROOT / "src")


def test_an_object_is_small_over_its_whole_inheritance() -> None:
    found = of_product()
    limits = {place: at_least(MOST, larger) for place, (larger, _) in LARGER.items()}
    too_large = {
        place: one for place, one in found.items() if exceeds(one, limits.get(place, MOST))
    }
    assert too_large == {}, "compose it of parts that each own something"


def test_each_exception_is_needed() -> None:
    found = of_product()
    assert [place for place in LARGER if place not in found] == []
    small = [place for place in LARGER if not exceeds(found[place], MOST)]
    assert small == [], "these are within the limits now: remove them from the list"


def of_others(path: Path) -> list[tuple[int, str]]:
    """Return (line, name) of each private name of the product that another file gives."""
    names = private_names(parsed(path))
    others = every_private_name() - names.given
    return [(line, name) for line, name in names.used if name in others]


@cache
def every_private_name() -> set[str]:
    return set().union(*(private_names(parsed(path)).given for path in PRODUCT))


def test_no_private_name_of_a_class_is_used_from_another_file() -> None:
    shared = {ROOT / "src" / file: names for file, (names, _) in SHARED_WITHIN.items()}
    found = {
        where(path, line): name
        for path in PRODUCT
        for line, name in of_others(path)
        if name not in shared.get(path, ())
    }
    assert found == {}


def test_each_private_name_that_is_shared_still_is() -> None:
    unused = {}
    for file, (names, _) in SHARED_WITHIN.items():
        left = names - {name for _, name in of_others(ROOT / "src" / file)}
        if left:
            unused[file] = left
    assert unused == {}


def test_tests_use_at_most_so_many_private_names() -> None:
    places = [
        where(path, line)
        for path in PYTHON
        if path.is_relative_to(ROOT / "tests") and "._" in text_of(path)
        for line, _ in of_others(path)
    ]
    assert len(places) <= MOST_PRIVATE_PLACES_IN_TESTS, "a test that needs one asks for another cut"


PARENT = """
class Parent:
    def __init__(self):
        self.a = self._b = 1
        self.a, self.c = 1, 2
    def move(self): ...
"""

CHILD = """
from parent import Parent as Former
class Child(Former):
    def __init__(self):
        self.d = 1
    def move(self): ...
    def look(self): ...
@dataclass(slots=True)
class State:
    e: int
    f: int = 0
@dataclass(frozen=True)
class Value:
    g: int
"""


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (("parent.py", "Parent"), Figures(3, 2, 5)),
        (("child.py", "Child"), Figures(4, 3, 10)),
        (("child.py", "State"), Figures(2, 0, 3)),
        (("child.py", "Value"), Figures(0, 0, 2)),
    ],
)
def test_a_class_counts_with_its_parents(
    tmp_path: Path, place: tuple[str, str], expected: Figures
) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    (tmp_path / "child.py").write_text(CHILD)
    paths = [tmp_path / "parent.py", tmp_path / "child.py"]
    assert figures_of(paths, tmp_path)[place] == expected


def test_private_names_are_found_where_they_are_given_and_where_they_are_used() -> None:
    given = ast.parse("class A:\n __slots__ = ('_s',)\n _n: int\n def _m(self): self._a = 1\n")
    assert private_names(given).given == {"_s", "_n", "_m", "_a"}
    used = ast.parse("x._a\nx.__class__\nx._replace()\nself._m()\nx.b\n")
    assert private_names(used).used == [(1, "_a"), (4, "_m")]
