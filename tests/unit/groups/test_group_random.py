"""Many members with random events: what must hold of every group, whatever happens.

A failing seed is in the assertion; ``run(seed)`` replays it.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.group_driver import GROUP, Driver, subscription
from tidelog.groups.decision import StoreAssignment
from tidelog.groups.events import DeleteGroup, Expire, JoinResult, Leaver, RemoveTopics, SyncResult
from tidelog.groups.group import Group, GroupState
from tidelog.groups.settings import GroupSettings
from tidelog.model.errors import ErrorCode

SETTINGS = GroupSettings(
    group_initial_rebalance_delay_ms=500,
    group_min_session_timeout_ms=1_000,
    group_max_size=8,
    offsets_retention_minutes=2,
)
PATIENCE_MS = 400_000
"""No request waits longer: five minutes for a new member, and the rebalance timeouts used here."""


class Client:
    """One consumer process: does what a client would, or anything else."""

    def __init__(self, name: int) -> None:
        self.instance_id = f"i{name}" if name % 3 == 0 else None
        self.host = f"/{name % 4}"
        self.forget()

    def forget(self) -> None:
        self.member_id = ""
        self.generation = -1
        self.leads = False
        self.members: tuple[str, ...] = ()
        self.next = "join"
        self.waits = 0


class World:
    """The driver, its clients, and the checks."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.driver = Driver(SETTINGS, seed, hold=True)
        self.random = self.driver.random
        self.clients = [Client(name) for name in range(9)]
        self.waiting: dict[int, tuple[Client, int]] = {}
        self.seen = 0
        self.shares: dict[int, dict[str, bytes]] = {}
        self.leaders: dict[int, str] = {}

    def step(self) -> None:
        client, roll = self.random.choice(self.clients), self.random.random()
        if roll < 0.68:
            # What a real client would do next; the rest is what should not happen, but does.
            if client.waits:
                self.driver.commit(1)
            else:
                self.act(client, client.next)
        elif roll < 0.78:
            self.driver.commit(self.random.randrange(1, 4))
        elif roll < 0.82:
            self.driver.advance(self.random.choice([1, 50, 400, 1_500]))
        elif roll < 0.90:
            at = (self.random.choice("tuv"), self.random.randrange(3))
            who = (client.member_id, client.generation) if self.random.random() < 0.7 else ("", -1)
            self.driver.commit_offsets({at: self.random.randrange(1_000)}, *who)
        elif roll < 0.985:
            self.act(client, self.random.choice(["join", "sync", "heartbeat", "heartbeat"]))
        else:
            self.disturb(client)
        self.take_answers()
        self.check()

    def act(self, client: Client, what: str) -> None:
        d = self.driver
        if what == "join":
            self.park(
                client, d.join(client.member_id, host=client.host, **self.join_options(client))
            )
        elif what == "sync":
            shares = {
                name: f"{client.generation} {name}".encode()
                for name in client.members
                if client.leads and self.random.random() < 0.95
            }
            pending_response = d.sync(
                client.member_id, client.generation, shares, instance_id=client.instance_id
            )
            self.park(client, pending_response)
        else:
            member_id = client.member_id or "stranger"
            error = d.heartbeat(member_id, client.generation, client.instance_id)
            if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                client.forget()
            elif error is not ErrorCode.NONE:
                client.next = "join"

    def disturb(self, client: Client) -> None:
        d, what = self.driver, self.random.randrange(7)
        if what == 0:
            d.leave(Leaver(client.member_id, client.instance_id))
            client.forget()
        elif what == 1:
            client.forget()
        elif what == 2:
            d.send(RemoveTopics(frozenset(self.random.choice("tuv"))))
        elif what == 3:
            d.send(DeleteGroup(d.pending_response()))
        elif what == 4:
            d.send(Expire())
        elif what == 5:
            self.change_coordinator()
        elif d.in_flight:
            d.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)

    def join_options(self, client: Client) -> dict:  # type: ignore[type-arg]
        topics = ("t", "u") if self.random.random() < 0.02 else ("t",)
        return {
            "instance_id": client.instance_id,
            "session_ms": 8_000,
            "rebalance_ms": 4_000,
            "protocols": (("range", subscription(*topics)), ("sticky", subscription(*topics))),
            "version": self.random.choice([3, 8, 9, 9]),
        }

    def park(self, client: Client, pending_response: int) -> None:
        self.waiting[pending_response] = (client, self.driver.now)
        client.waits += 1

    def take_answers(self) -> None:
        d = self.driver
        for pending_response in [
            pending_response for pending_response in self.waiting if pending_response in d.answers
        ]:
            client, _ = self.waiting.pop(pending_response)
            client.waits = max(client.waits - 1, 0)
            result = d.answers[pending_response]
            if isinstance(result, JoinResult):
                self.joined(client, result)
            elif result.error is not ErrorCode.NONE:
                client.next = "join"
            elif isinstance(result, SyncResult):
                client.next = "heartbeat"
                share = self.shares.get(client.generation, {})
                if client.member_id in share:
                    assert result.assignment == share[client.member_id], self.seed

    def joined(self, client: Client, result: JoinResult) -> None:
        if result.error is ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = result.member_id
        elif result.error is ErrorCode.NONE:
            client.member_id, client.generation = result.member_id, result.generation
            client.leads = result.leader == result.member_id and not result.skip_assignment
            client.members = tuple(member.member_id for member in result.members)
            client.next = "sync"
        elif result.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.forget()

    def change_coordinator(self) -> None:
        old = self.driver
        old.perform(old.table.unload())
        self.take_answers()
        assert not self.waiting, (self.seed, "a client still waits for a coordinator that is gone")
        self.driver = old.reloaded()
        self.driver.hold = True
        self.driver.random = self.random
        self.driver.pending_responses = old.pending_responses
        self.shares.clear()

    def check(self) -> None:
        d = self.driver
        for pending_response, (_, since) in self.waiting.items():
            assert d.now - since <= PATIENCE_MS, (self.seed, pending_response, "waits for ever")
        for write in d.in_flight:
            if isinstance(write.purpose, StoreAssignment):
                value = write.records[0].value
                shares = {m.member_id: m.assignment for m in value.members}  # type: ignore[union-attr]
                known = self.shares.setdefault(write.purpose.generation, shares)
                assert known == shares, (self.seed, "two assignments of one generation")
        group = d.table.get(GROUP)
        assert d.table.held == (0 if group is None else group.held_bytes), self.seed
        if group is not None:
            check_group(group, self.seed)
        held_by = Counter({group.begun_by: group.own_bytes} if group is not None else {})
        for member in group.members.values() if group is not None else ():
            held_by[member.client_host] += member.held_bytes + len(member.assignment)
        assert self.driver.table.held_by == +held_by, self.seed
        assert sum(self.driver.table.groups_by.values()) == len(self.driver.table), self.seed


def check_group(group: Group, seed: int) -> None:
    members = group.members.values()
    assert group.awaiting_joins == sum(m.pending_join is not None for m in members), seed
    assert set(group.static_members.values()) <= set(group.members), seed
    assert group.pending_syncs <= set(group.members), seed
    assert not group.pending_joins & set(group.members), seed
    assert group.metadata_bytes == sum(m.metadata_bytes for m in members), seed
    assert group.member_bytes == sum(m.held_bytes for m in members), seed
    assert group.assignment_bytes == sum(len(m.assignment) for m in members), seed
    assert group.counted_bytes == group.held_bytes, seed
    assert group.counted_own == group.own_bytes and not group.moved, seed
    assert len(group.members) <= 2 * SETTINGS.group_max_size, seed
    assert group.offset_count == sum(map(len, group.offsets.values())), seed
    for name, count in group.supported.items():
        assert count == sum(name in m.protocols for m in members), seed
    if group.state in (GroupState.EMPTY, GroupState.DEAD):
        assert not group.members, seed
    elif members:
        assert group.leader in group.members, seed
    if group.state is GroupState.PREPARING_REBALANCE:
        assert group.deadlines.get("join") is not None, (seed, "a rebalance without an end")
    if group.state is GroupState.COMPLETING_REBALANCE:
        late = group.deadlines.get("sync") is not None or group.storing_generation is not None
        assert late or not group.pending_syncs, (seed, "syncs without an end")
    for member in members:
        assert member.pending_sync is None or group.state is GroupState.COMPLETING_REBALANCE, seed
        timed = group.deadlines.get("session:" + member.member_id) is not None
        assert timed or member.waits, (seed, "a member without an end")


def compare_with_log(driver: Driver, seed: int) -> None:
    """A second coordinator that reads the log knows the same offsets and stable members."""
    other = driver.reloaded()
    assert sorted(driver.table.offsets(GROUP, None)) == sorted(other.table.offsets(GROUP, None)), (
        seed
    )
    here, there = driver.table.get(GROUP), other.table.get(GROUP)
    if here is None or here.state is not GroupState.STABLE:
        return
    assert there is not None, seed
    if len(here.members) > SETTINGS.group_max_size:
        # Static members that missed a rebalance stay beside those it had room for, as in Kafka;
        # whoever loads such a group lets it rebalance.
        assert there.state is GroupState.PREPARING_REBALANCE, seed
        return
    assert there.state is GroupState.STABLE, seed
    for what in ("generation", "protocol_type", "protocol_name", "subscribed"):
        assert getattr(there, what) == getattr(here, what), (seed, what)
    assert shares(there) == shares(here), seed


def shares(group: Group) -> list[tuple[str, bytes, bool]]:
    """Each member's share, and the leader. A static member goes by its instance id: when the log
    refused its newest member id, the one before is on record; either is replaced on its return."""
    return [
        (m.instance_id or m.member_id, m.assignment, group.leader == m.member_id)
        for m in group.members.values()
    ]


def run(seed: int, steps: int = 1_500) -> Driver:
    world = World(seed)
    for step in range(steps):
        world.step()
        if step % 50 == 49:
            world.driver.commit()
            world.take_answers()
            compare_with_log(world.driver, seed)
    # In the end everyone falls silent: every request is answered, every member goes.
    world.driver.hold = False
    world.driver.commit()
    world.driver.advance(PATIENCE_MS)
    world.take_answers()
    assert not world.waiting, (seed, "a request was never answered")
    group = world.driver.table.get(GROUP)
    assert group is None or group.state is GroupState.EMPTY, seed
    world.driver.advance(2 * 60_000 + 1)
    world.driver.send(Expire())
    assert len(world.driver.table) == 0, seed
    assert world.driver.table.next_deadline_ms is None, seed
    return world.driver


@pytest.mark.parametrize("seed", range(20))
def test_random_members(seed: int) -> None:
    run(seed)


def test_a_seed_is_a_whole_history() -> None:
    first, second = run(4711), run(4711)
    assert first.log == second.log
    assert len(first.log) > 20
