"""The comparison of a plan with a cluster: what it names and the cluster does not have. Pure.

Owns the sentences of the refusals. The controller checks each partition again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tidelog.cli.findings import named
from tidelog.cli.reassigning.situation import Situation
from tidelog.model.topics import TopicPartition

CLOSED = "which gets no new replicas: cordoned.log.dirs closes it"


def why_refused(targets: Mapping[TopicPartition, Sequence[int]], now: Situation) -> str | None:
    """Return what is wrong with a plan, in one line, or None. A dead broker is none of it."""
    topics = {where.topic for where in now.partitions}
    unknown = sorted({where.topic for where in targets} - topics)
    if unknown:
        return f"the plan names topics that do not exist: {named(unknown)}"
    missing = sorted(where for where in targets if where not in now.partitions)
    if missing:
        return f"the plan names partitions that do not exist: {named(list(map(str, missing)))}"
    known = now.known_brokers()
    for where, replicas in sorted(targets.items()):
        if len(replicas) > len(known):
            return f"{where} would have {len(replicas)} replicas, and there are {_count(known)}"
    strangers = sorted({broker for some in targets.values() for broker in some} - known)
    if strangers:
        return (
            f"the plan names brokers that are neither alive nor in any assignment: "
            f"{named(list(map(str, strangers)))}"
        )
    for where, replicas in sorted(targets.items()):
        hosts = {*now.partitions[where].replicas, *now.targets(where)}
        closed = sorted(now.placements.closed.intersection(replicas) - hosts)
        if closed:
            return f"the plan gives {where} to broker {closed[0]}, {CLOSED}"
    return None


def _count(brokers: Iterable[int]) -> str:
    count = len(list(brokers))
    return f"{count} broker" if count == 1 else f"{count} brokers"


def why_others_run(targets: Mapping[TopicPartition, Sequence[int]], now: Situation) -> str | None:
    """Return which running moves are not of this plan, or None: a plan may be executed again."""
    others = sorted(
        str(where)
        for where, move in now.moves.items()
        if where not in targets or tuple(targets[where]) != move.targets
    )
    if not others:
        return None
    return (
        f"other partitions are being reassigned, or to other targets: {named(others)}; add "
        "--additional to change those that the plan names and leave the others"
    )
