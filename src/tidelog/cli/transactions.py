"""The ``tidelog transactions`` command: lists and ends transactions, as kafka-transactions does.

Owns the flags and the output. Not the requests: see ``client.admin.transactions``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import click

from tidelog.cli.connecting import (
    SECRET_FILE,
    CommonOptions,
    exactly_one_of,
    run,
    subcommand_options,
)
from tidelog.cli.failures import explain
from tidelog.cli.many_requests import ask_each
from tidelog.cli.name_options import topic_option
from tidelog.cli.output import print_json, print_table, say
from tidelog.cli.refusal import Failed, WrongUsage, print_error
from tidelog.client.admin import aborting
from tidelog.client.admin import transactions as admin
from tidelog.client.admin.aborting import Aborts
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, Refused
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.model.wording import counted

COORDINATORS, LEADERS = "the coordinators of transactions", "the leaders of the partitions"

MOST_MINUTES = 15
"""``transaction.max.timeout.ms`` of brokers, as they come."""

LISTED_PRODUCERS = 1_000
"""Producer ids of one request."""

_ADVICE = {
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "`tidelog transactions list` lists the ids",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "leave --broker-id out, and the leader is asked",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "transactions need level 1.6 of all processes",
}


@click.group("transactions")
@subcommand_options
def command(_asked: CommonOptions, /, **_flags: Any) -> None:
    """List, describe and end transactions."""


@command.command("list")
@subcommand_options
@click.option(
    "--duration-filter",
    type=click.IntRange(min=0),
    help="Only transactions that began more than so many ms ago.",
)
@click.option(
    "--transactional-id-pattern", help="Only ids that this regular expression matches as a whole."
)
def list_command(asked: CommonOptions, /, **flags: Any) -> None:
    """List the transactional ids of all coordinators, with their states."""
    wanted = _pattern(flags["transactional_id_pattern"])
    longer_than_ms = -1 if flags["duration_filter"] is None else flags["duration_filter"]

    async def work(cluster: Cluster) -> tuple[list[admin.TransactionListing], list[str]]:
        return await listed(cluster, longer_than_ms=longer_than_ms)

    rows, silent = run(asked, work, awaited=COORDINATORS)
    rows = sorted(
        (one for one in rows if wanted.fullmatch(one.transactional_id)),
        key=lambda one: one.transactional_id,
    )
    if asked.as_json:
        print_json(
            [
                {
                    "transactional_id": one.transactional_id,
                    "coordinator": one.coordinator,
                    "producer_id": one.producer_id,
                    "state": one.state,
                }
                for one in rows
            ]
        )
    else:
        print_table(
            ["TransactionalId", "Coordinator", "ProducerId", "TransactionState"],
            [[one.transactional_id, one.coordinator, one.producer_id, one.state] for one in rows],
            right=["Coordinator", "ProducerId"],
            folds=["TransactionalId"],
        )
    _fail_for(silent)


@command.command("describe")
@subcommand_options
@click.option("--transactional-id", required=True, help="The id.")
def describe_command(asked: CommonOptions, /, transactional_id: str, **_flags: Any) -> None:
    """Describe a transactional id: its producer, its state, and what it has open."""
    shown = _advised(
        asked,
        lambda cluster: admin.describe_transaction(cluster, transactional_id),
        awaited=COORDINATORS,
    )
    open_ms = None if shown.started_ms < 0 else max(0, _now_ms() - shown.started_ms)
    if asked.as_json:
        print_json(
            {
                "transactional_id": shown.transactional_id,
                "coordinator": shown.coordinator,
                "producer_id": shown.producer_id,
                "producer_epoch": shown.producer_epoch,
                "state": shown.state,
                "timeout_ms": shown.timeout_ms,
                "started_ms": None if open_ms is None else shown.started_ms,
                "duration_ms": open_ms,
                "partitions": [tp._asdict() for tp in shown.partitions],
            }
        )
        return
    row = [
        shown.coordinator,
        transactional_id,
        shown.producer_id,
        shown.producer_epoch,
        shown.state,
        shown.timeout_ms,
        None if open_ms is None else shown.started_ms,
        open_ms,
        ",".join(map(str, shown.partitions)),
    ]
    numbers = ["CoordinatorId", "ProducerId", "ProducerEpoch", "TransactionTimeoutMs"]
    times = ["CurrentTransactionStartTimeMs", "TransactionDurationMs"]
    columns = [
        *(numbers[0], "TransactionalId", *numbers[1:3], "TransactionState", numbers[3]),
        *(*times, "TopicPartitions"),
    ]
    print_table(columns, [row], right=[*numbers, *times], folds=["TopicPartitions"])


@command.command("describe-producers")
@subcommand_options
@topic_option(required=True, help="The topic.")
@click.option("--partition", type=click.IntRange(min=0), required=True, help="Its partition.")
@click.option("--broker-id", type=click.IntRange(min=0), help="Ask this broker, not the leader.")
def producers_command(asked: CommonOptions, /, **flags: Any) -> None:
    """List the producers that a partition remembers, and what they have open in it."""
    place = TopicPartition(flags["topic"], flags["partition"])
    states = _advised(
        asked,
        lambda cluster: admin.describe_producers(cluster, [place], node_id=flags["broker_id"]),
        awaited=LEADERS,
    )
    rows = sorted(states[place], key=lambda one: one.producer_id)
    if asked.as_json:
        print_json([_producer_json(one) for one in rows])
        return
    columns = ["ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch", "LastSequence"]
    columns += ["LastTimestamp", "CurrentTransactionStartOffset"]
    cells = [
        [
            one.producer_id,
            one.producer_epoch,
            _or_none(one.coordinator_epoch),
            _or_none(one.last_sequence),
            one.last_ms,
            _or_none(one.open_since),
        ]
        for one in rows
    ]
    print_table(columns, cells, right=columns)


@command.command("find-hanging")
@subcommand_options
@topic_option(help="The topic; without it all topics.")
@click.option("--partition", type=click.IntRange(min=0), help="The partition of --topic.")
@click.option("--broker-id", type=click.IntRange(min=0), help="Only partitions that it leads.")
@click.option(
    "--max-transaction-timeout",
    type=click.IntRange(min=0),
    default=MOST_MINUTES,
    show_default=True,
    help="Minutes without a record after which a transaction may hang.",
)
def hanging_command(asked: CommonOptions, /, **flags: Any) -> None:
    """Find transactions that are open in partitions and over, or unknown, at coordinators."""
    if flags["partition"] is not None and flags["topic"] is None:
        raise WrongUsage("--partition needs --topic")
    before_ms = _now_ms() - flags["max_transaction_timeout"] * 60_000

    async def work(cluster: Cluster) -> tuple[admin.Hanging, list[str]]:
        places = await _places(cluster, flags)
        return await find_hanging(cluster, places, before_ms)

    judged, trouble = _advised(asked, work, awaited=LEADERS)
    _show_hanging(judged.hanging, asked.as_json)
    for tp, producers in judged.doubtful.items():
        ids = ", ".join(str(one.producer_id) for one in producers)
        trouble.append(f"{tp}: producer {ids} may be a coordinator's that did not answer")
    _fail_for(trouble)


@command.command("abort")
@subcommand_options
@topic_option(required=True, help="The topic.")
@click.option("--partition", type=click.IntRange(min=0), required=True, help="Its partition.")
@click.option("--start-offset", type=click.IntRange(min=0), help="The first offset of it.")
@click.option("--producer-id", type=click.IntRange(min=0), help="Its producer.")
@click.option("--producer-epoch", type=click.IntRange(min=0), help="With --producer-id.")
@click.option("--coordinator-epoch", type=click.IntRange(min=0), help="With --producer-id.")
@click.option(
    "--cluster-secret-file",
    "secret_file",
    type=click.Path(dir_okay=False),
    help="The servers' cluster.secret.file, for what no coordinator has.",
)
def abort_command(asked: CommonOptions, /, **flags: Any) -> None:
    """Abort a transaction that is open in a partition, by its coordinator if that has it."""
    way = exactly_one_of(flags, "--start-offset", "--producer-id")
    epochs = [flags[name] is not None for name in ("producer_epoch", "coordinator_epoch")]
    if epochs != [way == "--producer-id"] * 2:
        raise WrongUsage(
            "--producer-id, --producer-epoch and --coordinator-epoch go together, and without "
            "--start-offset"
        )
    place = TopicPartition(flags["topic"], flags["partition"])
    secret = flags["secret_file"]
    producer, by, name = _advised(
        asked,
        lambda cluster: abort(cluster, place, flags),
        awaited=COORDINATORS,
        properties={SECRET_FILE: secret} if secret else {},
    )
    if asked.as_json:
        answer = {**place._asdict(), **_producer_json(producer)}
        print_json({**answer, "aborted_by": by, "transactional_id": name})
        return
    of_id = f" of {name}" if name else ""
    extent = "in all its partitions" if by == "coordinator" else "in this partition"
    say(
        f"{place}: the transaction{of_id} from offset {producer.open_since} "
        f"(producer {producer.producer_id}, epoch {producer.producer_epoch}) was aborted {extent}."
    )


@command.command("force-terminate")
@subcommand_options
@click.option("--transactional-id", required=True, help="The id.")
def terminate_command(asked: CommonOptions, /, transactional_id: str, **_flags: Any) -> None:
    """Abort what a transactional id has open, and fence its producers."""

    async def work(cluster: Cluster) -> tuple[admin.TransactionDescription, int]:
        described = await admin.describe_transaction(cluster, transactional_id)
        return described, await admin.fence(cluster, described)

    described, epoch = _advised(asked, work, awaited=COORDINATORS)
    if asked.as_json:
        print_json(
            {
                "transactional_id": transactional_id,
                "former_state": described.state,
                "producer_id": described.producer_id,
                "fenced_below_epoch": epoch,
            }
        )
        return
    many = counted(len(described.partitions), "partition")
    say(
        f"{transactional_id}: it was {described.state} with {many}; its producers are fenced "
        f"(epoch {epoch}), and nothing of it is open."
    )


async def listed(
    cluster: Cluster, *, producers: Iterable[int] = (), longer_than_ms: int = -1
) -> tuple[list[admin.TransactionListing], list[str]]:
    """Return what all brokers list, and a line for each that does not answer."""
    brokers, wanted = sorted(cluster.view.brokers), sorted(producers)
    answers = await ask_each(
        brokers,
        lambda node_id: admin.list_of(
            cluster, node_id, producers=wanted, longer_than_ms=longer_than_ms
        ),
        "broker",
    )
    rows: list[admin.TransactionListing] = []
    silent = []
    for node_id, answer in zip(brokers, answers, strict=True):
        if isinstance(answer, ClientError):
            silent.append(f"broker {node_id} did not list its transactions: {explain(answer)}")
        else:
            rows += answer
    return rows, silent


async def find_hanging(
    cluster: Cluster, places: list[TopicPartition], before_ms: int
) -> tuple[admin.Hanging, list[str]]:
    """Return which transactions hang in partitions, and a line for each thing that is not known.

    The leaders are asked again at the end: what ended meanwhile does not hang.
    """
    failed: dict[TopicPartition, ClientError] = {}
    first = await admin.describe_producers(cluster, places, failed=failed)
    candidates = admin.open_since(first, before_ms)
    ids = sorted({one.producer_id for some in candidates.values() for one in some})
    described, trouble = await known_of(cluster, ids)
    judged = admin.judge(candidates, described, all_answered=not trouble)
    if judged.hanging:
        again = await admin.describe_producers(cluster, judged.hanging, failed=failed)
        still = {
            tp: [one for one in some if one in again.get(tp, some)]
            for tp, some in judged.hanging.items()
        }
        judged = admin.Hanging({tp: some for tp, some in still.items() if some}, judged.doubtful)
    trouble += [f"{tp}: {explain(error)}" for tp, error in sorted(failed.items())]
    return judged, trouble


async def known_of(
    cluster: Cluster, producers: list[int]
) -> tuple[list[admin.TransactionDescription], list[str]]:
    """Return what the coordinators say of producer ids, and a line for each that is silent."""
    described: list[admin.TransactionDescription] = []
    trouble: dict[str, None] = {}
    for begin in range(0, len(producers), LISTED_PRODUCERS):
        rows, silent = await listed(cluster, producers=producers[begin : begin + LISTED_PRODUCERS])
        trouble.update(dict.fromkeys(silent))
        answers = await ask_each(
            [one.transactional_id for one in rows],
            lambda name: admin.describe_transaction(cluster, name),
            "the coordinator of",
        )
        for one in answers:
            if not isinstance(one, ClientError):
                described.append(one)
            elif not _is_gone(one):  # an id that expired meanwhile has nothing open
                trouble[explain(one)] = None
    return described, list(trouble)


async def abort(
    cluster: Cluster, place: TopicPartition, flags: Mapping[str, Any]
) -> tuple[admin.ActiveProducer, str, str | None]:
    """Abort what is open; return its producer, the process that did it, and the id. Raises
    Failed, Refused."""
    producer = _named(place, (await admin.describe_producers(cluster, [place]))[place], flags)
    described, silent = await known_of(cluster, [producer.producer_id])
    action, its = aborting.aborted_by(place, producer, described, all_answered=not silent)
    if action is Aborts.IN_DOUBT:
        raise Failed(f"{silent[0]}; nothing was aborted: its coordinator may have the transaction")
    name = None if its is None else its.transactional_id
    if action is Aborts.ENDS_SOON:
        raise Failed(
            f"{place}: the marker of {name} is on its way; `tidelog doctor` names silent brokers"
        )
    if action is Aborts.MAY_BE_COMMITTED:
        raise Failed(
            f"{place}: {name} committed its last transaction, of which this may be a part: its "
            f"leader ends it by itself, within transaction.max.timeout.ms"
        )
    if action is Aborts.FENCES and its is not None:
        await admin.fence(cluster, its)
        return producer, "coordinator", name
    epoch = flags["coordinator_epoch"]
    if epoch is None:
        epoch = max(0, producer.coordinator_epoch)
    try:
        await aborting.write_abort(cluster, place, producer, epoch)
    except Refused as error:
        if error.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        raise Failed(
            f"{place}: no coordinator has the transaction, and its leader takes the abort only "
            f"with the cluster secret ({error.code.name}); give --cluster-secret-file"
        ) from error
    return producer, "leader", name


def _named(
    place: TopicPartition, producers: list[admin.ActiveProducer], flags: Mapping[str, Any]
) -> admin.ActiveProducer:
    """Return the producer that the flags name. Raises Failed when it has nothing open."""
    offset, owner = flags["start_offset"], (flags["producer_id"], flags["producer_epoch"])
    for one in producers:
        its = one.producer_id, one.producer_epoch
        if one.open_since >= 0 and (one.open_since == offset or its == owner):
            return one
    subject = f"no transaction begins at offset {offset}"
    if offset is None:
        subject = f"producer {owner[0]}, epoch {owner[1]}, has nothing open"
    raise Failed(
        f"{place}: {subject}; `tidelog transactions describe-producers` lists what is open"
    )


def _is_gone(error: ClientError) -> bool:
    return isinstance(error, Refused) and error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


async def _places(cluster: Cluster, flags: Mapping[str, Any]) -> list[TopicPartition]:
    """Return the partitions that the flags name. Raises Refused for an unknown one."""
    topic, partition, leader = flags["topic"], flags["partition"], flags["broker_id"]
    topics = (await cluster.all_topics()).topics
    places = [
        TopicPartition(name, index)
        for name, of_topic in sorted(topics.items())
        for index, part in sorted(of_topic.partitions.items())
        if topic in (None, name) and partition in (None, index) and leader in (None, part.leader)
    ]
    if not places and topic is not None and leader is None:
        subject = topic if partition is None else f"{topic}-{partition}"
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, subject)
    if not places and leader is not None and leader not in cluster.view.brokers:
        raise Failed(f"broker {leader} is not alive; `tidelog doctor` lists the brokers")
    return places


def _show_hanging(
    hanging: Mapping[TopicPartition, list[admin.ActiveProducer]], as_json: bool
) -> None:
    rows = [(tp, one) for tp in sorted(hanging) for one in hanging[tp]]
    now_ms = _now_ms()
    if as_json:
        print_json([{**tp._asdict(), **_producer_json(one)} for tp, one in rows])
        return
    if not rows:
        say("No transaction hangs.")
        return
    numbers = ["Partition", "ProducerId", "ProducerEpoch", "CoordinatorEpoch", "StartOffset"]
    cells = [
        [
            *(tp.topic, tp.partition, one.producer_id, one.producer_epoch),
            *(_or_none(one.coordinator_epoch), one.open_since),
            datetime.fromtimestamp(one.last_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            max(0, now_ms - one.last_ms) // 60_000,
        ]
        for tp, one in rows
    ]
    columns = ["Topic", *numbers, "LastTimestamp", "Duration(min)"]
    print_table(columns, cells, right=[*numbers, "Duration(min)"], spare=["LastTimestamp"])


def _producer_json(one: admin.ActiveProducer) -> dict[str, Any]:
    return {
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "coordinator_epoch": _or_none(one.coordinator_epoch),
        "last_sequence": _or_none(one.last_sequence),
        "last_timestamp_ms": one.last_ms,
        "start_offset": _or_none(one.open_since),
    }


def _advised(
    asked: CommonOptions, work: Any, *, awaited: str, properties: Mapping[str, str] | None = None
) -> Any:
    """Run a command's work; an error of the cluster has the advice for transactions."""
    try:
        return run(asked, work, awaited=awaited, properties=properties)
    except Refused as error:
        raise Failed(explain(error, _ADVICE.get(error.code, ""))) from error


def _fail_for(lines: list[str]) -> None:
    """Print lines about what is not known; with any of them the exit status is 1."""
    for line in lines[:-1]:
        print_error(line)
    if lines:
        raise Failed(lines[-1])


def _pattern(text: str | None) -> re.Pattern[str]:
    try:
        return re.compile(".*" if text is None else text, re.DOTALL)
    except re.error as error:
        raise WrongUsage(
            f"--transactional-id-pattern {text!r} is not a regular expression: {error}"
        ) from None


def _or_none(value: int) -> int | None:
    return None if value < 0 else value


def _now_ms() -> int:
    return int(time.time() * 1000)
