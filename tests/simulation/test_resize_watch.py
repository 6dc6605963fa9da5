"""What the watchers say of commits about a topic that is resized: good ones and bad ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import msgspec

from tests.simulation.cluster.journal import TOOL, StateWatch
from tests.simulation.cluster.resize_watch import ResizeWatch
from tests.simulation.cluster.store import Commit
from tidelog.metadata import layout
from tidelog.metadata.records import (
    FormerPartition,
    PartitionNode,
    PartitionState,
    Record,
    ResizeKind,
    ResizePlan,
    ResizeStep,
    TopicHistory,
    TopicNode,
    UncleanDebt,
)
from tidelog.metadata.store import Create, Set

ID = layout.id_text(UUID(int=7))
GROWTH = ResizePlan(ResizeKind.GROW, 2, 4, 1, ResizeStep.FENCE)
NODE = TopicNode({0: [1, 2, 3], 1: [2, 3, 1]}, topic_id=ID)


class NoBrokers:
    """A cluster in which no broker runs."""

    brokers: tuple[Any, ...] = ()
    controllers: tuple[Any, ...] = ()

    def __init__(self) -> None:
        self.tree = SimpleNamespace(when_written=None)

    def broker(self, _: int) -> Any:
        return SimpleNamespace(alive=True)


def states_of() -> StateWatch:
    states = StateWatch(NoBrokers(), lambda _: None)  # type: ignore[arg-type]
    states.forgot_its_id = lambda *_, **__: False
    states.id_on_disk = lambda *_: ID
    take(states, {layout.topic("t"): NODE, layout.topic_history("t"): history(None)})
    return states


def history(plan: ResizePlan | None, **more: Any) -> TopicHistory:
    epoch = 0 if plan is None else plan.resize_epoch
    return TopicHistory(ID, 2, resize_epoch=epoch, resize=plan, **more)


def take(states: StateWatch, records: dict[str, Record], *, is_new: bool = False) -> None:
    kind = Create if is_new else Set
    made = tuple(kind(path, layout.encode(record)) for path, record in records.items())
    states.take(Commit(1.0, 1, TOOL, made))


# --- epochs that a resize raises -----------------------------------------------------------------


def unclean() -> tuple[StateWatch, PartitionState]:
    """A partition that broker 1 leads uncleanly, in a plan."""
    states = states_of()
    state = PartitionState(1, 4, 1, [1], is_unclean_leader=True)
    debt = history(GROWTH, unclean={0: UncleanDebt(1, 4)})
    take(states, {layout.topic_history("t"): debt})
    take(states, {layout.state("t", 0): state}, is_new=True)
    return states, msgspec.structs.replace(state, leader_epoch=5)


def test_a_resize_raises_the_epoch_of_an_unclean_leader_and_is_no_election() -> None:
    states, raised = unclean()
    plan = msgspec.structs.replace(GROWTH, cursor=1, leader_epochs=[4])
    after = history(plan, unclean={0: UncleanDebt(1, 4)})
    take(states, {layout.topic_history("t"): after, layout.state("t", 0): raised})
    assert states.found == []
    assert states.elections == 0


def test_an_unclean_election_while_a_plan_stands_is_one() -> None:
    states, raised = unclean()
    same = history(GROWTH, unclean={0: UncleanDebt(1, 5)})
    take(states, {layout.topic_history("t"): same, layout.state("t", 0): raised})
    assert states.elections == 1
    assert [line.partition(":")[0] for line in states.found] == ["unclean_is_allowed"]


# --- plans, births, removals and moves -----------------------------------------------------------


def watch() -> ResizeWatch:
    states = states_of()
    found = ResizeWatch("t", 2, NoBrokers(), states)  # type: ignore[arg-type]
    state = PartitionState(1, 4, 1, [1])
    take(states, {layout.state("t", index): state for index in (0, 1)}, is_new=True)
    return found


def names(found: ResizeWatch) -> set[str]:
    return {line.partition(":")[0] for line in found.found}


def test_a_step_waits_for_the_fences_of_the_one_before() -> None:
    found = watch()
    step = msgspec.structs.replace(GROWTH, cursor=2)
    found.take(history(GROWTH), history(step), {})
    assert found.found == []
    births = msgspec.structs.replace(GROWTH, step=ResizeStep.BIRTH)
    found.take(history(step), history(births), {})
    assert names(found) == {"fences_come_first"}
    assert len(found.found) == 2


def test_a_partition_is_made_by_a_growth() -> None:
    found = watch()
    births = history(msgspec.structs.replace(GROWTH, step=ResizeStep.BIRTH))
    found.take(births, births, {2: PartitionNode(9, birth_epoch=1)})
    assert found.found == []
    found.take(None, history(GROWTH), {2: PartitionNode(9)})
    found.take(None, births, {3: PartitionNode(9)})
    assert names(found) == {"only_a_growth_makes_partitions"}
    assert len(found.found) == 2


def test_nothing_is_removed_during_a_resize_but_what_an_undo_removes() -> None:
    found = watch()
    former = {3: FormerPartition(5, 1, 4, 9, 1)}
    found.take(history(None), history(None, former=former), {})
    undo = ResizePlan(ResizeKind.UNDO, 4, 2, 2, ResizeStep.REOPEN)
    found.take(history(undo), history(undo, former=former), {})
    assert found.found == []
    found.take(history(GROWTH), history(GROWTH, former=former), {})
    assert names(found) == {"no_removal_during_a_resize"}


def test_a_move_and_a_resize_exclude_each_other() -> None:
    found = watch()
    moves = PartitionState(1, 5, 1, [1], target_replicas=[2])
    done = PartitionState(2, 6, 1, [2])
    none, plan = history(None), history(GROWTH)
    found.take_moves(none, none, {0: moves}, ())
    assert found.moving == {0}
    found.take_moves(none, none, {0: done}, ())
    found.take_moves(none, plan, {}, ())
    assert found.found == []
    found.take_moves(plan, plan, {1: moves}, ())
    assert names(found) == {"no_move_meets_a_resize"}
    found.take_moves(none, plan, {}, ())
    assert len(found.found) == 2
    found.take_moves(plan, none, {}, (1,))
    assert not found.moving
