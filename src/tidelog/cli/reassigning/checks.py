"""The comparison of a plan with a cluster: what it names and the cluster does not have. Pure.

Owns the sentences of the refusals. The controller checks each partition again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidelog.cli.reassigning.plan_file import LogDirs
from tidelog.cli.reassigning.situation import Situation
from tidelog.client.errors import ClientError
from tidelog.model.configs.cordoned import cordoned_among
from tidelog.model.topics import TopicPartition, hosts_of
from tidelog.model.wording import counted, named

CLOSED = "which gets no new replicas: cordoned.log.dirs closes it"


def why_refused(
    targets: Mapping[TopicPartition, Sequence[int]],
    now: Situation,
    log_dirs: LogDirs | None = None,
) -> str | None:
    """Return what is wrong with a plan, in one line, or None. A dead broker is none of it."""
    topics = {tp.topic for tp in now.partitions}
    unknown = sorted({tp.topic for tp in targets} - topics)
    if unknown:
        return f"the plan names topics that do not exist: {named(unknown)}"
    missing = sorted(tp for tp in targets if tp not in now.partitions)
    if missing:
        return f"the plan names partitions that do not exist: {named(missing)}"
    brokers = now.known_brokers()
    there = counted(len(brokers), "broker")
    for tp, replicas in sorted(targets.items()):
        if len(replicas) > len(brokers):
            return f"{tp} would have {len(replicas)} replicas, and there are {there}"
    strangers = sorted({broker for some in targets.values() for broker in some} - brokers)
    if strangers:
        return (
            "the plan names brokers that are neither alive nor in any assignment: "
            f"{named(strangers)}"
        )
    for tp, replicas in sorted(targets.items()):
        hosts = hosts_of(now.partitions[tp].replicas, now.targets(tp))
        closed = sorted(now.placements.closed.intersection(replicas).difference(hosts))
        if closed:
            return f"the plan gives {tp} to broker {closed[0]}, {CLOSED}"
    return _why_not_in(log_dirs or {}, now)


def _why_not_in(log_dirs: LogDirs, now: Situation) -> str | None:
    """Return which log directory of a plan cannot be used, or None; unknown ones may be."""
    for replica, path in sorted(log_dirs.items()):
        entries = now.dirs.get(replica.broker)
        if entries is None or isinstance(entries, ClientError):
            continue
        there = f"log directory {path} of broker {replica.broker}"
        if not any(is_same(entry.path, path) for entry in entries):
            return f"the plan names the {there}, which it does not have"
        cordoned = cordoned_among(now.placements.cordoned.get(replica.broker, ()), [path])
        present = now.path_of(replica)
        if cordoned and not (present is not None and is_same(present, path)):
            return f"the plan gives {replica.where} to the {there}, which is cordoned"
    return None


def is_same(path: str, other: str) -> bool:
    """Return whether two paths are the same log directory: slashes at the end mean nothing."""
    return path.rstrip("/") == other.rstrip("/")


def why_others_run(targets: Mapping[TopicPartition, Sequence[int]], now: Situation) -> str | None:
    """Return which running moves are not of this plan, or None: a plan may be executed again."""
    others = sorted(
        str(tp)
        for tp, move in now.moves.items()
        if tp not in targets or tuple(targets[tp]) != move.targets
    )
    if not others:
        return None
    return (
        f"other partitions are being reassigned, or to other targets: {named(others)}; add "
        "--additional to change those that the plan names and leave the others"
    )
