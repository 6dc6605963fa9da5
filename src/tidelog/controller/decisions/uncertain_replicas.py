"""Replicas that came back uncertain while the states of their partitions could not be read.

Owns ``/tidelog/uncertain_replicas``: a broker that lost power, or came back without a replica,
leaves an ISR that cannot be read only once that can be read again. Until then the note of it
outlives this controller and the broker's registration. What follows from it: see ``returns``.
Source: docs/decisions/0120.

| the state of a noted partition | result |
|---|---|
| cannot be read | the note stays |
| is of a store that has gone back in time | the note stays, until the store is accepted |
| has no leader after that | the note stays, and counts when the store is loaded again |
| can be read again | the noted replicas leave the ISR, or are compared; the note goes |
| is gone with its topic | the note goes |
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tidelog.controller.decisions.cluster import ClusterState, named_in
from tidelog.controller.decisions.decision import Decision, Put, Remove, Write
from tidelog.controller.decisions.elections import Standing
from tidelog.controller.decisions.settlement import settle_all
from tidelog.metadata import layout
from tidelog.metadata.records import PartitionState, TopicNode, UncertainReplicas
from tidelog.model.topics import TopicPartition

MOST_NOTED = 50_000
"""Replicas in the node, some 500 kB of the megabyte that a node may have. The others of more
damaged states than that are not noted: so many are a store that has to be restored. Those that may
be members come first, then those that are noted already: of a state that cannot be read any broker
may be one that has no replica."""


def unread_states(cluster: ClusterState) -> list[TopicPartition]:
    """Return the partitions whose state nodes are damaged or missing, and those of topics that
    cannot be read: whether their states are the newest ones is not known."""
    paths = [layout.partition_of(path) for path in cluster.damaged if path.endswith("/state")]
    places = {TopicPartition(*place) for place in paths if place is not None}
    unread = set(cluster.unreadable_topics)
    if unread:
        places |= {tp for tp in cluster.states if tp.topic in unread}
        places |= {tp for tp in cluster.partition_nodes if tp.topic in unread}
    return sorted(places)


def noted(cluster: ClusterState, broker: int, lost: Collection[TopicPartition]) -> list[Write]:
    """Return the write that notes the replicas of a broker that may lack committed records."""
    return _with(cluster, [(tp, broker) for tp in sorted(lost)])


def noted_damage(cluster: ClusterState) -> list[Write]:
    """Return the write that notes the damaged replicas of states that cannot be read: they may be
    fetched again before these can be, and the next controller does not learn of them."""
    unread = set(unread_states(cluster)) if cluster.damaged else set()
    return _with(cluster, sorted((tp, broker) for broker, tp in cluster.broken if tp in unread))


def _with(cluster: ClusterState, replicas: Sequence[tuple[TopicPartition, int]]) -> list[Write]:
    if not replicas:
        return []
    notes = _known(cluster)
    for tp, broker in replicas:
        brokers = notes.get(tp, ())
        if broker not in brokers:
            notes[tp] = (*brokers, broker)
    return _put(cluster, _within_room(cluster, notes))


def _within_room(
    cluster: ClusterState, notes: dict[TopicPartition, tuple[int, ...]]
) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the notes that the node has room for: first those of brokers that a node names for the
    partition, or that have a replica; then the earlier ones: their broker may have been a member
    that is away now, of a state that this controller has never read; then the others."""
    if sum(map(len, notes.values())) <= MOST_NOTED:
        return notes
    kept: dict[TopicPartition, tuple[int, ...]] = {}
    room = MOST_NOTED
    earlier = {tp: set(brokers) for tp, brokers in _known(cluster).items()}
    members = {tp: _members(cluster, tp, brokers) for tp, brokers in notes.items()}

    def rank(tp: TopicPartition, broker: int) -> int:
        if broker in members[tp]:
            return 0
        return 1 if broker in earlier.get(tp, ()) else 2

    for wanted in range(3):
        for tp, brokers in notes.items():
            some = tuple(x for x in brokers if rank(tp, x) == wanted)[:room]
            if some:
                kept[tp] = (*kept.get(tp, ()), *some)
                room -= len(some)
    return kept


def _members(cluster: ClusterState, tp: TopicPartition, brokers: Collection[int]) -> set[int]:
    """Return those of these brokers that may be members of a partition, as far as is known."""
    topic, damaged = (cluster.damaged.get(x) for x in (layout.topic(tp.topic), layout.state(*tp)))
    records: list[object] = [cluster.states.get(tp), cluster.topics.get(tp.topic)]
    for one in (topic, damaged):
        records += [] if one is None else [one.record, one.former]
    named: set[int] = set()
    for record in records:
        if isinstance(record, PartitionState):
            named |= named_in(record)
        elif isinstance(record, TopicNode):
            named.update(record.partitions.get(tp.partition, ()))
    history = cluster.topic_histories.get(tp.topic)
    topic_id = None if history is None else layout.parse_id(history.topic_id)
    return {
        broker
        for broker in brokers
        if broker in named
        or (broker, tp) in cluster.broken
        or cluster.any_log_end(broker, tp, topic_id) is not None
    }


def is_full(notes: UncertainReplicas) -> bool:
    """Return whether the node has no room for another replica."""
    places = (brokers for partitions in notes.topics.values() for brokers in partitions.values())
    return sum(map(len, places)) >= MOST_NOTED


def written_once(cluster: ClusterState, writes: Sequence[Write]) -> list[Write]:
    """Return the writes of one decision with at most one write of the notes: the store refuses to
    remove a node twice. What one of the writes drops is dropped; it comes in the place of the last.
    """
    places = [x for x, write in enumerate(writes) if write.path == layout.UNCERTAIN_REPLICAS]
    if len(places) < 2:
        return list(writes)
    notes = _known(cluster)
    for write in (writes[place] for place in places):
        record = write.record if isinstance(write, Put) else None
        kept = record.topics if isinstance(record, UncertainReplicas) else {}
        notes = {tp: x for tp, x in notes.items() if tp.partition in kept.get(tp.topic, ())}
    last = places[-1]
    others = [
        [x for x in some if x.path != layout.UNCERTAIN_REPLICAS]
        for some in (writes[:last], writes[last:])
    ]
    return [*others[0], *_put(cluster, notes), *others[1]]


def settle_noted(cluster: ClusterState) -> Decision[None]:
    """Decide what becomes of noted partitions whose states can be read now, when a controller
    becomes active: they may have been repaired while none was."""
    return Decision(None, tuple(settled_with_notes(cluster, ())), splits=True)


def settled_with_notes(
    cluster: ClusterState,
    places: Collection[TopicPartition],
    repaired: Collection[TopicPartition] = (),
) -> list[Write]:
    """Return the writes that settle ``places``, partitions whose states were ``repaired``, and
    noted ones that can be read; the notes of these go last.

    A repaired partition begins a new leader epoch: its leader may have restarted meanwhile.
    """
    notes = _known(cluster)
    if cluster.went_back is not None:
        return []
    readable = {tp for tp in notes if tp in cluster.states and cluster.replicas(tp)}
    writes = settle_all(
        cluster,
        sorted(readable.union(places, repaired)),
        Standing.of(cluster),
        new_epochs=readable.union(repaired),
        uncertain={tp: notes[tp] for tp in readable},
    )
    kept = {tp: brokers for tp, brokers in notes.items() if tp not in readable}
    return [*writes, *_put(cluster, kept)]


def accepted(cluster: ClusterState, leaderless: Collection[TopicPartition]) -> list[Write]:
    """Return the write of an acceptance that keeps the notes of partitions without a leader: a
    member may be away that came back once, and had lost its records. Elsewhere all were compared.
    """
    kept = {tp: brokers for tp, brokers in _known(cluster).items() if tp in leaderless}
    if kept:
        return _put(cluster, kept)
    # Also a node that cannot be read.
    is_there = layout.UNCERTAIN_REPLICAS in cluster.versions
    return [Remove(layout.UNCERTAIN_REPLICAS)] if is_there else []


def forgotten(cluster: ClusterState, topic: str, indexes: Collection[int]) -> list[Write]:
    """Return the write without the notes of partitions that begin now, or none."""
    notes = _known(cluster)
    return _put(
        cluster,
        {tp: x for tp, x in notes.items() if tp.topic != topic or tp.partition not in indexes},
    )


def _known(cluster: ClusterState) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the noted brokers of each partition; those of topics that are gone do not count."""
    return {
        TopicPartition(name, index): tuple(brokers)
        for name, partitions in cluster.past.uncertain.topics.items()
        if _may_exist(cluster, name)
        for index, brokers in partitions.items()
    }


def _may_exist(cluster: ClusterState, name: str) -> bool:
    return (
        name in cluster.topics
        # A lost store knows no topic: brokers bring them back.
        or cluster.went_back is not None
        or name in cluster.topic_histories
        or layout.topic(name) in cluster.damaged
    )


def _put(cluster: ClusterState, notes: Mapping[TopicPartition, Collection[int]]) -> list[Write]:
    topics: dict[str, dict[int, list[int]]] = {}
    for tp, brokers in sorted(notes.items()):
        topics.setdefault(tp.topic, {})[tp.partition] = sorted(brokers)
    if topics == cluster.past.uncertain.topics:
        return []
    if topics:
        return [Put(layout.UNCERTAIN_REPLICAS, UncertainReplicas(topics))]
    return [Remove(layout.UNCERTAIN_REPLICAS)]
