"""Which groups count as readers of a topic with retired partitions, by what coordinators answer."""

from __future__ import annotations

import pytest

from tests.support.group_driver import assignment, subscription
from tidelog.controller import retired_requests
from tidelog.controller.retired_requests import take_readers
from tidelog.protocol import messages

Groups = messages.DescribeGroupsResponse


def group(name: str, *members: tuple[bytes, bytes]) -> messages.DescribeGroupsResponse:
    described = [
        Groups.DescribedGroupMember(member_metadata=metadata, member_assignment=given)
        for metadata, given in members
    ]
    return Groups(groups=[Groups.DescribedGroup(group_id=name, members=described)])


def readers(answer: messages.DescribeGroupsResponse, *names: str) -> dict[str, list[str]]:
    found: dict[str, dict[str, dict[int, int]]] = {}
    assert take_readers(answer, names, found) == 0
    return {topic: sorted(groups) for topic, groups in found.items()}


def test_a_group_reads_what_its_members_subscribe_to_or_were_given() -> None:
    answer = group("g", (subscription("t"), assignment(u=[0])))
    assert readers(answer, "t", "u", "v") == {"t": ["g"], "u": ["g"]}


def test_a_member_that_says_nothing_or_nothing_readable_may_read_any_topic() -> None:
    for member in ((b"", b""), (b"\0", b""), (subscription("u"), b"\0\0\0")):
        assert readers(group("g", member), "t") == {"t": ["g"]}


def test_beyond_the_limit_of_entries_every_member_may_read_any_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A group may have 16 MB of them, and the controller's loop would stand still."""
    monkeypatch.setattr(retired_requests, "MOST_ENTRIES_READ", 3)
    within = group("g", (subscription("u"), assignment(u=[0])), (subscription("u"), b""))
    assert readers(within, "t", "u") == {"u": ["g"]}
    beyond = group("g", (subscription("u", "v"), assignment(u=[0])), (subscription("u"), b""))
    assert readers(beyond, "t") == {"t": ["g"]}
