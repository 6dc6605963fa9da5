"""The public admin client for asyncio: topics, partitions, configurations, groups, brokers.

Owns arguments, and errors that are raised rather than returned. Not the requests: see
``tidelog.client.admin``. Names follow kafka-python's admin client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar, Unpack

from tidelog.aio.admin_types import (
    ConfigResource,
    NewPartitions,
    NewTopic,
    config_changes,
    new_counts,
    partitions_of,
    position_of,
    resources,
    topic_request,
    topics_to_create,
)
from tidelog.aio.arguments import (
    broker_ids,
    by_place,
    group_name,
    group_names,
    group_states,
    milliseconds,
    offset_or_all,
    offset_spec,
    one_of,
    partition_count,
    topic_name,
    topic_names,
)
from tidelog.aio.cluster_configs import ClusterConfigs, bootstrap_of, check_names, cluster_settings
from tidelog.client.admin import configs, elections, groups, nodes
from tidelog.client.admin import reassignments as moves
from tidelog.client.admin import topics as topic_requests
from tidelog.client.admin.reassignments import Reassignment
from tidelog.client.cluster import Cluster
from tidelog.client.errors import GaveUp, Refused
from tidelog.client.groups.committed_offsets import Position, commit_offsets, committed_offsets
from tidelog.client.metadata import Topic
from tidelog.client.offsets import FoundOffset, IsolationLevel, list_offsets
from tidelog.model.admin_requests import ElectionType
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

Result = TypeVar("Result")
Key = TypeVar("Key")

Partitions = Mapping[str, Iterable[int]] | Iterable[TopicPartition]
Outcomes = dict[Key, Refused | None]
"""The outcome of each item: None for success, otherwise the refusal."""


class Admin:
    """Administers a cluster. ``async with Admin(bootstrap_servers=…) as admin`` starts and closes.

    Each method raises the first refusal (a class of ``tidelog.errors`` for each error code), a
    KafkaConnectionError when no broker responds, and KafkaTimeoutError after its ``timeout_ms``.
    Methods with ``raise_errors`` return each item's outcome instead, if that is False.
    """

    def __init__(self, **configs: Unpack[ClusterConfigs]) -> None:
        check_names(configs, type(self), ClusterConfigs.__annotations__)
        self._cluster = Cluster(bootstrap_of(configs), cluster_settings(configs, "admin"))

    async def __aenter__(self) -> Admin:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect to the cluster. Raises NoBrokersAvailable when no broker responds in time."""
        try:
            await self._cluster.open()
        except BaseException:
            await self._cluster.close()
            raise

    async def close(self) -> None:
        """Close all connections."""
        await self._cluster.close()

    # Topics

    async def list_topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return sorted((await self._cluster.all_topics()).topics)

    async def describe_topics(self, topics: Sequence[str] | None = None) -> list[Topic]:
        """Return these topics, or (None) all: partitions, leaders, counts, resize epoch."""
        if topics is not None:
            topics = topic_names(topics)
            if not topics:
                return []
        described = (await self._cluster.describe(topics)).topics
        _raise_first(
            Refused(topic.error, f"topic {name!r}") if topic.error else None
            for name, topic in described.items()
        )
        return [described[name] for name in (sorted(described) if topics is None else topics)]

    async def create_topics(
        self,
        new_topics: Iterable[NewTopic | str] | Mapping[str, Mapping[str, Any]],
        timeout_ms: int | None = None,
        validate_only: bool = False,
        raise_errors: bool = True,
    ) -> Outcomes[str]:
        """Create topics: names, ``NewTopic`` objects, or {name: options}."""
        wanted = [topic_request(new) for new in topics_to_create(new_topics)]
        work = topic_requests.create_topics(self._cluster, wanted, validate_only=validate_only)
        return _outcomes(await self._within(timeout_ms, work), raise_errors)

    async def delete_topics(
        self, topics: Sequence[str], timeout_ms: int | None = None, raise_errors: bool = True
    ) -> Outcomes[str]:
        """Delete topics."""
        work = topic_requests.delete_topics(self._cluster, topic_names(topics))
        return _outcomes(await self._within(timeout_ms, work), raise_errors)

    async def create_partitions(
        self,
        topic_partitions: Mapping[str, NewPartitions | int],
        timeout_ms: int | None = None,
        validate_only: bool = False,
        raise_errors: bool = True,
    ) -> Outcomes[str]:
        """Change topics to these numbers of partitions; where topics are ordered, also fewer."""
        wanted = new_counts(topic_partitions)
        work = topic_requests.create_partitions(
            self._cluster,
            {name: new.total_count for name, new in wanted.items()},
            assignments={
                name: new.new_assignments
                for name, new in wanted.items()
                if new.new_assignments is not None
            },
            validate_only=validate_only,
        )
        return _outcomes(await self._within(timeout_ms, work), raise_errors)

    async def set_partition_count(
        self,
        topic: str,
        count: int,
        *,
        force: bool = False,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Grow or shrink a topic to ``count`` partitions that take records (KIP-253).

        Returns when the resize is accepted and brokers show the new count. ``force`` shrinks a
        topic although producers that send no count may write to it, or it is compacted and cannot
        grow again. Raises InvalidPartitionsError and other refusals, each with the reason and a way
        out.
        """
        wanted = {topic_name(topic): partition_count(count)}
        asked = topic_requests.create_partitions(
            self._cluster, wanted, validate_only=validate_only, force=force
        )
        _outcomes(await self._within(timeout_ms, asked), True)
        if not validate_only:
            await self._within(timeout_ms, self._until_count(topic, count))

    async def _until_count(self, topic: str, count: int) -> None:
        async def attempt() -> None:
            described = (await self._cluster.describe([topic])).topics[topic]
            if described.error or described.count != count:
                reason = f"it still takes records in {described.count} partitions, not in {count}"
                code = described.error or ErrorCode.LEADER_NOT_AVAILABLE
                raise Refused(code, f"topic {topic!r}", reason)

        await self._cluster.retry(attempt)

    async def delete_records(
        self, records_to_delete: Mapping[TopicPartition, int], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Delete the records below these offsets (-1: all); return the new log starts."""
        offsets = by_place(records_to_delete, "records_to_delete")
        wanted = {tp: offset_or_all(offset) for tp, offset in offsets.items()}
        return await self._within(timeout_ms, topic_requests.delete_records(self._cluster, wanted))

    async def list_offsets(
        self,
        topic_partition_specs: Mapping[TopicPartition, int],
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, FoundOffset]:
        """Look up one offset of each partition: an ``OffsetSpec``, or a time in ms since 1970."""
        specs = by_place(topic_partition_specs, "topic_partition_specs")
        wanted = {tp: offset_spec(spec) for tp, spec in specs.items()}
        level = one_of(isolation_level, IsolationLevel, "isolation_level")
        work = list_offsets(self._cluster, wanted, isolation=level)
        return await self._within(timeout_ms, work)

    # Replicas and leaders

    async def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[int] | None],
        timeout_ms: int | None = None,
        raise_errors: bool = True,
    ) -> Outcomes[TopicPartition]:
        """Start or change moves of partitions to these brokers, or (None) cancel them."""
        wanted = {
            tp: None if brokers is None else broker_ids(brokers)
            for tp, brokers in by_place(reassignments, "reassignments").items()
        }
        work = moves.alter_reassignments(self._cluster, wanted)
        return _outcomes(await self._within(timeout_ms, work), raise_errors)

    async def list_partition_reassignments(
        self, topic_partitions: Partitions | None = None, timeout_ms: int | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """Return the running moves of these partitions, or (None) all."""
        work = moves.list_reassignments(self._cluster, partitions_of(topic_partitions))
        return await self._within(timeout_ms, work)

    async def elect_leaders(
        self,
        election_type: ElectionType | int,
        topic_partitions: Partitions | None = None,
        timeout_ms: int | None = None,
        raise_errors: bool = True,
    ) -> Outcomes[TopicPartition]:
        """Elect leaders of these partitions, or (None) of all: the preferred ones, or unclean.

        A partition that needs no election is no error, and has ElectionNotNeededError as outcome.
        """
        kind = one_of(election_type, ElectionType, "election_type")
        wanted = partitions_of(topic_partitions)
        work = elections.elect_leaders(self._cluster, kind, wanted)
        outcomes = await self._within(timeout_ms, work)
        if raise_errors:
            not_needed = ErrorCode.ELECTION_NOT_NEEDED
            _raise_first(
                outcome for outcome in outcomes.values() if outcome and outcome.code != not_needed
            )
        return outcomes

    # Brokers and configurations

    async def describe_cluster(self) -> nodes.DescribedCluster:
        """Return the cluster id, the controller and the brokers."""
        return await nodes.describe_cluster(self._cluster)

    async def describe_log_dirs(
        self,
        brokers: Iterable[int] | None = None,
        timeout_ms: int | None = None,
        raise_errors: bool = True,
    ) -> nodes.BrokerLogDirs:
        """Return the log directories of these brokers, or (None) of all, with their replicas.

        Raises ListingIncompleteError when a broker did not respond: its ``valid`` has those of the
        others. Without ``raise_errors`` these are returned, and ``errors`` of the result has the
        error of each broker that did not. It waits for a broker as long as for any request
        (``default_api_timeout_ms``), or for ``timeout_ms``.
        """
        if brokers is None:
            brokers = [broker.node_id for broker in (await self.describe_cluster()).brokers]
        return await nodes.describe_all_log_dirs(
            self._cluster, broker_ids(brokers), timeout_ms=timeout_ms, raise_errors=raise_errors
        )

    async def describe_configs(
        self, config_resources: Iterable[ConfigResource]
    ) -> dict[ConfigResource, dict[str, configs.DescribedConfig]]:
        """Return the configurations of each resource by name: those in ``configs``, or all."""
        by_resource = {}
        for resource in resources(config_resources):
            described = await configs.describe_configs(
                self._cluster, resource.resource_type, resource.name
            )
            names = resource.configs
            by_resource[resource] = {
                entry.name: entry for entry in described if names is None or entry.name in names
            }
        return by_resource

    async def alter_configs(
        self, config_resources: Iterable[ConfigResource], validate_only: bool = False
    ) -> None:
        """Change the configurations that each resource names, and no others (incrementally)."""
        for resource in resources(config_resources):
            await configs.change_configs(
                self._cluster,
                resource.resource_type,
                resource.name,
                config_changes(resource),
                validate_only=validate_only,
            )

    incremental_alter_configs = alter_configs

    # Groups

    async def list_groups(
        self, states_filter: Iterable[str] = (), raise_errors: bool = True
    ) -> groups.GroupListings:
        """Return the groups of all brokers, sorted by id; only those in these states, if given.

        Raises ListingIncompleteError when a broker did not list its groups within 5 s: its
        ``valid`` are the groups of the others. Without ``raise_errors`` these are returned, and
        ``errors`` of the result names the brokers that did not.
        """
        states = group_states(states_filter)
        return await groups.list_all_groups(self._cluster, states, raise_errors=raise_errors)

    async def describe_groups(self, group_ids: Iterable[str]) -> dict[str, groups.GroupDescription]:
        """Return each group with its members; an unknown one is in the state Dead."""
        wanted = group_names(group_ids)
        descriptions = await asyncio.gather(
            *(groups.describe_group(self._cluster, group) for group in wanted)
        )
        return dict(zip(wanted, descriptions, strict=True))

    async def delete_groups(
        self, group_ids: Iterable[str], raise_errors: bool = True
    ) -> Outcomes[str]:
        """Delete groups without members, with their committed offsets."""
        outcomes: Outcomes[str] = {}
        for group in group_names(group_ids):
            outcomes[group] = None
            try:
                await groups.delete_group(self._cluster, group)
            except Refused as refused:
                outcomes[group] = refused
        return _outcomes(outcomes, raise_errors)

    async def list_group_offsets(
        self, group_id: str, partitions: Partitions | None = None
    ) -> dict[TopicPartition, Position]:
        """Return the committed offsets of a group: of these partitions, or (None) all of them."""
        wanted = partitions_of(partitions)
        return await committed_offsets(self._cluster, group_name(group_id), wanted)

    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, Any]
    ) -> None:
        """Set committed offsets of a group without members: integers, or OffsetAndMetadata."""
        given = by_place(offsets, "offsets")
        wanted = {tp: position_of(position) for tp, position in given.items()}
        await commit_offsets(self._cluster, group_name(group_id), wanted)

    async def delete_group_offsets(
        self, group_id: str, partitions: Partitions, raise_errors: bool = True
    ) -> Outcomes[TopicPartition]:
        """Delete committed offsets of a group that does not read these partitions now."""
        wanted = partitions_of(partitions) or []
        outcomes = await groups.delete_offsets(self._cluster, group_name(group_id), wanted)
        return _outcomes(outcomes, raise_errors)

    list_partition_offsets = list_offsets
    list_consumer_groups = list_groups
    describe_consumer_groups = describe_groups
    delete_consumer_groups = delete_groups
    list_consumer_group_offsets = list_group_offsets
    alter_consumer_group_offsets = alter_group_offsets
    delete_consumer_group_offsets = delete_group_offsets

    async def _within(self, timeout_ms: int | None, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            limit_s = None if timeout_ms is None else milliseconds(timeout_ms) / 1000
        except BaseException:
            work.close()
            raise
        try:
            async with asyncio.timeout(limit_s):
                return await work
        except TimeoutError:
            raise GaveUp(
                f"no response within {timeout_ms} ms: the request may still be carried out"
            ) from None


def _outcomes(outcomes: Outcomes[Key], raise_errors: bool) -> Outcomes[Key]:
    if raise_errors:
        _raise_first(outcomes.values())
    return outcomes


def _raise_first(outcomes: Iterable[Refused | None]) -> None:
    for refusal in outcomes:
        if refusal is not None:
            raise refusal
