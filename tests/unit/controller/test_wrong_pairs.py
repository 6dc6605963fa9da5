"""Every single wrong node of a topic, and every pair of them: nothing is deleted or lost by it.

A topic was moved through elections and a resize; ``OLD`` is the store before them. For each wrong
node and each pair a controller loads the store, brokers register and report what they hold, and a
leader dies. Then the operator puts the right nodes back. What must hold:

- no FULL and no stop takes a replica away;
- no replica that lacks acknowledged records leads, and no leader or partition epoch goes back;
- what is wrong is named in one line, or was put right;
- after the repair all is as before.
"""

from __future__ import annotations

import json
from itertools import combinations

import pytest

from tests.support.restarted_world import (
    BEHIND,
    BROKERS,
    OTHER,
    STORIES,
    T0,
    Restarted,
    Story,
    Wrong,
    missing,
    of_another,
    of_another_partition,
    older,
    torn,
    without_id,
)
from tidelog.controller.decisions import soft_state
from tidelog.controller.decisions.cluster import LoadedStore, LogEnd
from tidelog.controller.decisions.decision import Put
from tidelog.controller.decisions.ended_data import JUMP
from tidelog.controller.decisions.external_changes import take_up
from tidelog.controller.decisions.nodes import judge_reports, note_rewritten
from tidelog.controller.decisions.registration import (
    expire,
)
from tidelog.controller.pending import changes_of_reading
from tidelog.controller.requests import Gone
from tidelog.metadata import layout
from tidelog.metadata.records import Counter, DeletionNode
from tidelog.metadata.store import Node
from tidelog.model.registration import FormerRegistration
from tidelog.model.topics import TopicPartition

KINDS: dict[str, tuple[Wrong, ...]] = {
    layout.topic("t"): (missing, torn, older, of_another, without_id),
    layout.topic_history("t"): (missing, torn, older, of_another),
    layout.partition(*T0): (missing, torn, of_another_partition),
    layout.partition("t", 2): (older,),
    layout.partition("t", 3): (older, of_another_partition),
    layout.state(*T0): (missing, torn, older),
    # A configuration that is missing, or another one, is what a tool may have written.
    layout.topic_configs("t"): (torn,),
}
SINGLE = [(path, wrong) for path, kinds in KINDS.items() for wrong in kinds]
Case = tuple[tuple[str, Wrong], ...]
CASES: list[Case] = [
    *((x,) for x in SINGLE),
    *((x, y) for x, y in combinations(SINGLE, 2) if x[0] != y[0]),
]


def name(case: Case) -> str:
    return ", ".join(f"{path} {wrong.__name__}" for path, wrong in case)


def is_of(story: Story, path: str, wrong: Wrong) -> bool:
    """Return whether a node of a story can be wrong in this way: it is there, and has changed."""
    if path not in story.nodes or (wrong is older and path not in story.old):
        return False
    return wrong(story, path) != story.nodes[path].data


def begun(story: Story, case: Case) -> Restarted:
    nodes = dict(story.nodes)
    for path, wrong in case:
        content = wrong(story, path)
        if content is None:
            del nodes[path]
        else:
            assert content != nodes[path].data
            nodes[path] = Node(content, nodes[path].version)
    return Restarted(story, nodes)


def judge(story: Story, case: Case, ended: FormerRegistration, order: tuple[int, ...]) -> bool:
    """Return whether the store counts as one that went back in time."""
    world, right = begun(story, case), story.right.cluster
    for broker in order:
        world.arrive(broker, ended if broker == 1 else FormerRegistration.SAME)
        world.check_states(BEHIND)
    cluster = world.cluster
    is_right = cluster.topics == right.topics and not {
        path
        for path, _ in case
        if world.nodes().get(path, Node(b"", 0)).data != story.nodes[path].data
    }
    lines = [*map(str, cluster.damaged.values()), *filter(None, [cluster.went_back])]
    assert is_right or lines or _healed(world), "not named"
    assert not any("\n" in x for x in lines)
    world.write(expire(cluster, [2]).writes)
    lost = (1,) if ended is FormerRegistration.UNCLEAN else ()
    world.check_states(BEHIND, 2, *lost)
    if cluster.went_back:
        return True
    world.repair([path for path, _ in case])
    world.check_repaired()
    world.check_states(BEHIND, *lost)
    world.arrive(2, FormerRegistration.CRASHED) if 2 in cluster.brokers else None
    for tp, state in right.states.items():
        assert cluster.states[tp].leader_epoch >= state.leader_epoch
    return False


def _healed(world: Restarted) -> bool:
    cluster, right = world.cluster, world.right
    return (cluster.topics, cluster.topic_histories, cluster.partition_nodes) == (
        right.topics,
        right.topic_histories,
        right.partition_nodes,
    )


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1)])
@pytest.mark.parametrize("ended", [FormerRegistration.SAME, FormerRegistration.UNCLEAN])
def test_no_wrong_node_and_no_pair_of_them_deletes_or_loses_anything(
    story: Story, ended: FormerRegistration, order: tuple[int, ...]
) -> None:
    failed: dict[str, str] = {}
    for case in CASES:
        if not all(is_of(story, path, wrong) for path, wrong in case):
            continue
        try:
            judge(story, case, ended, order)
        except Exception as error:  # Whatever it is: the others go on.
            failed[name(case)] = f"{type(error).__name__}: {error}"[:300]
    shown = "\n".join(f"{x}: {y}" for x, y in failed.items())
    assert not failed, f"{len(failed)} of {len(CASES)}:\n{shown}"


@pytest.mark.parametrize("is_known", [True, False], ids=["while active", "before the start"])
def test_an_older_copy_of_a_state_makes_no_replica_leader_and_no_epoch_go_back(
    is_known: bool,
) -> None:
    """It was taken as it was: broker 3, which lacks acknowledged records, could lead."""
    story = STORIES["grown"]
    path = layout.state(*T0)
    world = begun(story, () if is_known else ((path, torn),))
    for broker in BROKERS:
        world.arrive(broker, FormerRegistration.SAME)
    cluster = world.cluster
    if is_known:
        world.put(path, torn(story, path) or b"")
        assert cluster.states.get(T0) is None
    world.write(expire(cluster, [1, 2]).writes)
    taken = world.put(path, older(story, path) or b"")
    (line,) = [x for x in taken.errors if path in x]
    assert "older" in line and "\n" not in line
    now = cluster.states.get(T0)
    if is_known:
        # What the controller knew is written again; the only members that have all are dead.
        assert now is not None and (now.leader, now.isr) == (-1, [2, 1])
        assert now.leader_epoch > story.states[T0].leader_epoch
        assert not cluster.damaged
        return
    assert now is None and "older than 6, which broker" in str(cluster.damaged[path])
    world.put(path, story.nodes[path].data)
    now = cluster.states[T0]
    assert (now.leader, now.isr, cluster.damaged) == (-1, [2, 1], {})


def test_an_older_copy_of_a_partition_that_was_removed_is_named_before_a_broker_registers() -> None:
    """It was believed: all replicas of the partition that was born again were removed as stale."""
    story, path = STORIES["grown again"], layout.partition("t", 3)
    world = begun(story, ((path, older),))
    line = str(world.cluster.damaged[path])
    assert "its partition epoch 4 was removed" in line and layout.topic_history("t") in line
    world.put(path, story.nodes[path].data)
    assert not world.cluster.damaged


def test_a_partition_copied_before_it_retired_changes_no_count() -> None:
    """The count was drawn from the partitions at once, and a retired one took records again."""
    story, path, topic = STORIES["shrunk"], layout.partition("t", 2), layout.topic("t")
    world = begun(story, ((path, older),))
    assert world.nodes()[topic].data == story.nodes[topic].data
    line = str(world.cluster.damaged[topic])
    assert f"its count is 2, and {path} takes records" in line
    world.put(path, story.nodes[path].data)
    assert not world.cluster.damaged and world.cluster.topics == story.right.cluster.topics


def test_a_replica_of_a_removed_incarnation_is_no_proof_against_the_partition() -> None:
    story = STORIES["grown again"]
    cluster = begun(story, ()).cluster
    assert cluster.topic_histories["t"].former[3].partition_epoch == 4
    key, present = (story.topic_id, 3), cluster.partition_nodes[TopicPartition("t", 3)]
    assert present.partition_epoch == 6

    def lines(epoch: int) -> list[str]:
        cluster.inventories[BEHIND] = {key: LogEnd(epoch, 0, 5)}
        return judge_reports(cluster, cluster.inventories[BEHIND], {story.topic_id: "t"})

    assert [lines(x) for x in (-1, 3, 4, 6)] == [[], [], [], []]
    (other,) = lines(5)
    assert "broker 3 has a replica of 5, which was never removed" in other
    assert lines(6) == [] and not cluster.damaged
    (newer,) = lines(7)
    assert "broker 3 has a replica of 7: put a newer copy back" in newer
    assert lines(6) == [] and not cluster.damaged
    # What was born since this controller began is newer than the reports.
    cluster.loaded = LoadedStore(cluster.revision, 5)
    assert lines(5) == []
    # Not than one of a later incarnation: an older copy was put back.
    (later,) = lines(7)
    assert "broker 3 has a replica of 7: put a newer copy back" in later
    assert lines(6) == [] and not cluster.damaged
    cluster.loaded = LoadedStore(cluster.revision, 9)
    # Of a store that was accepted they are late replicas, which are kept.
    cluster.counters[layout.CONTROLLER_EPOCH] = JUMP
    assert lines(7) == [] and not cluster.damaged


@pytest.mark.parametrize("index", [0, 3], ids=["as created", "born again"])
@pytest.mark.parametrize("is_first", [True, False], ids=["before they register", "after it"])
def test_a_partition_epoch_above_all_that_was_written_by_hand_is_named_and_deletes_nothing(
    is_first: bool, index: int
) -> None:
    """It counted as born since the controller had loaded the store: all replicas became stale."""
    story, path = STORIES["grown again"], layout.partition("t", index)
    world = begun(story, ((path, torn),))
    fields = json.loads(story.nodes[path].data)
    by_hand = json.dumps({**fields, "partition_epoch": story.newest + 1}).encode()

    def come() -> None:
        for broker in BROKERS:
            world.arrive(broker, FormerRegistration.SAME)

    if is_first:
        assert world.put(path, by_hand).errors == []
        come()
    else:
        come()
        (line,) = world.put(path, by_hand).errors
        right = fields["partition_epoch"]
        assert f"has a replica of {right}, which was never removed: put it back" in line
    assert set(world.cluster.damaged) == {path}
    # Also when partitions are born meanwhile, and a broker registers again.
    world.write((Put(layout.PARTITION_EPOCH, Counter(story.newest + 5)),))
    come()
    assert set(world.cluster.damaged) == {path}
    world.repair([path])
    world.check_repaired()


@pytest.mark.parametrize("index", [0, 3], ids=["as created", "born again"])
@pytest.mark.parametrize("is_first", [True, False], ids=["before they register", "after it"])
def test_a_partition_epoch_that_was_written_by_hand_is_named_without_the_history_too(
    is_first: bool, index: int
) -> None:
    """It was believed as long as the history could not be read: all replicas became stale."""
    story, path = STORIES["grown again"], layout.partition("t", index)
    history = layout.topic_history("t")
    world = begun(story, ((path, torn), (history, torn)))
    fields = json.loads(story.nodes[path].data)
    by_hand = json.dumps({**fields, "partition_epoch": story.newest + 1}).encode()
    if is_first:
        world.put(path, by_hand)
    for broker in BROKERS:
        world.arrive(broker, FormerRegistration.SAME)
    if not is_first:
        world.put(path, by_hand)
        for broker in BROKERS:
            world.check_sent(broker)
    line = str(world.cluster.damaged[path])
    assert f"a replica of {fields['partition_epoch']}: put {history} back first" in line
    # The sound node is believed without the history: the replicas are of it.
    world.repair([path])
    assert set(world.cluster.damaged) == {history}
    world.repair([history])
    world.check_repaired()


def test_a_topic_whose_partition_was_written_by_hand_did_not_begin_here() -> None:
    """Its node with another id was believed: all replicas of the topic became stale."""
    story, path = STORIES["never resized"], layout.partition(*T0)
    history, topic = layout.topic_history("t"), layout.topic("t")
    world = begun(story, ((path, torn), (history, torn), (topic, torn)))
    fields = json.loads(story.nodes[path].data)
    world.put(path, json.dumps({**fields, "partition_epoch": story.newest + 1}).encode())
    for broker in BROKERS:
        world.arrive(broker, FormerRegistration.SAME)
    world.put(history, of_another(story, history) or b"")
    world.put(topic, of_another(story, topic) or b"")
    assert "broker 1 has the topic with the id" in str(world.cluster.damaged[topic])
    for broker in BROKERS:
        world.check_sent(broker)
    world.repair([path, history, topic])
    world.check_repaired()


@pytest.mark.parametrize("is_with_history", [True, False], ids=["history", "no history"])
def test_a_partition_epoch_written_by_hand_is_named_after_its_topic_was_missing(
    is_with_history: bool,
) -> None:
    """What other programs had written was forgotten with the topic's node."""
    story, path = STORIES["never resized"], layout.partition(*T0)
    other, topic = layout.partition("t", 1), layout.topic("t")
    history = layout.topic_history("t")
    world = begun(story, ((path, torn), (other, torn)))
    for broker in BROKERS:
        world.arrive(broker, FormerRegistration.SAME)
    fields = json.loads(story.nodes[path].data)
    world.put(path, json.dumps({**fields, "partition_epoch": story.newest + 1}).encode())
    if not is_with_history:
        world.put(history, torn(story, history) or b"")
    del world.tree.nodes[topic]
    take_up(world.cluster, {topic: None}, world.chance, deletes=True)
    world.put(other, story.nodes[other].data)
    world.put(topic, story.nodes[topic].data)
    assert path in world.cluster.damaged
    for broker in BROKERS:
        world.check_sent(broker)
    world.repair([path] if is_with_history else [path, history])
    world.check_repaired()


def test_the_marks_of_a_topic_that_is_gone_are_forgotten() -> None:
    story, other = STORIES["never resized"], layout.partition("u", 0)
    cluster = begun(story, ()).cluster
    note_rewritten(cluster, [layout.partition(*T0)])
    note_rewritten(cluster, [other])
    assert cluster.loaded.rewritten == {T0, TopicPartition("u", 0)}
    note_rewritten(cluster, [layout.partition(*T0)])
    assert cluster.loaded.rewritten == {T0}


def test_a_late_replica_of_a_removed_incarnation_damages_no_node_without_the_history() -> None:
    """The sound node was named as the wrong one, and nothing led the partition."""
    story, tp = STORIES["grown again"], TopicPartition("t", 3)
    history, path = layout.topic_history("t"), layout.partition(*tp)
    world = begun(story, ((history, torn),))
    cluster = world.cluster
    late = {(story.topic_id, 3): LogEnd(4, 0, 5)}
    cluster.inventories[BEHIND] = late
    # As long as no broker has a replica of the node's own incarnation, either may be the former.
    (line,) = judge_reports(cluster, late, {story.topic_id: "t"})
    assert f"a replica of 4: put {history} back first" in line
    assert cluster.damaged[path].others == (history,)
    world.arrive(1, FormerRegistration.SAME)
    judge_reports(cluster, late, {story.topic_id: "t"})
    assert set(cluster.damaged) == {history}
    assert cluster.partition_nodes[tp] == story.right.cluster.partition_nodes[tp]
    # With the history it is no proof at all.
    alone = begun(story, ((history, torn),))
    alone.cluster.inventories[BEHIND] = late
    judge_reports(alone.cluster, late, {story.topic_id: "t"})
    assert path in alone.cluster.damaged
    alone.repair([history])
    assert not alone.cluster.damaged


@pytest.mark.parametrize("epoch", [4, 7])
def test_an_older_replica_of_a_topic_that_cannot_be_read_is_lost_and_a_newer_one_is_not(
    epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica of a removed incarnation counted as the one that was gone."""
    story, tp = STORIES["grown again"], TopicPartition("t", 3)
    held = {**story.held[2], (story.topic_id, 3): LogEnd(epoch, 6, 100)}
    monkeypatch.setitem(story.held, 2, held)
    cases = ((layout.topic("t"), torn), (layout.topic_history("t"), torn))
    world = begun(story, cases)
    # Not by the counter: it is above both.
    world.write((Put(layout.PARTITION_EPOCH, Counter(9)),))
    world.arrive(2, FormerRegistration.CRASHED)
    noted = world.cluster.past.uncertain.topics.get("t", {})
    assert (2 in noted.get(tp.partition, ())) == (epoch < 6)


@pytest.mark.parametrize(("title", "index"), [("never resized", 0), ("grown", 3)])
def test_a_partition_without_nodes_is_not_new_once_a_broker_had_a_replica_of_it(
    title: str, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began empty on a new disk when the broker that had its records died."""
    story, tp = STORIES[title], TopicPartition("t", index)
    paths = (layout.state(*tp), layout.partition(*tp))
    world = begun(story, tuple((path, missing) for path in paths))
    cluster = world.cluster
    world.arrive(1, FormerRegistration.SAME)
    assert "broker 1 has a replica" in str(cluster.damaged[paths[0]])
    world.write(expire(cluster, [1, 3]).writes)
    for broker in (1, 3):
        soft_state.forget(cluster, broker)
    monkeypatch.setitem(story.held, 2, {})
    world.arrive(2, FormerRegistration.CRASHED)
    assert tp not in cluster.states and index in cluster.topics["t"].partitions
    world.repair([paths[1], paths[0]])
    assert not cluster.damaged and set(cluster.states[tp].isr) <= {1, 2}


def test_brokers_forget_a_damaged_topic_whose_nodes_are_all_removed() -> None:
    """They showed it until the next complete request."""
    story = STORIES["grown"]
    paths = [layout.topic("t"), layout.topic_history("t")]
    world = begun(story, ((paths[0], torn),))
    before = world.cluster
    assert before.unreadable_topics == ["t"]
    after = before.draft()
    for path in paths:
        del world.tree.nodes[path]
    take_up(after, dict.fromkeys(paths), world.chance, deletes=True)
    changes = changes_of_reading(["t"], before, after)
    assert changes.gone == {"t": Gone("t", story.topic_id, (0, 1, 2, 3))}
    assert changes.brokers
    none = changes_of_reading(["t"], before, before)
    assert not none.gone and not none.brokers


def test_a_topic_with_another_id_and_no_history_gets_none_before_the_brokers_reported() -> None:
    """With that history the topic's own node would have been the wrong one after its repair."""
    story = STORIES["never resized"]
    path, history = layout.topic("t"), layout.topic_history("t")
    world = begun(story, ((path, of_another), (history, missing)))
    for broker in BROKERS:
        world.arrive(broker, FormerRegistration.SAME)
        assert history not in world.nodes()
    world.put(path, story.nodes[path].data)
    assert world.cluster.topic_histories["t"].topic_id == layout.id_text(story.topic_id)
    assert not world.cluster.damaged


def test_a_topic_is_readable_again_once_a_broker_reports_its_id() -> None:
    """A broker with a replica of a former topic came first, and no other had reported yet."""
    story = STORIES["grown"]
    world = begun(story, ())
    cluster = world.cluster
    former = {OTHER: "t", story.topic_id: "t"}
    soft = {(OTHER, 0): LogEnd(1, 0, 5)}
    cluster.held, cluster.inventories[3] = former, soft
    (line,) = judge_reports(cluster, soft, former)
    assert layout.id_text(OTHER) in line and "broker 3" in line
    assert cluster.unreadable_topics == ["t"]
    world.arrive(1, FormerRegistration.SAME)
    assert cluster.unreadable_topics == [] and not cluster.damaged
    # One that was deleted, or that began after the report, is no such proof.
    del cluster.inventories[1]
    cluster.loaded = LoadedStore(partition_epoch=0)
    assert judge_reports(cluster, soft, former) == []
    cluster.loaded = LoadedStore(partition_epoch=9)
    cluster.deletions[OTHER] = DeletionNode("t", {0: [3]})
    assert judge_reports(cluster, soft, former) == []
