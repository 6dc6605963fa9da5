"""ListGroups and DescribeGroups: the views of groups for tools.

Owns these views; they change no group. Source: KIP-518 (states filter), KIP-848 (types filter).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tidelog.groups.group import Group, GroupState

CLASSIC_TYPE = "classic"
"""The type of every group that these rules run (KIP-848 has others)."""


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """One line of ListGroups."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str = CLASSIC_TYPE


@dataclass(frozen=True, slots=True)
class DescribedMember:
    """One member in DescribeGroups. ``subscription`` is empty unless the group is Stable;
    ``assignment`` is the last one that was sent, which a member uses until it joins again."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A group in DescribeGroups; ``protocol_name`` is empty unless it is Stable."""

    group_id: str
    state: str
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[DescribedMember, ...] = ()


def list_groups(
    groups: Sequence[Group], states: Iterable[str] = (), types: Iterable[str] = ()
) -> Iterator[ListedGroup | None]:
    """Yield the groups in any of ``states`` and of any of ``types``, and None for each other one.

    None given means all. Case does not matter; an unknown state or type matches nothing.
    """
    wanted_states = {state.lower() for state in states}
    wanted_types = {name.lower() for name in types}
    if wanted_types and CLASSIC_TYPE not in wanted_types:
        return
    for group in groups:
        if wanted_states and group.state.value.lower() not in wanted_states:
            yield None
        else:
            yield ListedGroup(group.group_id, group.protocol_type or "", group.state.value)


def describe_group(group_id: str, group: Group | None) -> DescribedGroup:
    """Return a group for DescribeGroups; an unknown one is Dead, without an error."""
    if group is None or group.state is GroupState.DEAD:
        return DescribedGroup(group_id, GroupState.DEAD.value)
    stable = group.state is GroupState.STABLE
    name = group.protocol_name or ""
    members = tuple(
        DescribedMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.protocols.get(name, b"") if stable else b"",
            member.assignment,
        )
        for member in group.members.values()
    )
    return DescribedGroup(
        group_id, group.state.value, group.protocol_type or "", name if stable else "", members
    )
