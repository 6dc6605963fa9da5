"""The findings of ``tidelog doctor``. Pure: facts in, findings out.

Owns the rules and their text. Each finding that is not good says what to do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from tidelog.cli.cluster_facts import NAMES_LISTED, ClusterFacts, Finding, Severity
from tidelog.client.admin.nodes import REASSIGNMENTS, RESIZES, Placements, lacks_room
from tidelog.client.admin.transactions import ONGOING
from tidelog.client.errors import ClientError
from tidelog.client.metadata import NO_LEADER, Topic
from tidelog.model.levels import LEVELS
from tidelog.model.topics import (
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    TopicPartition,
)
from tidelog.model.wording import counted, named

UPGRADE = "docs/operating/upgrade.md"
OFFSETS_REPLICAS = "offsets.topic.replication.factor"
TRANSACTIONS_REPLICAS = "transaction.state.log.replication.factor"

_UNORDERED = [level.name for level in LEVELS if not level.resizes]
_WITHOUT_TRANSACTIONS = [level.name for level in LEVELS if not level.transactions]

LOW_DISK_SHARE = 0.10
"""A directory with a smaller share of its disk free gets a note."""

FULL_DISK_SHARE = 0.03
"""Below this share the finding is bad: appends will soon be refused."""

TRANSACTIONS_NAMED = 10
"""Open transactions that have a line each."""

ENOUGH_BROKERS = 3
"""With so many alive, topics with one replica get a note."""


def judge(facts: ClusterFacts) -> list[Finding]:
    """Return the findings, the worst first."""
    findings = [
        *_condition(facts),
        *_controllers(facts),
        *_brokers(facts),
        *_partitions(facts),
        *_single_replicas(facts),
        *_moves(facts),
        *_strays(facts),
        *_quarantined(facts),
        *_versions(facts),
        *_disks(facts),
        *_impossible_groups(facts),
        *_impossible_transactions(facts),
        *_groups(facts),
        *_transactions(facts),
    ]
    order = {Severity.BAD: 0, Severity.NOTICE: 1, Severity.GOOD: 2}
    return sorted(findings, key=lambda finding: order[finding.level])


def _condition(facts: ClusterFacts) -> list[Finding]:
    """The problems in the controller's report."""
    if isinstance(facts.condition, ClientError):
        reasons = sorted({str(one["why"]) for one in facts.controllers if one.get("why")})
        if reasons:
            what = f"no controller can be active: {named(reasons)}"
            advice = "start the store; the controllers run and go on by themselves"
            return [Finding(Severity.BAD, what, advice, "store_silent")]
        own = [one for one in facts.own.values() if isinstance(one, Mapping)]
        # Brokers of older versions do not say where they look for it.
        tried = sorted({address for one in own for address in one.get("controllers", ())})
        asked = f" (brokers ask at {', '.join(tried)})" if tried else ""
        what = (
            f"the controller does not respond{asked}: {facts.condition}; what is said of "
            "partitions and of missing brokers is what the brokers last received from it"
        )
        advice = (
            "start a process with the role controller there, or read the log of the one that runs"
        )
        return [Finding(Severity.BAD, what, advice, "controller_silent")]
    if facts.condition is None:
        return []
    return [
        Finding(
            Severity.NOTICE if problem.get("level") == Severity.NOTICE.value else Severity.BAD,
            str(problem.get("what", "")).rstrip("."),
            str(problem.get("advice", "")).rstrip("."),
            str(problem.get("kind", "")),
            problem.get("partitions", ()),
            problem.get("brokers", ()),
        )
        for problem in facts.condition.get("problems", ())
    ]


def _controllers(facts: ClusterFacts) -> list[Finding]:
    """The controllers that brokers' files name: which one is active, and which are missing."""
    silent = [str(one["address"]) for one in facts.controllers if one["active"] is None]
    if silent:
        what = f"{len(silent)} of {len(facts.controllers)} controllers do not respond: "
        advice = (
            "start them, or correct controller.quorum.bootstrap.servers: with none left leaders "
            "are not replaced"
        )
        return [Finding(Severity.BAD, what + named(silent), advice, "controllers_silent")]
    standing = [controller for controller in facts.controllers if not controller["active"]]
    if not standing:
        return []
    ids = [one["controller_id"] or one["address"] for one in standing]
    return [Finding(Severity.GOOD, f"controllers that stand by: {named(ids)}")]


def _brokers(facts: ClusterFacts) -> list[Finding]:
    findings = []
    alive = {broker.node_id for broker in facts.brokers}
    missing = sorted(
        {
            node_id
            for topic in facts.topics.values()
            for partition in topic.partitions.values()
            for node_id in partition.replicas
        }
        - alive
    )
    if missing and facts.reported is None:
        last = "" if facts.is_current else " by the last word of a controller"
        what = f"broker {named(missing)} has replicas and is not alive{last}"
        findings.append(Finding(Severity.BAD, what, "start it", "brokers_dead", brokers=missing))
    if facts.controller_id < 0 and facts.reported is None:
        what = "no controller is active: topics cannot be changed, leaders are not replaced"
        advice = "start a process with the role controller, and read its log"
        findings.append(Finding(Severity.BAD, what, advice, "no_controller"))
    reported = {} if facts.reported is None else facts.reported.get("brokers", {})
    # A broker that is suspected, or not registered yet, is not reported as good.
    all_well = all(one.get("condition", "alive") == "alive" for one in reported.values())
    if not findings and not missing and all_well and facts.is_current:
        shown = ", ".join(f"{b.node_id} at {b.host}:{b.port}" for b in facts.brokers)
        findings.append(Finding(Severity.GOOD, f"brokers: {shown}; controller {facts.controller}"))
    return findings


def _partitions(facts: ClusterFacts) -> list[Finding]:
    offline: list[TopicPartition] = []
    below: list[TopicPartition] = []
    under: list[TopicPartition] = []
    total = 0
    # Never by a set that grows: the replicas before the move count (KIP-455).
    originals = Placements.of(facts.reported).originals
    for topic in facts.topics.values():
        for partition in topic.partitions.values():
            total += 1
            name = TopicPartition(topic.name, partition.index)
            minimum = min(facts.minimum_isr.get(topic.name, 1), len(partition.replicas))
            if partition.leader == NO_LEADER:
                offline.append(name)
            elif len(partition.isr) < minimum:
                below.append(name)
            elif len(partition.isr) < len(originals.get(name, partition.replicas)):
                under.append(name)
    if not offline and not below and not under:
        partitions, topics = counted(total, "partition"), counted(len(facts.topics), "topic")
        if not facts.is_current:
            what = f"{partitions} of {topics}: all in sync when a controller last said so"
            return [Finding(Severity.NOTICE, what)]
        return [Finding(Severity.GOOD, f"{partitions} of {topics}: all lead, all in sync")]
    if facts.reported is not None:
        # The controller's report has them.
        return []
    rows = (
        ("offline", offline, "no leader, cannot be read or written", "start their brokers"),
        (
            "below_min_insync",
            below,
            "fewer in-sync replicas than min.insync.replicas, acks=all fails",
            "start the missing brokers, or lower the minimum",
        ),
        (
            "under_replicated",
            under,
            "under-replicated",
            "start the missing brokers, or wait while replicas catch up",
        ),
    )
    return [
        _of_places(f"{named(users_first(places))}: {what}", advice, kind, users_first(places))
        for kind, places, what, advice in rows
        if places
    ]


def _single_replicas(facts: ClusterFacts) -> list[Finding]:
    """Topics whose records one disk holds alone, although there are brokers for more."""
    if len(facts.brokers) < ENOUGH_BROKERS:
        return []
    places = [
        TopicPartition(topic.name, partition.index)
        for topic in facts.topics.values()
        for partition in topic.partitions.values()
        if len(partition.replicas) == 1
    ]
    if not places:
        return []
    names = list(dict.fromkeys(tp.topic for tp in users_first(places)))
    what = f"topics with one replica alone: {named(names)}"
    advice = (
        "if their records must outlive a disk: tidelog reassign-partitions; new topics get "
        "default.replication.factor of the broker that is asked"
    )
    return [_of_places(what, advice, "one_replica", users_first(places), level=Severity.NOTICE)]


def _moves(facts: ClusterFacts) -> list[Finding]:
    """Moves whose copy has no room: the controller does not know the log directories."""
    held = {
        (node_id, tp): size
        for node_id, dirs in facts.log_dirs.items()
        if not isinstance(dirs, ClientError)
        for entry in dirs
        for tp, size in entry.replicas.items()
    }
    waiting: list[TopicPartition] = []
    brokers: set[int] = set()
    for row in (facts.reported or {}).get(REASSIGNMENTS, ()):
        tp = TopicPartition(row["topic"], row["partition"])
        whole = max((held.get((broker, tp), 0) for broker in row["replicas"]), default=0)
        for target in set(row["target_replicas"] or ()).difference(row["replicas"]):
            dirs = facts.log_dirs.get(target, ())
            rest = whole - held.get((target, tp), 0)
            if not isinstance(dirs, ClientError) and lacks_room(dirs, tp, rest):
                waiting.append(tp)
                brokers.add(target)
    if not waiting:
        return []
    places, ids = users_first(set(waiting)), sorted(brokers)
    what = f"{named(places)}: the move waits for room in a log directory of broker {named(ids)}"
    advice = (
        "make room there, or move to another broker, or cancel: tidelog reassign-partitions; the "
        "copy goes on by itself when there is room"
    )
    return [_of_places(what, advice, "moves_wait_for_room", places, ids)]


def _strays(facts: ClusterFacts) -> list[Finding]:
    """Replicas on a broker that are not assigned to it, neither before nor after reading them."""
    views = [facts.topics]
    if facts.topics_later is not None:
        views.append(facts.topics_later)
    # A target hosts the partition before it is one of its replicas.
    targets = {
        (TopicPartition(row["topic"], row["partition"]), target)
        for row in (facts.reported or {}).get(REASSIGNMENTS, ())
        for target in row["target_replicas"] or ()
    }
    # Clients are shown a new partition when its growth is published.
    unpublished = {
        row["topic"]: range(*row["unpublished"]) for row in (facts.reported or {}).get(RESIZES, ())
    }
    # The controller has these in a finding of their own.
    late = [
        x for x in (facts.reported or {}).get("problems", ()) if x.get("kind") == "replicas_late"
    ]
    strays = [
        (tp, node_id)
        for node_id, dirs in sorted(facts.log_dirs.items())
        if not isinstance(dirs, ClientError)
        for entry in dirs
        for tp in users_first(entry.replicas)
        if (tp, node_id) not in targets
        and tp.partition not in unpublished.get(tp.topic, ())
        and not any(_is_assigned(view, tp, node_id) for view in views)
        and not any(str(tp) in x["partitions"] and node_id in x["brokers"] for x in late)
    ]
    if not strays:
        return []
    lines = [f"{tp} on broker {node_id}" for tp, node_id in strays]
    what = f"replicas that are not assigned to their broker: {named(lines)}"
    advice = (
        "if topics were just deleted or moved, wait: the controller will have them removed; "
        "otherwise read those brokers' logs"
    )
    brokers = sorted({node_id for _, node_id in strays})
    return [_of_places(what, advice, "strays", [tp for tp, _ in strays], brokers)]


def _of_places(
    what: str,
    advice: str,
    kind: str,
    places: Sequence[TopicPartition],
    brokers: Sequence[int] = (),
    level: Severity = Severity.BAD,
) -> Finding:
    listed = [str(tp) for tp in places[:NAMES_LISTED]]
    return Finding(level, what, advice, kind, listed, brokers)


def _quarantined(facts: ClusterFacts) -> list[Finding]:
    """Quarantined replicas that no broker will remove, because it was restarted since."""
    kept = {
        node_id: [entry["path"] for entry in own["set_aside"] if entry["removed_at_ms"] is None]
        for node_id, own in sorted(facts.own.items())
        if own is not None and not isinstance(own, ClientError)
    }
    findings = []
    for node_id, paths in kept.items():
        if paths:
            what = f"broker {node_id} keeps quarantined replicas: {named(paths)}"
            advice = "its log has the reason; they stay until you remove these directories"
            findings.append(Finding(Severity.NOTICE, what, advice, "set_aside", brokers=[node_id]))
    return findings


def _versions(facts: ClusterFacts) -> list[Finding]:
    """Brokers with different versions or levels, or others than the controller's: half a roll."""
    findings = []
    own = {
        node_id: answer
        for node_id, answer in sorted(facts.own.items())
        if answer is not None and not isinstance(answer, ClientError)
    }
    reported = {} if facts.reported is None else facts.reported
    for kind, name, of_all in (
        ("versions_differ", "version", "code versions"),
        ("levels_differ", "level", "values of inter.broker.protocol.version"),
    ):
        by_value: dict[str, list[str]] = {}
        for node_id, answer in own.items():
            by_value.setdefault(str(answer[name]), []).append(f"broker {node_id}")
        if name in reported:
            by_value.setdefault(str(reported[name]), []).append("the controller")
        if len(by_value) > 1:
            values = "; ".join(f"{value} on {named(x)}" for value, x in sorted(by_value.items()))
            advice = no_way_back(facts, by_value) if kind == "levels_differ" else ""
            advice = advice or f"finish the upgrade: {UPGRADE}"
            findings.append(Finding(Severity.NOTICE, f"several {of_all}: {values}", advice, kind))
    return findings


def no_way_back(facts: ClusterFacts, levels: Collection[str]) -> str:
    """Return why a roll between these levels can only go up, or nothing: brokers start below such
    a level, and the controller, the last one of a roll, does not."""
    resized = [name for name, topic in facts.topics.items() if topic.resize_epoch > 0]
    if resized and not set(levels).isdisjoint(_UNORDERED):
        first = LEVELS[len(_UNORDERED)].name
        return f"go up to {first}: {named(resized)} resized, there is no way back"
    if TRANSACTIONS_TOPIC in facts.topics and not set(levels) <= set(_WITHOUT_TRANSACTIONS):
        first = LEVELS[len(_WITHOUT_TRANSACTIONS)].name
        return f"go up to {first}: transactions may be open, see {UPGRADE}"
    return ""


def _is_assigned(topics: Mapping[str, Topic], tp: TopicPartition, node_id: int) -> bool:
    topic = topics.get(tp.topic)
    partition = None if topic is None else topic.partitions.get(tp.partition)
    return partition is not None and node_id in partition.replicas


def _disks(facts: ClusterFacts) -> list[Finding]:
    made = []
    for node_id, dirs in sorted(facts.log_dirs.items()):
        if isinstance(dirs, ClientError):
            what = f"broker {node_id} did not describe its log directories: {dirs}"
            advice = "read its log"
            made.append(Finding(Severity.BAD, what, advice, "broker_silent", brokers=[node_id]))
            continue
        for entry in dirs:
            place = f"broker {node_id}, {entry.path}"
            if entry.error is not None:
                what = f"{place}: out of service ({entry.error.code.name})"
                advice = "read its log, repair the disk, restart the broker"
                made.append(Finding(Severity.BAD, what, advice, "disk_failed", brokers=[node_id]))
                continue
            size = sum(entry.replicas.values())
            line = f"{place}: {len(entry.replicas)} replicas, {readable(size)}"
            if entry.total_bytes <= 0:
                made.append(Finding(Severity.GOOD, line))
                continue
            share = entry.usable_bytes / entry.total_bytes
            line += f", {readable(entry.usable_bytes)} of the disk free"
            level = Severity.GOOD
            if share < LOW_DISK_SHARE:
                level = Severity.BAD if share < FULL_DISK_SHARE else Severity.NOTICE
            advice = "" if level is Severity.GOOD else "make room, or shorten retention"
            kind = "disk_full" if advice else ""
            made.append(Finding(level, line, advice, kind, brokers=[node_id]))
    return made


def _impossible_groups(facts: ClusterFacts) -> list[Finding]:
    kind = "groups_impossible"
    return _impossible(facts, kind, OFFSETS_TOPIC, OFFSETS_REPLICAS, facts.offsets_replicas)


def _impossible_transactions(facts: ClusterFacts) -> list[Finding]:
    if (facts.reported or {}).get("level") in _WITHOUT_TRANSACTIONS:
        return []
    kind = "transactions_impossible"
    wanted = facts.transactions_replicas
    return _impossible(facts, kind, TRANSACTIONS_TOPIC, TRANSACTIONS_REPLICAS, wanted)


def _impossible(
    facts: ClusterFacts, kind: str, topic: str, setting: str, replicas_of: Mapping[int, int]
) -> list[Finding]:
    """An internal topic that no broker can create, for want of brokers for its replicas."""
    views = (facts.topics, facts.topics_later or {})
    if not facts.is_current or any(topic in view for view in views):
        return []
    there = {broker.node_id for broker in facts.brokers} - Placements.of(facts.reported).closed
    short = {node: n for node, n in sorted(replicas_of.items()) if n > len(there)}
    if not short:
        return []
    replicas = named([f"{n} on broker {node}" for node, n in short.items()])
    what = (
        f"{kind.partition('_')[0]} are impossible: {topic} cannot be created, for {setting} is "
        f"{replicas}, and {counted(len(there), 'broker')} can get replicas"
    )
    advice = (
        f"start more brokers, or set {setting}={max(len(there), 1)} in the files of the "
        "brokers and restart them"
    )
    # Not bad by itself: clients that use none of them are served.
    return [Finding(Severity.NOTICE, what, advice, kind, brokers=list(short))]


def _groups(facts: ClusterFacts) -> list[Finding]:
    made = []
    for node_id, error in facts.groups_unknown.items():
        # One finding is enough for a broker that does not respond at all.
        if not isinstance(facts.log_dirs.get(node_id), ClientError):
            what = f"broker {node_id} did not list its groups: {error}"
            advice = "read its log"
            made.append(Finding(Severity.BAD, what, advice, "groups_unknown", brokers=[node_id]))
    for group, committed in facts.committed.items():
        if isinstance(committed, ClientError):
            what = f"group {group}: its offsets cannot be read: {committed}"
            advice = "check the broker that coordinates it"
            made.append(Finding(Severity.BAD, what, advice, "group_unreadable", groups=[group]))
            continue
        gone = sorted({tp.topic for tp in committed if tp.topic not in facts.topics})
        if gone:
            what = f"group {group} has offsets of topics that do not exist: {named(gone)}"
            advice = (
                "delete them with `tidelog groups --delete-offsets` if the topics are gone for good"
            )
            kind = "group_offsets_of_nothing"
            made.append(Finding(Severity.NOTICE, what, advice, kind, groups=[group]))
    if not made:
        moving = sum(1 for group in facts.groups if "Rebalanc" in group.state)
        more = f", {moving} rebalancing" if moving else ""
        made.append(Finding(Severity.GOOD, f"{counted(len(facts.groups), 'group')}{more}"))
    return made


def _transactions(facts: ClusterFacts) -> list[Finding]:
    """The transactions that readers of committed records wait for, the oldest first."""
    oldest = sorted(facts.transactions, key=lambda one: -one[1])
    made = []
    for one, age_ms in oldest[:TRANSACTIONS_NAMED]:
        places = [str(tp) for tp in users_first(one.partitions)]
        what = (
            f"transaction of {one.transactional_id} is open for {age_ms // 60_000} min "
            f"({one.state}, producer {one.producer_id}): readers of committed records wait for "
            f"it in {named(places)}"
        )
        advice = (
            f"let its producer end it, or abort it with `tidelog transactions force-terminate "
            f"--transactional-id {one.transactional_id}`"
            if one.state == ONGOING
            else "it is decided, and its markers are on their way: start missing leaders"
        )
        shown = places[:NAMES_LISTED]
        made.append(Finding(Severity.NOTICE, what, advice, "transaction_open", shown))
    if len(oldest) > TRANSACTIONS_NAMED:
        what = f"{counted(len(oldest) - TRANSACTIONS_NAMED, 'more transaction')} open for long"
        advice = "`tidelog transactions list --duration-filter 60000` lists them"
        made.append(Finding(Severity.NOTICE, what, advice, "transaction_open"))
    return made


def users_first(places: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return partitions in order, those of internal topics last: there are fifty of them."""
    return sorted(places, key=lambda tp: (tp.topic in INTERNAL_TOPICS, tp))


def readable(size: int) -> str:
    """Return a size in bytes as people read it."""
    number = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
