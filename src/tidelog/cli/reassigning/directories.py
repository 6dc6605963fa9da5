"""Log directories of a plan: replicas that move to another directory of their broker (KIP-113).

Owns the requests, and what ``--execute`` and ``--verify`` say of them, in the words of Kafka's
tool. A broker that does not have a replica yet remembers the directory: the request is sent before
the reassignment begins, and repeated until the replica is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from tidelog.cli.many_requests import ask_each
from tidelog.cli.output import say
from tidelog.cli.reassigning.checks import is_same
from tidelog.cli.reassigning.plan_file import LogDirs
from tidelog.cli.reassigning.situation import Situation
from tidelog.cli.refusal import Failed
from tidelog.client.admin.log_dirs import Replica, alter_log_dirs
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, Refused
from tidelog.model.errors import ErrorCode
from tidelog.model.wording import counted, named

TRIED_S = 10.0
"""How long a replica that is not there yet is waited for, as in Kafka's tool."""

POLL_S = 0.2

Outcomes = dict[Replica, ClientError | None]


async def start(cluster: Cluster, wanted: LogDirs) -> Outcomes:
    """Start the moves; return each outcome. A broker that is silent yields its error."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + TRIED_S
    outcomes: Outcomes = {}
    pending = dict(wanted)
    while pending:
        outcomes |= await _alter(cluster, pending)
        pending = {x: path for x, path in pending.items() if _is_not_there(outcomes[x])}
        if not pending or loop.time() > deadline:
            break
        await asyncio.sleep(POLL_S)
    return outcomes


async def prefer(cluster: Cluster, wanted: LogDirs, now: Situation) -> None:
    """Let brokers create the replicas that they do not have yet in these log directories.

    Otherwise a replica is created in another one, and copied twice. ``start`` has the outcome.
    """
    # One that is there moves only after the reassignment has begun, which may be refused.
    new = {
        replica: path
        for replica, path in wanted.items()
        if replica.broker not in now.partitions[replica.where].replicas
    }
    await _alter(cluster, new)


async def _alter(cluster: Cluster, wanted: LogDirs) -> Outcomes:
    brokers = sorted({replica.broker for replica in wanted})
    answers = await ask_each(
        brokers,
        lambda broker: alter_log_dirs(
            cluster,
            broker,
            {replica.where: path for replica, path in wanted.items() if replica.broker == broker},
        ),
        "broker",
    )
    by_broker = dict(zip(brokers, answers, strict=True))
    outcomes: Outcomes = {}
    for replica in wanted:
        of_broker = by_broker[replica.broker]
        outcomes[replica] = (
            of_broker if isinstance(of_broker, ClientError) else of_broker.get(replica.where)
        )
    return outcomes


def _is_not_there(outcome: ClientError | None) -> bool:
    return isinstance(outcome, Refused) and outcome.code is ErrorCode.REPLICA_NOT_AVAILABLE


def say_started(outcomes: Outcomes) -> None:
    """Say which moves were started."""
    started = sorted(replica for replica, outcome in outcomes.items() if outcome is None)
    if started:
        what = "move" if len(started) == 1 else "moves"
        say(f"Successfully started log directory {what} for: {','.join(map(str, started))}")


def outcomes_data(outcomes: Outcomes) -> dict[str, Any]:
    """Return what ``--execute --json`` shows of them: nothing for a plan without directories."""
    if not outcomes:
        return {}
    return {
        "log_dirs": [
            {**_data(replica), "error": None if outcome is None else str(outcome)}
            for replica, outcome in sorted(outcomes.items())
        ]
    }


def raise_first(outcomes: Outcomes) -> None:
    """Raise Failed if a move was not started."""
    failed = {x: outcome for x, outcome in sorted(outcomes.items()) if outcome is not None}
    if failed:
        first = next(iter(failed.values()))
        many = counted(len(failed), "replica")
        raise Failed(f"{many} did not move to a log directory: {named(list(failed))}: {first}")


def verified(wanted: LogDirs, now: Situation) -> list[dict[str, Any]]:
    """Return how far each replica of a plan is, as data for JSON."""
    rows = []
    for replica, path in sorted(wanted.items()):
        present, future = now.path_of(replica), now.future_path_of(replica)
        if future is not None and is_same(future, path):
            state = "in_progress"
        elif present is not None and is_same(present, path):
            state = "completed"
        else:
            state = "missing" if present is None else "different"
        rows.append({**_data(replica), "state": state, "log_dir": present, "target_log_dir": path})
    return rows


def say_verified(rows: Sequence[Mapping[str, Any]]) -> None:
    """Say how far the replicas are."""
    for row in rows:
        partition = f"{row['topic']}-{row['partition']}"
        replica = f"{partition}-{row['broker']}"
        if row["state"] == "completed":
            say(f"Reassignment of replica {replica} completed successfully.")
        elif row["state"] == "in_progress":
            say(f"Reassignment of replica {replica} is still in progress.")
        elif row["state"] == "missing":
            say(
                f"Partition {partition} cannot be found in any live log directory on broker "
                f"{row['broker']}."
            )
        else:
            say(
                f"Partition {partition} on broker {row['broker']} is not being moved from log dir "
                f"{row['log_dir']} to {row['target_log_dir']}."
            )


def _data(replica: Replica) -> dict[str, Any]:
    return {**replica.where._asdict(), "broker": replica.broker}
