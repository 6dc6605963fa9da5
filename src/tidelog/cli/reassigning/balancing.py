"""``tidelog topics --rebalance`` and ``--decommission``: plans over all topics, carried out.

Owns what is read before, and what is printed. Not the plans: see ``tidelog.planning``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.cli.output import note, print_json, say
from tidelog.cli.reassigning import closing, tables
from tidelog.cli.reassigning.cost import cost_of
from tidelog.cli.reassigning.plan_file import plan_data, say_rollback
from tidelog.cli.reassigning.situation import Situation, check
from tidelog.cli.reassigning.steps import POLL_S, Done, carry_out
from tidelog.cli.reassigning.throttle import note_limits
from tidelog.cli.refusal import Failed
from tidelog.client.admin.sending import TIMEOUT_MS
from tidelog.client.cluster import Cluster
from tidelog.model.topics import TopicPartition
from tidelog.model.wording import counted, named
from tidelog.planning.decommission import empty, why_not_copied, why_not_emptied
from tidelog.planning.plan import Load, Plan, loads
from tidelog.planning.rebalancing import rebalance

SHRINK_S = 30.0
"""How long a decommission waits for the next partition to leave the broker."""


@dataclass(frozen=True, slots=True)
class BalanceOptions:
    """The options of both: brokers that get nothing, whether to execute, the format."""

    excluded: Collection[int]
    execute: bool
    as_json: bool


async def propose_balance(cluster: Cluster, asked: BalanceOptions, done: Done) -> None:
    """Show the plan that evens out the cluster; with ``execute`` carry it out. Raises Failed."""
    now = await _read(cluster, asked)
    _note_closed(now)
    brokers = _takers(now, asked)
    if not brokers:
        raise Failed(
            "no live broker may get replicas: --exclude-brokers names them, cordoned.log.dirs "
            "closes them, or their log directories have failed"
        )
    dead = now.on_dead_brokers()
    if dead:
        many = counted(len(dead), "partition")
        note(f"{many} with a replica on a dead broker stay as they are: {named(dead)}")
    plan = rebalance(now.assigned(), brokers, now.racks, fixed={*now.moves, *dead})
    if not asked.as_json:
        _print(plan, now, "The cluster is balanced: nothing to move.")
    if asked.execute:
        _check_room(plan, now)
        await note_limits(cluster, now.racks)
        _say_rollback(plan, asked)
        await carry_out(cluster, plan.changes, done)
    _finish(plan, now, asked, done)


async def decommission(cluster: Cluster, leaving: int, asked: BalanceOptions, done: Done) -> None:
    """Show the plan that empties a broker; with ``execute`` carry it out. Raises Failed.

    The broker is closed to new replicas first, so one plan empties it (KIP-1066).
    """
    now = await _read(cluster, asked)
    if leaving not in now.known_brokers():
        raise Failed(f"there is no broker {leaving}, alive or in any assignment")
    _note_closed(now, leaving)
    plan = _emptying(now, leaving, asked)
    if not asked.as_json:
        _print(plan, now, _nothing_to_move(now, leaving))
    if not asked.execute:
        if asked.as_json:
            print_json({**_data(plan, now, done), "empty": not _on(now, leaving)})
        else:
            _finish(plan, now, asked, done)
        return
    _check_room(plan, now)
    await closing.close(cluster, leaving)
    # A topic that was created since, or a move that began, is part of what leaves.
    before = await _read(cluster, asked)
    plan = _emptying(before, leaving, asked)
    _check_room(plan, before)
    await note_limits(cluster, before.racks)
    _say_rollback(plan, asked)
    await carry_out(cluster, plan.changes, done)
    now = await _left(cluster, leaving)
    left = sorted(map(str, _on(now, leaving)))
    if asked.as_json:
        print_json({**_data(plan, before, done), "empty": not left})
    elif not left:
        say(f"Broker {leaving} has no replica: it may be switched off.")
    _raise_refused(done)
    if left:
        raise Failed(
            f"broker {leaving} still has {counted(len(left), 'replica')} ({named(left)}): keep it "
            "running, check `tidelog reassign-partitions --watch`, and run this again"
        )


async def _left(cluster: Cluster, leaving: int) -> Situation:
    """Return what is there when a broker hosts nothing, or nothing about that changes any more.

    A replica leaves the ISR shortly after its move, and moves that others started may run.
    """
    loop = asyncio.get_running_loop()
    seen: list[TopicPartition] = []
    deadline = loop.time() + SHRINK_S
    while True:
        now = await check(cluster, timeout_ms=TIMEOUT_MS)
        left = _on(now, leaving)
        if left != seen:
            seen, deadline = left, loop.time() + SHRINK_S
        hosts = any(leaving in now.targets(tp) for tp in left)
        if not left or hosts or loop.time() > deadline:
            return await check(cluster, dirs=True, timeout_ms=TIMEOUT_MS)
        await asyncio.sleep(POLL_S)


async def _read(cluster: Cluster, asked: BalanceOptions) -> Situation:
    now = await check(cluster, dirs=True, placements=True)
    strangers = sorted(set(asked.excluded) - now.known_brokers())
    if strangers:
        raise Failed(f"--exclude-brokers names brokers that do not exist: {named(strangers)}")
    for broker, error in now.silent().items():
        note(f"the log directories of broker {broker} are unknown: {error}")
    return now


def _note_closed(now: Situation, leaving: int | None = None) -> None:
    closed = sorted(now.placements.closed - {leaving})
    if closed:
        note(f"brokers that get nothing, as cordoned.log.dirs closes them: {named(closed)}")
    failed = sorted(now.diskless() - now.placements.closed - {leaving})
    if failed:
        note(f"brokers that get nothing, as all their log directories have failed: {named(failed)}")


def _takers(now: Situation, asked: BalanceOptions) -> set[int]:
    """Return the live brokers that a plan may give replicas."""
    return set(now.racks) - set(asked.excluded) - now.placements.closed - now.diskless()


def _emptying(now: Situation, leaving: int, asked: BalanceOptions) -> Plan:
    brokers = _takers(now, asked) - {leaving}
    partitions = now.assigned()
    in_sync = {tp: now.partitions[tp].isr for tp in _on(now, leaving)}
    refusal = why_not_emptied(partitions, leaving, brokers)
    refusal = refusal or why_not_copied(in_sync, leaving, now.racks)
    if refusal is not None:
        raise Failed(refusal)
    return empty(partitions, leaving, brokers, now.racks)


def _nothing_to_move(now: Situation, leaving: int) -> str:
    """Return what an empty plan means: a broker may still host what running moves take away."""
    left = sorted(map(str, _on(now, leaving)))
    if not left:
        return f"Broker {leaving} has no replica."
    return (
        f"Broker {leaving} still has {counted(len(left), 'replica')} ({named(left)}), which "
        "running moves take away: keep it running until "
        "`tidelog reassign-partitions --watch` shows none."
    )


def _on(now: Situation, broker: int) -> list[TopicPartition]:
    """Return the partitions that a broker hosts, or in whose ISR it still is."""
    return [
        tp
        for tp, partition in now.partitions.items()
        if broker in partition.replicas or broker in partition.isr or broker in now.targets(tp)
    ]


def _check_room(plan: Plan, now: Situation) -> None:
    full = cost_of({change.where: change.after for change in plan.changes}, now).why_no_room()
    if full is not None:
        raise Failed(
            f"{full}; make room, or execute the plan of --json by `tidelog reassign-partitions "
            "--execute --force`"
        )


def _print(plan: Plan, now: Situation, nothing: str) -> None:
    if not plan.changes:
        say(nothing)
        return
    partitions = now.assigned()
    tables.print_cost(cost_of({change.where: change.after for change in plan.changes}, now))
    say("")
    before, after = loads(partitions, now.racks), loads(plan.applied(partitions), now.racks)
    tables.print_loads(before, after, now.racks)


def _say_rollback(plan: Plan, asked: BalanceOptions) -> None:
    """Print the plan that leads back, before anything moves."""
    if plan.changes and not asked.as_json:
        say("")
        say_rollback({change.where: change.before for change in plan.changes})


def _finish(plan: Plan, now: Situation, asked: BalanceOptions, done: Done) -> None:
    if asked.as_json:
        print_json(_data(plan, now, done))
    elif asked.execute and plan.changes:
        say(f"Moved {counted(len(done.moved), 'partition')}.")
    elif plan.changes:
        say("Nothing was changed: add --execute to carry this out.")
    _raise_refused(done)


def _raise_refused(done: Done) -> None:
    if done.refused:
        first = done.refused[min(done.refused)]
        many = counted(len(done.refused), "partition")
        raise Failed(f"{many} did not move: {named(sorted(done.refused))}; the first: {first}")


def _data(plan: Plan, now: Situation, done: Done) -> dict[str, Any]:
    partitions = now.assigned()
    before, after = loads(partitions, now.racks), loads(plan.applied(partitions), now.racks)
    return {
        "plan": plan_data({change.where: change.after for change in plan.changes}),
        "rollback": plan_data({change.where: change.before for change in plan.changes}),
        "copied_replicas": plan.copied_replicas,
        "copied_bytes": plan.copied_bytes,
        "moved_leaders": plan.moved_leaders,
        "moved": len(done.moved),
        "refused": sorted(map(str, done.refused)),
        "brokers": [
            {
                "broker": broker,
                "rack": now.racks[broker],
                "before": _load(before, broker),
                "after": _load(after, broker),
            }
            for broker in before
        ],
    }


def _load(loads: Mapping[int, Load], broker: int) -> dict[str, int]:
    load = loads[broker]
    return {"leaders": load.leaders, "replicas": load.replicas, "bytes": load.size}
