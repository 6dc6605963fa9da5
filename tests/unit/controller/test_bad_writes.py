"""Sequences of bad writes by other programs to a topic and a state, while a controller is active.

Every sequence of up to three writes is made, then the operator puts the right nodes back, in each
order. After each write must hold:

- no FULL and no stop takes a replica away, and no broker outside of the ISR leads;
- each damage is named once;
- what is not taken as it was written is named.

After the repair all is as before. Where both nodes say something else, each sound by itself, the
state has to be put back first, as the line says.
"""

from __future__ import annotations

import json
from itertools import pairwise, permutations, product

import pytest

from tests.support.restarted_world import (
    BEHIND,
    BROKERS,
    STORIES,
    T0,
    Restarted,
    Story,
    Wrong,
    missing,
    of_another,
    older,
    torn,
)
from tidelog.controller.decisions.external_changes import Taken, changed, take_up
from tidelog.controller.decisions.reported_command import ReportedCommand
from tidelog.metadata import layout
from tidelog.metadata.records import PartitionState
from tidelog.metadata.store import Node
from tidelog.model.registration import FormerRegistration

TOPIC, STATE = layout.topic("t"), layout.state(*T0)
STORY = STORIES["grown"]
Write = tuple[str, Wrong]


def with_fields(story: Story, path: str, **fields: object) -> bytes:
    return json.dumps({**json.loads(story.nodes[path].data), **fields}).encode()


def assigned(story: Story, *replicas: int) -> bytes:
    partitions = json.loads(story.nodes[TOPIC].data)["partitions"]
    return with_fields(story, TOPIC, partitions={**partitions, "0": replicas})


def assigned_elsewhere(story: Story, path: str) -> bytes | None:
    return assigned(story, 4, 5, 6)


def assigned_to_one(story: Story, path: str) -> bytes | None:
    return assigned(story, BEHIND)


def led_elsewhere(story: Story, path: str) -> bytes | None:
    epoch = json.loads(story.nodes[STATE].data)["leader_epoch"] + 3
    return with_fields(story, STATE, leader=4, isr=[4, 5], leader_epoch=epoch)


def below(story: Story, path: str) -> bytes | None:
    """An older state, with a replica that lacks records."""
    return with_fields(story, STATE, leader=BEHIND, isr=[BEHIND], leader_epoch=1)


BAD: list[Write] = [
    *((TOPIC, x) for x in (missing, torn, older, of_another, assigned_elsewhere, assigned_to_one)),
    *((STATE, x) for x in (missing, torn, older, led_elsewhere, below)),
]


class Attacked(Restarted):
    """All brokers are there, and this controller knows the right nodes."""

    def __init__(self, story: Story) -> None:
        super().__init__(story, dict(story.nodes))
        for broker in BROKERS:
            self.arrive(broker, FormerRegistration.SAME)

    def write_outside(self, path: str, data: bytes | None) -> Taken | None:
        """Another program writes or removes a node; what must hold then does."""
        before = set(self.cluster.damaged)
        if data is None:
            taken = self.remove(path) if path in self.tree.nodes else None
        else:
            taken = self.put(path, data)
            assert self.is_taken(path, data) or any(path in x for x in taken.errors), "silent"
        for new in self.cluster.damaged.keys() - before:
            assert taken is not None
            assert taken.errors.count(str(self.cluster.damaged[new])) == 1, new
        self.check_served()
        return taken

    def remove(self, path: str) -> Taken:
        del self.tree.nodes[path]
        draft = self.cluster.draft()
        decision = take_up(draft, changed(self.cluster, {path: None}), self.chance, deletes=True)
        self.cluster.adopt(draft)
        self.write(decision.writes)
        return decision.answer

    def is_taken(self, path: str, data: bytes) -> bool:
        """Whether the store has what was written, or what an election has made of it."""
        node = self.nodes().get(path)
        stored, given = (layout.decode(path, x) for x in (b"" if node is None else node.data, data))
        if isinstance(stored, PartitionState) and isinstance(given, PartitionState):
            is_later = stored.leader_epoch > given.leader_epoch
            return stored == given or (is_later and set(stored.isr) <= set(given.isr))
        return stored == given

    def check_served(self) -> None:
        for broker in BROKERS:
            self.check_sent(broker)
        for tp, state in self.cluster.states.items():
            if self.cluster.replicas(tp):
                assert state.leader != BEHIND and set(state.isr) <= set(BROKERS), f"{tp}: {state}"


def judge(bad: tuple[Write, ...], order: tuple[str, ...]) -> None:
    world = Attacked(STORY)
    for path, wrong in bad:
        world.write_outside(path, wrong(STORY, path))
    for path in order:
        world.write_outside(path, STORY.nodes[path].data)
    if world.cluster.damaged:
        # Another program has written both, so neither shows which one is wrong.
        kinds = {wrong for _, wrong in bad}
        assert led_elsewhere in kinds and kinds & {assigned_elsewhere, assigned_to_one}
        assert order == (TOPIC, STATE)
        world.write_outside(TOPIC, STORY.nodes[TOPIC].data)
    world.check_repaired()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_no_sequence_of_bad_writes_deletes_anything_or_outlives_its_repair(count: int) -> None:
    failed: dict[str, str] = {}
    for bad in product(BAD, repeat=count):
        if any(one == other for one, other in pairwise(bad)):
            continue
        for order in permutations(sorted({path for path, _ in bad})):
            try:
                judge(bad, order)
            except AssertionError as error:  # The others go on.
                steps = " > ".join(f"{path} {wrong.__name__}" for path, wrong in bad)
                failed[f"{steps}; {order}"] = str(error)[:300]
    shown = "\n".join(f"{x}: {y}" for x, y in list(failed.items())[:12])
    assert not failed, f"{len(failed)}:\n{shown}"


def test_a_state_that_is_restored_beside_a_wrong_assignment_stays_damaged() -> None:
    """The write that restored it ended its damage: a FULL left out the brokers that the assignment
    does not name, and they removed their replicas."""
    world = Attacked(STORY)
    for path, wrong in ((TOPIC, torn), (TOPIC, assigned_to_one), (STATE, torn)):
        world.write_outside(path, wrong(STORY, path))
    taken = world.write_outside(STATE, STORY.nodes[STATE].data)
    assert taken is not None and any("the newest one is restored" in x for x in taken.errors)
    assert "assigns the partition to [3]" in str(world.cluster.damaged[STATE])
    assert set(world.cluster.hosts(T0)) == set(BROKERS)
    world.write_outside(TOPIC, STORY.nodes[TOPIC].data)
    world.check_repaired()


def test_a_topic_is_put_right_before_its_state_that_cannot_be_read() -> None:
    """The right assignment was replaced by the wrong one, which no state had agreed with."""
    world = Attacked(STORY)
    for path, wrong in ((TOPIC, torn), (TOPIC, assigned_elsewhere), (STATE, torn)):
        world.write_outside(path, wrong(STORY, path))
    taken = world.write_outside(TOPIC, STORY.nodes[TOPIC].data)
    assert taken is not None and taken.errors == []
    assert list(world.cluster.damaged) == [STATE]
    world.write_outside(STATE, STORY.nodes[STATE].data)
    world.check_repaired()


def test_a_state_that_is_missing_beside_a_torn_topic_is_named_and_not_forgotten() -> None:
    """It was forgotten without a line: an older copy then counted as the newest state."""
    world = Attacked(STORY)
    newest = world.cluster.states[T0]
    world.write_outside(TOPIC, torn(STORY, TOPIC))
    taken = world.write_outside(STATE, None)
    assert taken is not None
    (line,) = taken.errors
    assert f"{STATE} cannot be read: it is missing, and {TOPIC} cannot be read" in line
    assert world.cluster.damaged[STATE].former == newest
    world.write_outside(TOPIC, STORY.nodes[TOPIC].data)
    assert world.cluster.damaged[STATE].former == newest
    taken = world.write_outside(STATE, below(STORY, STATE))
    assert taken is not None and any("the newest one is restored" in x for x in taken.errors)
    assert world.cluster.states[T0].isr == newest.isr
    assert world.cluster.damaged == {}


def test_a_missing_state_is_named_no_longer_once_its_topic_is_gone() -> None:
    world = Attacked(STORY)
    world.write_outside(TOPIC, torn(STORY, TOPIC))
    for path in (STATE, layout.topic_history("t")):
        world.remove(path)
    assert STATE in world.cluster.damaged
    for path in [x for x in world.nodes() if layout.topic_of(x) == "t"]:
        world.remove(path)
    assert not {x for x in world.cluster.damaged if layout.topic_of(x) == "t"}


def test_a_state_that_contradicted_its_topic_is_no_known_one_after_that_is_torn() -> None:
    """The right state was replaced by the one that had been damaged."""
    world = Attacked(STORY)
    path, data = STATE, led_elsewhere(STORY, STATE)
    assert data is not None
    node = world.tree.nodes[path]
    world.tree.nodes[path] = type(node)(data, node.node.version + 1, None)
    world.begin()  # It is there when the next controller starts.
    assert list(world.cluster.damaged) == [STATE]
    for broker in BROKERS:
        world.arrive(broker, FormerRegistration.SAME)
    world.put(TOPIC, torn(STORY, TOPIC) or b"")
    assert list(world.cluster.damaged) == [TOPIC]
    assert world.put(STATE, STORY.nodes[STATE].data).errors == []
    world.put(TOPIC, STORY.nodes[TOPIC].data)
    world.check_repaired()


def repaired_too_low(nodes: dict[str, Node]) -> Restarted:
    """The state is torn when the controller begins; the operator writes one with a low epoch."""
    nodes = {**nodes, STATE: Node(b"torn", nodes[STATE].version)}
    world = Restarted(STORY, nodes)
    world.put(STATE, with_fields(STORY, STATE, leader_epoch=2))
    assert world.cluster.damaged == {}
    return world


@pytest.mark.parametrize("is_commanded", [False, True], ids=["records", "a command"])
def test_a_state_repaired_with_a_low_epoch_is_damaged_and_the_store_is_not(
    is_commanded: bool,
) -> None:
    """The whole store counted as an older copy, and no broker was commanded."""
    world = repaired_too_low(STORY.nodes)
    newest = STORY.states[T0].leader_epoch
    commands = {}
    if is_commanded:
        # The last epoch began, and nothing was written in it.
        newest += 1
        epoch = STORY.right.cluster.partition_nodes[T0].partition_epoch
        commands = {(STORY.topic_id, T0): ReportedCommand(epoch, newest, 3, 2, (2,))}
    world.arrive(1, FormerRegistration.SAME, commands)
    assert world.cluster.went_back is None
    line = str(world.cluster.damaged[STATE])
    assert f"is older than {newest}, which " in line
    assert f"write it with the leader epoch {newest + 1000}" in line
    for broker in (2, 3):
        world.arrive(broker, FormerRegistration.SAME)
    assert list(world.cluster.damaged) == [STATE] and world.cluster.went_back is None
    world.put(STATE, with_fields(STORY, STATE, leader_epoch=newest + 1000))
    world.check_repaired()
    state = world.cluster.states[T0]
    assert state.leader_epoch > newest + 1000 and set(state.isr) <= {1, 2}


def test_a_store_of_a_backup_is_recognised_beside_a_state_that_was_written_by_hand() -> None:
    world = repaired_too_low(STORY.old)
    world.arrive(2, FormerRegistration.SAME)
    assert world.cluster.went_back is not None


def test_a_low_epoch_that_is_there_at_the_start_shows_an_older_store() -> None:
    """Nothing says that it was written by hand, and not restored with the rest."""
    nodes = dict(STORY.nodes)
    nodes[STATE] = Node(with_fields(STORY, STATE, leader_epoch=2), nodes[STATE].version)
    world = Restarted(STORY, nodes)
    world.arrive(2, FormerRegistration.SAME)
    assert world.cluster.went_back is not None and STATE not in world.cluster.damaged
