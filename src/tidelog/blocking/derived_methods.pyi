# Written by `python -m tests.support.blocking_stubs`; do not edit.
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from tidelog.aio.admin import Admin as AsyncAdmin
from tidelog.aio.admin import Outcomes, Partitions
from tidelog.aio.admin_types import ConfigResource, NewPartitions, NewTopic
from tidelog.aio.consumer import Consumer as AsyncConsumer
from tidelog.aio.consumer_types import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    PartitionKeyRebalanceListener,
)
from tidelog.aio.producer import Producer as AsyncProducer
from tidelog.blocking.caller_thread import CallerThread
from tidelog.blocking.loop import ClientLoop
from tidelog.client.admin import configs, groups, nodes
from tidelog.client.admin.reassignments import Reassignment
from tidelog.client.groups.committed_offsets import Position
from tidelog.client.metadata import Topic
from tidelog.client.offsets import FoundOffset, IsolationLevel
from tidelog.client.producing.transaction import PreparedTransaction
from tidelog.model.admin_requests import ElectionType
from tidelog.model.topics import TopicPartition

class ConsumerMethods:
    """The methods of a consumer that differ only in that they block."""
    def __init__(self, caller: CallerThread, client: AsyncConsumer) -> None: ...
    def subscribe(
        self,
        topics: Collection[str] = (),
        pattern: str | None = None,
        listener: Any = None,
        partition_key_listener: PartitionKeyRebalanceListener | None = None,
    ) -> None:
        """Read topics: these, or all whose whole name the regular expression ``pattern`` matches.

        It replaces the former subscription. With a group_id its members share the partitions;
        without one this consumer reads all of them. ``listener``: a ConsumerRebalanceListener.
        """
    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without other members; positions of kept ones stay."""
    def subscription(self) -> set[str]:
        """Return the topics subscribed to."""
    def assignment(self) -> set[TopicPartition]:
        """Return the partitions that are read, by the last rebalance."""
    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return what a transaction says of this consumer to commit its offsets (KIP-447).

        It has the generation of the last ``poll``: a group that has gone on since refuses it, and
        the transaction is to be aborted. Raises IllegalStateError without a group_id.
        """
    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read on at ``offset``. Beyond a shut gate nothing is returned until it opens."""
    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record of an assigned partition, once it is known."""
    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these partitions until ``resume``; the group stays as it is.

        As in Kafka, a rebalance that revokes all partitions ends it, and a resize causes one: with
        cooperative-sticky it lasts.
        """
    def resume(self, *partitions: TopicPartition) -> None:
        """Return records of these partitions again."""
    def paused(self) -> set[TopicPartition]:
        """Return the paused partitions."""
    def waiting(self) -> dict[TopicPartition, str]:
        """Return what each partition whose gate is shut waits for (KIP-253), as a sentence."""
    def highwater(self, partition: TopicPartition) -> int | None:
        """Return the end of a partition in the last answer of its leader."""
    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None
    ) -> None:
        """Commit these positions, or those after all returned records.

        Raises CommitFailed when the group has gone on without this consumer, and Refused with
        REBALANCE_IN_PROGRESS while it joins again: poll, then commit.
        """
    def committed(
        self, partition: TopicPartition, metadata: bool = False
    ) -> int | OffsetAndMetadata | None:
        """Return what the group has committed in a partition; None for nothing."""
    def topics(self) -> set[str]:
        """Return the names of all topics."""
    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partitions of a topic from fresh metadata; None if there is no such topic."""
    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record at or after each time (ms); None where there is none."""
    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where the logs of partitions begin."""
    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where the logs of partitions end, by the isolation level."""
    def bootstrap_connected(self) -> bool:
        """Whether the cluster was reached."""
    def metrics(self) -> dict[str, dict[str, float]]:
        """Return figures of this consumer since it was made."""

class ProducerMethods:
    """The transactions of a producer: each call comes after the records before it."""
    def __init__(
        self, wait: Callable[[Coroutine[Any, Any, Any]], Any], client: AsyncProducer
    ) -> None: ...
    def init_transactions(self) -> None:
        """Get this producer its id; call it once, before the first transaction.

        Any other producer of the transactional id is fenced, and what it has left open is aborted.
        Raises ProducerEndedError with the broker's sentence where the cluster offers no
        transactions, KafkaTimeoutError after ``max_block_ms``: then call it again.
        """
    def begin_transaction(self) -> None:
        """Open a transaction. Raises IllegalStateError while another one is open.

        After a prepared transaction it asks for the next epoch first: then it also raises
        ProducerEndedError, and KafkaTimeoutError after ``max_block_ms``: call it again.
        """
    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group_metadata: ConsumerGroupMetadata | str,
    ) -> None:
        """Let a group's offsets be committed with the transaction, and never without it (KIP-447).

        ``offsets``: of the next records to read. ``group_metadata``: what the consumer's
        ``group_metadata()`` returns; or the name of the group, which then cannot refuse a member
        that was replaced. Raises TransactionAbortableError, also after ``max_block_ms``, and
        ProducerEndedError.
        """
    def commit_transaction(self) -> None:
        """Wait for the outcome of every record, and commit the transaction.

        Raises TransactionAbortableError when a record failed: abort. Raises ProducerEndedError
        when no transaction of this producer can succeed: close it. Raises KafkaTimeoutError after
        ``max_block_ms``: the outcome is open, call it again.
        """
    def abort_transaction(self) -> None:
        """Abort the transaction: no read_committed consumer gets its records.

        Records without an outcome fail. Raises as ``commit_transaction``, except that nothing is
        left to abort.
        """
    def prepare(self) -> PreparedTransaction | None:
        """Wait for the outcome of every record, and return what ends this transaction later.

        Any process may pass it to ``complete_transaction``, within ``transaction_timeout_ms`` of
        its begin. None: nothing was sent, and there is nothing to end. Raises as
        ``commit_transaction``.
        """
    def complete_transaction(
        self, prepared: PreparedTransaction | None, commit: bool = True
    ) -> None:
        """Commit (or abort) a transaction that any producer has prepared.

        The same again, also by another process, is a success until a producer of its id begins
        another transaction or calls ``init_transactions``. This producer may have another
        transactional id, or none, and fences no other one. Raises ProducerFencedError when the
        transaction was aborted by its time-out or by a later producer of its id, or was ended and a
        producer of its id has gone on; BrokerResponseError (INVALID_TXN_STATE) when it was ended
        the other way.
        """

class AdminMethods:
    """The methods of an admin client, which differ only in that they block."""
    def __init__(self, loop: ClientLoop, client: AsyncAdmin) -> None: ...
    def list_topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
    def describe_topics(self, topics: Sequence[str] | None = None) -> list[Topic]:
        """Return these topics, or (None) all: partitions, leaders, counts, resize epoch."""
    def create_topics(
        self,
        new_topics: Iterable[NewTopic | str] | Mapping[str, Mapping[str, Any]],
        timeout_ms: int | None = None,
        validate_only: bool = False,
        raise_errors: bool = True,
    ) -> Outcomes[str]:
        """Create topics: names, ``NewTopic`` objects, or {name: options}."""
    def delete_topics(
        self, topics: Sequence[str], timeout_ms: int | None = None, raise_errors: bool = True
    ) -> Outcomes[str]:
        """Delete topics."""
    def create_partitions(
        self,
        topic_partitions: Mapping[str, NewPartitions | int],
        timeout_ms: int | None = None,
        validate_only: bool = False,
        raise_errors: bool = True,
    ) -> Outcomes[str]:
        """Change topics to these numbers of partitions; where topics are ordered, also fewer."""
    def set_partition_count(
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
    def delete_records(
        self, records_to_delete: Mapping[TopicPartition, int], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Delete the records below these offsets (-1: all); return the new log starts."""
    def list_offsets(
        self,
        topic_partition_specs: Mapping[TopicPartition, int],
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, FoundOffset]:
        """Look up one offset of each partition: an ``OffsetSpec``, or a time in ms since 1970."""
    def list_partition_offsets(
        self,
        topic_partition_specs: Mapping[TopicPartition, int],
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, FoundOffset]:
        """Look up one offset of each partition: an ``OffsetSpec``, or a time in ms since 1970."""
    def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[int] | None],
        timeout_ms: int | None = None,
        raise_errors: bool = True,
    ) -> Outcomes[TopicPartition]:
        """Start or change moves of partitions to these brokers, or (None) cancel them."""
    def list_partition_reassignments(
        self, topic_partitions: Partitions | None = None, timeout_ms: int | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """Return the running moves of these partitions, or (None) all."""
    def elect_leaders(
        self,
        election_type: ElectionType | int,
        topic_partitions: Partitions | None = None,
        timeout_ms: int | None = None,
        raise_errors: bool = True,
    ) -> Outcomes[TopicPartition]:
        """Elect leaders of these partitions, or (None) of all: the preferred ones, or unclean.

        A partition that needs no election is no error, and has ElectionNotNeededError as outcome.
        """
    def describe_cluster(self) -> nodes.DescribedCluster:
        """Return the cluster id, the controller and the brokers."""
    def describe_log_dirs(
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
    def describe_configs(
        self, config_resources: Iterable[ConfigResource]
    ) -> dict[ConfigResource, dict[str, configs.DescribedConfig]]:
        """Return the configurations of each resource by name: those in ``configs``, or all."""
    def alter_configs(
        self, config_resources: Iterable[ConfigResource], validate_only: bool = False
    ) -> None:
        """Change the configurations that each resource names, and no others (incrementally)."""
    def incremental_alter_configs(
        self, config_resources: Iterable[ConfigResource], validate_only: bool = False
    ) -> None:
        """Change the configurations that each resource names, and no others (incrementally)."""
    def list_groups(
        self, states_filter: Iterable[str] = (), raise_errors: bool = True
    ) -> groups.GroupListings:
        """Return the groups of all brokers, sorted by id; only those in these states, if given.

        Raises ListingIncompleteError when a broker did not list its groups within 5 s: its
        ``valid`` are the groups of the others. Without ``raise_errors`` these are returned, and
        ``errors`` of the result names the brokers that did not.
        """
    def list_consumer_groups(
        self, states_filter: Iterable[str] = (), raise_errors: bool = True
    ) -> groups.GroupListings:
        """Return the groups of all brokers, sorted by id; only those in these states, if given.

        Raises ListingIncompleteError when a broker did not list its groups within 5 s: its
        ``valid`` are the groups of the others. Without ``raise_errors`` these are returned, and
        ``errors`` of the result names the brokers that did not.
        """
    def describe_groups(self, group_ids: Iterable[str]) -> dict[str, groups.GroupDescription]:
        """Return each group with its members; an unknown one is in the state Dead."""
    def describe_consumer_groups(
        self, group_ids: Iterable[str]
    ) -> dict[str, groups.GroupDescription]:
        """Return each group with its members; an unknown one is in the state Dead."""
    def delete_groups(self, group_ids: Iterable[str], raise_errors: bool = True) -> Outcomes[str]:
        """Delete groups without members, with their committed offsets."""
    def delete_consumer_groups(
        self, group_ids: Iterable[str], raise_errors: bool = True
    ) -> Outcomes[str]:
        """Delete groups without members, with their committed offsets."""
    def list_group_offsets(
        self, group_id: str, partitions: Partitions | None = None
    ) -> dict[TopicPartition, Position]:
        """Return the committed offsets of a group: of these partitions, or (None) all of them."""
    def list_consumer_group_offsets(
        self, group_id: str, partitions: Partitions | None = None
    ) -> dict[TopicPartition, Position]:
        """Return the committed offsets of a group: of these partitions, or (None) all of them."""
    def alter_group_offsets(self, group_id: str, offsets: Mapping[TopicPartition, Any]) -> None:
        """Set committed offsets of a group without members: integers, or OffsetAndMetadata."""
    def alter_consumer_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, Any]
    ) -> None:
        """Set committed offsets of a group without members: integers, or OffsetAndMetadata."""
    def delete_group_offsets(
        self, group_id: str, partitions: Partitions, raise_errors: bool = True
    ) -> Outcomes[TopicPartition]:
        """Delete committed offsets of a group that does not read these partitions now."""
    def delete_consumer_group_offsets(
        self, group_id: str, partitions: Partitions, raise_errors: bool = True
    ) -> Outcomes[TopicPartition]:
        """Delete committed offsets of a group that does not read these partitions now."""
