"""The throttles that limit moves: ours, one rate for all targets that have not joined, and those
of Kafka's tool, which are rates of brokers and lists of replicas in topics.

Owns their setting, reading and removal. A throttle outlives the command that set it, and slows
every later move, whichever tool starts it: so each command says which ones are in force, and
``--verify`` and ``--cancel`` end all of them (KIP-542).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from tidelog.cli.many_requests import ask_each
from tidelog.cli.output import note
from tidelog.client.admin.configs import (
    DescribedConfig,
    Source,
    alter_configs,
    describe_configs,
    describe_topics_configs,
)
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, Refused
from tidelog.model.admin_requests import ResourceType
from tidelog.model.wording import named

RATE = "reassignment.throttled.rate"

SIDES = ("leader", "follower")

RATES = (RATE, *(f"{side}.replication.throttled.rate" for side in SIDES))

LISTS = tuple(f"{side}.replication.throttled.replicas" for side in SIDES)

ALL_BROKERS = ""
"""The resource name of the default of all brokers."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One rate in force: of one broker, or (``ALL_BROKERS``) the default of all."""

    name: str
    broker: str
    bytes_per_second: int


async def set_rate(cluster: Cluster, bytes_per_second: int | None) -> None:
    """Limit what each broker sends to targets, and what its own targets fetch; None ends that.

    Raises Refused.
    """
    if bytes_per_second is None:
        await alter_configs(cluster, ResourceType.BROKER, ALL_BROKERS, delete=[RATE])
        return
    values = {RATE: str(bytes_per_second)}
    await alter_configs(cluster, ResourceType.BROKER, ALL_BROKERS, set_values=values)


async def rate_of(cluster: Cluster) -> int | None:
    """Return our limit in bytes per second, None if there is none. Raises Refused."""
    configs = await describe_configs(cluster, ResourceType.BROKER, ALL_BROKERS, keys=[RATE])
    limits = _limits(ALL_BROKERS, configs)
    return limits[0].bytes_per_second if limits else None


async def limits_of(cluster: Cluster, brokers: Iterable[int]) -> list[Limit]:
    """Return all rates in force, of every live broker that responds. Raises Refused."""
    default = await describe_configs(cluster, ResourceType.BROKER, ALL_BROKERS, keys=RATES)
    ids = [str(broker) for broker in sorted(brokers)]

    async def ask(broker: str) -> list[DescribedConfig]:
        return await describe_configs(cluster, ResourceType.BROKER, broker, keys=RATES)

    limits = _limits(ALL_BROKERS, default)
    answers = await ask_each(ids, ask, "broker")
    for broker, answer in zip(ids, answers, strict=True):
        if not isinstance(answer, ClientError):
            limits += _limits(broker, answer)
    return limits


async def note_limits(cluster: Cluster, brokers: Iterable[int]) -> None:
    """Say on stderr which throttles are in force: another command may have set them."""
    for line in lines_of(await limits_of(cluster, brokers)):
        note(line)


def lines_of(limits: Collection[Limit]) -> list[str]:
    """Return a line for each rate in force, with the brokers that have it."""
    brokers: dict[tuple[str, int], list[str]] = {}
    for limit in limits:
        brokers.setdefault((limit.name, limit.bytes_per_second), []).append(limit.broker)
    lines = []
    for (name, rate), ids in brokers.items():
        whose = "all brokers" if ALL_BROKERS in ids else f"broker {named(ids)}"
        what = "moves are limited" if name == RATE else "the replicas that topics list are limited"
        lines.append(
            f"{what} to {rate:,} bytes per second ({name} of {whose}); --verify or --cancel ends "
            "this when no move remains"
        )
    return lines


async def remove_limits(
    cluster: Cluster, brokers: Iterable[int], topics: Collection[str]
) -> list[str]:
    """Remove the rates of all brokers, and the lists of these topics; return the names of what was
    removed. Raises Refused."""
    # A list alone limits nothing: with the rates gone, a failure below leaves no move throttled.
    limits = await limits_of(cluster, brokers)
    for broker in dict.fromkeys(limit.broker for limit in limits):
        names = [limit.name for limit in limits if limit.broker == broker]
        await alter_configs(
            cluster, ResourceType.BROKER, broker, delete=names, may_be_away=bool(broker)
        )
    removed = dict.fromkeys(limit.name for limit in limits)
    for topic, names in (await _lists(cluster, topics)).items():
        await alter_configs(cluster, ResourceType.TOPIC, topic, delete=names)
        removed |= dict.fromkeys(names)
    return list(removed)


async def _lists(cluster: Cluster, topics: Collection[str]) -> Mapping[str, list[str]]:
    configs = await describe_topics_configs(cluster, sorted(topics), LISTS)
    lists = {}
    for topic, entries in configs.items():
        if isinstance(entries, Refused):
            continue  # The topic was deleted, with its lists.
        names = [x.name for x in entries if x.source is Source.DYNAMIC_TOPIC_CONFIG and x.value]
        if names:
            lists[topic] = names
    return lists


def _limits(broker: str, entries: Iterable[DescribedConfig]) -> list[Limit]:
    own = Source.DYNAMIC_BROKER_CONFIG if broker else Source.DYNAMIC_DEFAULT_BROKER_CONFIG
    return [
        Limit(entry.name, broker, int(entry.value))
        for entry in entries
        if entry.name in RATES and entry.source is own and entry.value
    ]
