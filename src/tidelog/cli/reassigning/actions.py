"""The actions of ``tidelog reassign-partitions``: what each requests, and what it prints.

Owns the order of the requests: everything is read and checked before anything changes. The
sentences are those of Kafka's tool, where it has them: scripts look for them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidelog.cli.output import note, print_json, say
from tidelog.cli.reassigning import directories, tables
from tidelog.cli.reassigning.checks import CLOSED, why_others_run, why_refused
from tidelog.cli.reassigning.cost import Cost, cost_of
from tidelog.cli.reassigning.plan_file import (
    PlanFile,
    Targets,
    plan_data,
    plan_text,
    say_rollback,
)
from tidelog.cli.reassigning.situation import Situation, check
from tidelog.cli.reassigning.throttle import note_limits, rate_of, remove_limits, set_rate
from tidelog.cli.refusal import Failed
from tidelog.client.admin.reassignments import alter_reassignments, is_over
from tidelog.client.cluster import Cluster
from tidelog.client.errors import Refused
from tidelog.model.topics import TopicPartition
from tidelog.model.wording import counted, named
from tidelog.planning.generation import generate as propose
from tidelog.planning.generation import why_not_generated

THROTTLE_REMOVED = "The throttle of moves was removed, as no move remains:"
NONE_ACTIVE = "None of the specified partition reassignments are active."


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``--execute``."""

    additional: bool
    force: bool
    throttle: int | None
    """Bytes per second for all moves; None leaves what is set."""
    as_json: bool


async def generate(
    cluster: Cluster, topics: Sequence[str], brokers: Sequence[int], aware: bool, as_json: bool
) -> None:
    """Print the replicas of topics now, and a proposal on some brokers. Raises Failed."""
    now = await check(cluster, placements=True)
    existing = {tp.topic for tp in now.partitions}
    missing = sorted(set(topics) - existing)
    if missing:
        raise Failed(f"topics that do not exist: {named(missing)}")
    strangers = sorted(set(brokers) - set(now.racks))
    if strangers:
        raise Failed(f"--broker-list names brokers that are not alive: {named(strangers)}")
    closed = sorted(now.placements.closed.intersection(brokers))
    if closed:
        raise Failed(f"--broker-list names broker {closed[0]}, {CLOSED}")
    racks = {broker: now.racks[broker] if aware else None for broker in brokers}
    if len({rack is None for rack in racks.values()}) > 1:
        without = [broker for broker, rack in racks.items() if rack is None]
        raise Failed(
            f"brokers without a rack, while others have one: {named(without)}; set broker.rack, or "
            "add --disable-rack-aware"
        )
    wanted = set(topics)
    chosen = [move for move in now.assigned() if move.where.topic in wanted]
    refusal = why_not_generated(chosen, racks)
    if refusal is not None:
        raise Failed(refusal)
    before = {move.where: move.replicas for move in chosen}
    after = {change.where: change.after for change in propose(chosen, racks).changes}
    if as_json:
        print_json({"current": plan_data(before), "proposed": plan_data(after)})
        return
    say(f"Current partition replica assignment\n{plan_text(before)}\n")
    say(f"Proposed partition reassignment configuration\n{plan_text(after)}")


async def execute(cluster: Cluster, plan: PlanFile, options: Options) -> None:
    """Print the rollback of a plan and start its moves. Raises Failed before any has started."""
    now = await check(cluster, dirs=True, placements=True)
    _check(plan, now)
    if not options.additional:
        others = why_others_run(plan.targets, now)
        if others is not None:
            raise Failed(others)
    cost = cost_of(plan.targets, now, plan.log_dirs)
    _check_room(cost, options.force)
    rollback = {tp: now.original(tp) for tp in plan.targets}
    before = {x: path for x in plan.log_dirs if (path := now.path_of(x)) is not None}
    if not options.as_json:
        say_rollback(rollback, before)
    await directories.prefer(cluster, plan.log_dirs, now)
    outcomes = await _started(cluster, plan, now, options)
    started = sorted(tp for tp, refusal in outcomes.items() if refusal is None)
    if not options.as_json and started:
        what = "reassignment" if len(started) == 1 else "reassignments"
        say(f"Successfully started partition {what} for {_joined(started)}")
    wanted = {x: path for x, path in plan.log_dirs.items() if x.where in started}
    in_dirs = await directories.start(cluster, wanted)
    if options.as_json:
        data = {"rollback": plan_data(rollback, before), **_outcomes(outcomes, "started")}
        print_json({**data, **directories.outcomes_data(in_dirs)})
    else:
        directories.say_started(in_dirs)
    _raise_first(outcomes, "were not started")
    directories.raise_first(in_dirs)


async def _started(
    cluster: Cluster, plan: PlanFile, now: Situation, options: Options
) -> dict[TopicPartition, Refused | None]:
    """Start the moves of a plan, throttled from their first byte, and say which throttles hold.

    The throttle is one of the whole cluster: it stays as it was if no move is started by this.
    """
    moves = [x for x, to in plan.targets.items() if x in now.moves or not now.has(x, to)]
    if options.throttle is None or not moves:
        outcomes = await alter_reassignments(cluster, plan.targets)
        if options.throttle is not None:
            note("no partition of the plan has to move: --throttle was not set")
        await note_limits(cluster, now.racks)
        return outcomes
    before = await rate_of(cluster)
    await set_rate(cluster, options.throttle)
    outcomes = await alter_reassignments(cluster, plan.targets)
    if any(outcomes[tp] is None for tp in moves):
        if not options.as_json:
            say(f"The throttle of moves was set to {options.throttle} B/s")
    else:
        await set_rate(cluster, before)
    await note_limits(cluster, now.racks)
    return outcomes


async def dry_run(cluster: Cluster, plan: PlanFile, force: bool, as_json: bool) -> None:
    """Print what a plan would copy. Raises Failed if it cannot be executed."""
    now = await check(cluster, dirs=True, placements=True)
    _check(plan, now)
    cost = cost_of(plan.targets, now, plan.log_dirs)
    if as_json:
        print_json(tables.cost_data(cost))
    else:
        tables.print_cost(cost)
    await note_limits(cluster, now.racks)
    _check_room(cost, force)


def _check(plan: PlanFile, now: Situation) -> None:
    refusal = why_refused(plan.targets, now, plan.log_dirs)
    if refusal is not None:
        raise Failed(refusal)
    dead = sorted({b for replicas in plan.targets.values() for b in replicas} - set(now.racks))
    if dead:
        note(f"brokers {named(dead)} are not alive: moves to them wait until they start")
    for broker, error in now.silent().items():
        note(f"the log directories of broker {broker} are unknown: {error}")


def _check_room(cost: Cost, force: bool) -> None:
    full = cost.why_no_room()
    if full is not None and not force:
        raise Failed(
            f"{full}; --force begins nevertheless: a full disk then takes no copies and no appends"
        )
    if full is not None:
        note(full)


async def verify(cluster: Cluster, plan: PlanFile, keeps_throttle: bool, as_json: bool) -> None:
    """Print which partitions of a plan have moved. Succeeds in any case, as Kafka's tool.

    When no move remains, of this plan or another one, the throttles of moves are removed: ours,
    and those of Kafka's tool.
    """
    now = await check(cluster, dirs=bool(plan.log_dirs))
    rows = [_verified(tp, replicas, now) for tp, replicas in sorted(plan.targets.items())]
    in_dirs = directories.verified(plan.log_dirs, now)
    topics = {tp.topic for tp in plan.targets}
    removed = await _ended(cluster, now, topics, bool(now.moves or keeps_throttle))
    if as_json:
        done = all(row["state"] == "completed" for row in (*rows, *in_dirs))
        data = {"completed": done, "throttle_removed": bool(removed), "partitions": rows}
        print_json({**data, "log_dirs": in_dirs} if plan.log_dirs else data)
        return
    say("Status of partition reassignment:")
    for row in rows:
        partition = f"{row['topic']}-{row['partition']}"
        if row["state"] == "completed":
            say(f"Reassignment of partition {partition} is completed.")
        elif row["state"] == "in_progress":
            say(f"Reassignment of partition {partition} is still in progress.")
        else:
            say(
                f"There is no active reassignment of partition {partition}, but replica set is "
                f"{_ids(row['replicas'])} rather than {_ids(row['target_replicas'])}."
            )
    directories.say_verified(in_dirs)
    if removed:
        say(f"{THROTTLE_REMOVED} {named(removed)}.")


async def _ended(
    cluster: Cluster, now: Situation, topics: Collection[str], keeps: bool
) -> list[str]:
    """Remove the throttles of moves; return what was removed. With ``keeps`` say what holds."""
    if not keeps:
        return await remove_limits(cluster, now.racks, topics)
    await note_limits(cluster, now.racks)
    return []


def _verified(tp: TopicPartition, wanted: Sequence[int], now: Situation) -> dict[str, Any]:
    replicas = now.partitions[tp].replicas if tp in now.partitions else ()
    # As in Kafka, whatever the targets of the running move are.
    if tp in now.moves:
        state = "in_progress"
    else:
        state = "completed" if replicas == tuple(wanted) else "different"
    return {
        **tp._asdict(),
        "state": state,
        "replicas": list(replicas),
        "target_replicas": list(wanted),
    }


async def list_moves(cluster: Cluster) -> None:
    """Print the running moves as a plan that ``--execute`` takes; ``{}`` when there is none."""
    now = await check(cluster)
    running = {tp: move.targets for tp, move in now.moves.items()}
    say(plan_text(running) if running else "{}")
    if running:
        await note_limits(cluster, now.racks)


async def cancel(
    cluster: Cluster, plan: Targets | None, keeps_throttle: bool, as_json: bool
) -> None:
    """Stop the running moves of a plan, or (None) all: replicas that joined stay. Raises Failed.

    When no move remains, the throttles of moves are removed, as by ``verify``.
    """
    now = await check(cluster)
    running = [tp for tp in now.moves if plan is None or tp in plan]
    outcomes = await alter_reassignments(cluster, dict.fromkeys(running))
    # A move that ended by itself meanwhile has no error: there is nothing to stop.
    ended = {tp: None if is_over(error) else error for tp, error in outcomes.items()}
    stopped = sorted(tp for tp, error in outcomes.items() if error is None)
    remain = len(stopped) < len(now.moves) and (await check(cluster)).moves
    topics = {tp.topic for tp in (now.moves if plan is None else plan)}
    removed = await _ended(cluster, now, topics, bool(remain or keeps_throttle))
    if as_json:
        print_json({**_outcomes(ended, "cancelled"), "throttle_removed": bool(removed)})
    elif stopped:
        say(f"Successfully cancelled partition reassignments for: {_joined(stopped)}")
    elif not any(ended.values()):
        say("There are no active partition reassignments." if plan is None else NONE_ACTIVE)
    if removed and not as_json:
        say(f"{THROTTLE_REMOVED} {named(removed)}.")
    _raise_first(ended, "were not cancelled")


async def revert(cluster: Cluster, plan: Targets | None, as_json: bool) -> None:
    """Move partitions of a plan, or (None) all, to the replicas before their moves. Raises Failed.

    Those that move, and those whose cancelled move has left other replicas.
    """
    now = await check(cluster, placements=True)
    changed = now.changed()
    back = {tp: now.original(tp) for tp in changed if plan is None or tp in plan}
    rollback = {tp: now.targets(tp) for tp in back}
    if back and not as_json:
        say_rollback(rollback)
    outcomes = await alter_reassignments(cluster, back)
    if as_json:
        data = {"plan": plan_data(back), "rollback": plan_data(rollback)}
        print_json({**data, **_outcomes(outcomes, "started")})
    elif not back:
        say("There are no active partition reassignments." if plan is None else NONE_ACTIVE)
    else:
        say(plan_text(back))
        started = sorted(tp for tp, error in outcomes.items() if error is None)
        if started:
            say(f"Successfully started to move back: {_joined(started)}")
    if back:
        await note_limits(cluster, now.racks)
    _raise_first(outcomes, "do not move back")


def _outcomes(outcomes: Mapping[TopicPartition, Refused | None], good: str) -> dict[str, Any]:
    return {
        good: [tp._asdict() for tp, refusal in sorted(outcomes.items()) if refusal is None],
        "refused": [
            {**tp._asdict(), "error": refusal.code.name, "reason": refusal.reason}
            for tp, refusal in sorted(outcomes.items())
            if refusal is not None
        ],
    }


def _raise_first(outcomes: Mapping[TopicPartition, Refused | None], what: str) -> None:
    """Raise the refusal of one partition as it is, of several as one line that counts them."""
    refused = {tp: error for tp, error in sorted(outcomes.items()) if error is not None}
    if not refused:
        return
    first = next(iter(refused.values()))
    if len(refused) == 1:
        raise first
    many = counted(len(refused), "partition")
    raise Failed(f"{many} {what}: {named(list(refused))}; the first: {first.reason or first}")


def _joined(places: Sequence[TopicPartition]) -> str:
    return ",".join(map(str, places))


def _ids(replicas: Sequence[int]) -> str:
    return ",".join(map(str, replicas))
