"""The exceptions of the public clients, by Kafka's names; ``KafkaError`` is the base of all.

Owns the public names, and the advice in the texts of brokers' refusals. Not the other texts: see
``tidelog.client.errors``. Each text says what is wrong, and what the caller can do about it.

| exception | when |
|---|---|
| ``KafkaConnectionError`` | a connection ended or could not be opened |
| ``NoBrokersAvailable`` | no address of ``bootstrap_servers`` responds |
| ``KafkaTimeoutError`` | a time-out of the caller or of a setting passed; see its ``__cause__`` |
| ``BrokerResponseError`` | a broker refused something: a class for each error code, ``code`` |
| ``KafkaConfigurationError``, ``IllegalStateError`` | the caller's own mistakes |
"""

from __future__ import annotations

from tidelog.client.errors import ClientError as KafkaError
from tidelog.client.errors import ClusterUnreachable as NoBrokersAvailable
from tidelog.client.errors import CommitFailed as CommitFailedError
from tidelog.client.errors import ConfigurationRefused as KafkaConfigurationError
from tidelog.client.errors import ConnectionLost as KafkaConnectionError
from tidelog.client.errors import GaveUp as KafkaTimeoutError
from tidelog.client.errors import LogTruncated as LogTruncationError
from tidelog.client.errors import OffsetOutOfRange as OffsetOutOfRangeError
from tidelog.client.errors import RecordUnreadable as RecordUnreadableError
from tidelog.client.errors import Refused as BrokerResponseError
from tidelog.client.errors import RequestTimedOut as RequestTimedOutError
from tidelog.client.errors import VersionUnsupported as UnsupportedVersionError
from tidelog.client.errors import Wakeup as WakeupError
from tidelog.client.errors import WrongState as IllegalStateError
from tidelog.model.errors import ErrorCode

__all__ = [
    "BrokerRequestTimedOutError",
    "BrokerResponseError",
    "ClusterAuthorizationFailedError",
    "CommitFailedError",
    "CoordinatorLoadInProgressError",
    "CoordinatorNotAvailableError",
    "CorruptRecordError",
    "ElectionNotNeededError",
    "EligibleLeadersNotAvailableError",
    "FencedInstanceIdError",
    "FencedLeaderEpochError",
    "GroupAuthorizationFailedError",
    "GroupIdNotFoundError",
    "GroupMaxSizeReachedError",
    "GroupSubscribedToTopicError",
    "IllegalGenerationError",
    "IllegalStateError",
    "InconsistentGroupProtocolError",
    "InconsistentTopicIdError",
    "InvalidCommitOffsetSizeError",
    "InvalidConfigurationError",
    "InvalidGroupIdError",
    "InvalidPartitionMetadataError",
    "InvalidPartitionsError",
    "InvalidProducerEpochError",
    "InvalidRecordError",
    "InvalidReplicaAssignmentError",
    "InvalidReplicationFactorError",
    "InvalidRequestError",
    "InvalidRequiredAcksError",
    "InvalidSessionTimeoutError",
    "InvalidTimestampError",
    "InvalidTopicError",
    "KafkaConfigurationError",
    "KafkaConnectionError",
    "KafkaError",
    "KafkaStorageError",
    "KafkaTimeoutError",
    "LeaderNotAvailableError",
    "LogDirNotFoundError",
    "LogTruncationError",
    "MemberIdRequiredError",
    "MessageSizeTooLargeError",
    "NoBrokersAvailable",
    "NoReassignmentInProgressError",
    "NonEmptyGroupError",
    "NotControllerError",
    "NotCoordinatorError",
    "NotEnoughReplicasAfterAppendError",
    "NotEnoughReplicasError",
    "NotLeaderOrFollowerError",
    "OffsetMetadataTooLargeError",
    "OffsetNotAvailableError",
    "OffsetOutOfRangeError",
    "OperationNotAttemptedError",
    "OutOfOrderSequenceNumberError",
    "PolicyViolationError",
    "PreferredLeaderNotAvailableError",
    "ProducerFencedError",
    "ReassignmentInProgressError",
    "RebalanceInProgressError",
    "RecordListTooLargeError",
    "RecordUnreadableError",
    "ReplicaNotAvailableError",
    "RequestTimedOutError",
    "ThrottlingQuotaExceededError",
    "TopicAlreadyExistsError",
    "TopicAuthorizationFailedError",
    "TopicDeletionDisabledError",
    "UnknownLeaderEpochError",
    "UnknownMemberIdError",
    "UnknownProducerIdError",
    "UnknownServerError",
    "UnknownTopicIdError",
    "UnknownTopicOrPartitionError",
    "UnstableOffsetCommitError",
    "UnsupportedCompressionTypeError",
    "UnsupportedVersionError",
    "UnsupportedVersionOfRequestError",
    "WakeupError",
]


class UnknownServerError(
    BrokerResponseError, code=ErrorCode.UNKNOWN_SERVER_ERROR, advice="look into the broker's log"
):
    """The broker failed with an error of its own."""


class CorruptRecordError(BrokerResponseError, code=ErrorCode.CORRUPT_MESSAGE):
    """A batch arrived with a wrong checksum."""


class UnknownTopicOrPartitionError(
    BrokerResponseError,
    code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    advice="create it, or check its name",
):
    """The brokers do not know the topic or the partition."""


class LeaderNotAvailableError(BrokerResponseError, code=ErrorCode.LEADER_NOT_AVAILABLE):
    """The partition has no leader now."""


class NotLeaderOrFollowerError(BrokerResponseError, code=ErrorCode.NOT_LEADER_OR_FOLLOWER):
    """The broker does not lead the partition."""


class BrokerRequestTimedOutError(BrokerResponseError, code=ErrorCode.REQUEST_TIMED_OUT):
    """The broker could not complete the request in time."""


class ReplicaNotAvailableError(BrokerResponseError, code=ErrorCode.REPLICA_NOT_AVAILABLE):
    """The broker has no such replica."""


class MessageSizeTooLargeError(
    BrokerResponseError,
    code=ErrorCode.MESSAGE_TOO_LARGE,
    advice="send less, or raise max.message.bytes of the topic",
):
    """A record is larger than the producer or the topic allows."""


class OffsetMetadataTooLargeError(
    BrokerResponseError,
    code=ErrorCode.OFFSET_METADATA_TOO_LARGE,
    advice="shorten it, or raise offset.metadata.max.bytes",
):
    """The note of a committed offset is too long."""


class CoordinatorLoadInProgressError(
    BrokerResponseError, code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
):
    """The coordinator is loading the group."""


class CoordinatorNotAvailableError(BrokerResponseError, code=ErrorCode.COORDINATOR_NOT_AVAILABLE):
    """No broker coordinates the group now."""


class NotCoordinatorError(BrokerResponseError, code=ErrorCode.NOT_COORDINATOR):
    """The broker does not coordinate the group."""


class InvalidTopicError(
    BrokerResponseError,
    code=ErrorCode.INVALID_TOPIC_EXCEPTION,
    advice="use at most 249 of the characters a-z A-Z 0-9 . _ -",
):
    """The name cannot be that of a topic."""


class RecordListTooLargeError(
    BrokerResponseError,
    code=ErrorCode.RECORD_LIST_TOO_LARGE,
    advice="send smaller batches (batch_size)",
):
    """A batch is larger than the broker's segment."""


class NotEnoughReplicasError(BrokerResponseError, code=ErrorCode.NOT_ENOUGH_REPLICAS):
    """Fewer replicas are in sync than min.insync.replicas demands."""


class NotEnoughReplicasAfterAppendError(
    BrokerResponseError, code=ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
):
    """The record was written, but too few replicas were in sync to acknowledge it."""


class InvalidRequiredAcksError(BrokerResponseError, code=ErrorCode.INVALID_REQUIRED_ACKS):
    """acks is none of 0, 1 and all."""


class IllegalGenerationError(
    BrokerResponseError,
    code=ErrorCode.ILLEGAL_GENERATION,
    advice="poll, so that the consumer joins again",
):
    """The group has rebalanced since."""


class InconsistentGroupProtocolError(
    BrokerResponseError,
    code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    advice="give all members a common partition_assignment_strategy",
):
    """The members of the group share no assignor."""


class InvalidGroupIdError(
    BrokerResponseError, code=ErrorCode.INVALID_GROUP_ID, advice="name a group_id that is not empty"
):
    """The group id is not valid."""


class UnknownMemberIdError(
    BrokerResponseError,
    code=ErrorCode.UNKNOWN_MEMBER_ID,
    advice="poll, so that the consumer joins again",
):
    """The group does not have this member."""


class InvalidSessionTimeoutError(
    BrokerResponseError,
    code=ErrorCode.INVALID_SESSION_TIMEOUT,
    advice="choose it between group.min.session.timeout.ms and group.max.session.timeout.ms",
):
    """session_timeout_ms is outside of what the broker allows."""


class RebalanceInProgressError(
    BrokerResponseError,
    code=ErrorCode.REBALANCE_IN_PROGRESS,
    advice="poll, so that the consumer joins again",
):
    """The group is rebalancing."""


class InvalidCommitOffsetSizeError(BrokerResponseError, code=ErrorCode.INVALID_COMMIT_OFFSET_SIZE):
    """The commit is too large."""


class TopicAuthorizationFailedError(
    BrokerResponseError,
    code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    advice="ask its operator for access",
):
    """The broker does not permit this on the topic."""


class GroupAuthorizationFailedError(
    BrokerResponseError,
    code=ErrorCode.GROUP_AUTHORIZATION_FAILED,
    advice="ask its operator for access",
):
    """The broker does not permit this on the group."""


class ClusterAuthorizationFailedError(
    BrokerResponseError,
    code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    advice="ask its operator for access",
):
    """The broker does not permit this on the cluster."""


class InvalidTimestampError(
    BrokerResponseError,
    code=ErrorCode.INVALID_TIMESTAMP,
    advice="correct it, or widen message.timestamp.before.max.ms or .after.max.ms of the topic",
):
    """The timestamp of a record is out of range."""


class UnsupportedVersionOfRequestError(
    BrokerResponseError,
    code=ErrorCode.UNSUPPORTED_VERSION,
    advice="upgrade the older one of client and broker",
):
    """The broker does not serve this version of the request."""


class TopicAlreadyExistsError(
    BrokerResponseError,
    code=ErrorCode.TOPIC_ALREADY_EXISTS,
    advice="choose another name, or use that one",
):
    """A topic of this name exists."""


class InvalidPartitionsError(BrokerResponseError, code=ErrorCode.INVALID_PARTITIONS):
    """The number of partitions is not possible."""


class InvalidReplicationFactorError(
    BrokerResponseError,
    code=ErrorCode.INVALID_REPLICATION_FACTOR,
    advice="use at most as many replicas as there are live brokers",
):
    """The replication factor is not possible."""


class InvalidReplicaAssignmentError(BrokerResponseError, code=ErrorCode.INVALID_REPLICA_ASSIGNMENT):
    """The assignment of replicas is not possible."""


class InvalidConfigurationError(BrokerResponseError, code=ErrorCode.INVALID_CONFIG):
    """A configuration or its value is not valid."""


class NotControllerError(BrokerResponseError, code=ErrorCode.NOT_CONTROLLER):
    """The broker is not the controller."""


class InvalidRequestError(BrokerResponseError, code=ErrorCode.INVALID_REQUEST):
    """The request contradicts itself."""


class PolicyViolationError(BrokerResponseError, code=ErrorCode.POLICY_VIOLATION):
    """A policy of the topic or the cluster forbids this."""


class OutOfOrderSequenceNumberError(
    BrokerResponseError, code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
):
    """Batches of an idempotent producer arrived with a gap."""


class InvalidProducerEpochError(BrokerResponseError, code=ErrorCode.INVALID_PRODUCER_EPOCH):
    """A newer producer with the same identity has written."""


class OperationNotAttemptedError(BrokerResponseError, code=ErrorCode.OPERATION_NOT_ATTEMPTED):
    """Another part of the request was refused first."""


class KafkaStorageError(BrokerResponseError, code=ErrorCode.KAFKA_STORAGE_ERROR):
    """The broker cannot read or write its disk."""


class LogDirNotFoundError(
    BrokerResponseError, code=ErrorCode.LOG_DIR_NOT_FOUND, advice="describe_log_dirs lists them"
):
    """The broker has no such log directory."""


class UnknownProducerIdError(BrokerResponseError, code=ErrorCode.UNKNOWN_PRODUCER_ID):
    """The broker has forgotten this producer."""


class ReassignmentInProgressError(
    BrokerResponseError,
    code=ErrorCode.REASSIGNMENT_IN_PROGRESS,
    advice="wait until list_partition_reassignments lists no move, or cancel it",
):
    """The partitions are being reassigned."""


class NonEmptyGroupError(
    BrokerResponseError, code=ErrorCode.NON_EMPTY_GROUP, advice="stop them first"
):
    """The group has members."""


class GroupIdNotFoundError(
    BrokerResponseError, code=ErrorCode.GROUP_ID_NOT_FOUND, advice="list_consumer_groups lists them"
):
    """There is no such group."""


class TopicDeletionDisabledError(
    BrokerResponseError, code=ErrorCode.TOPIC_DELETION_DISABLED, advice="set delete.topic.enable"
):
    """The cluster deletes no topics."""


class FencedLeaderEpochError(BrokerResponseError, code=ErrorCode.FENCED_LEADER_EPOCH):
    """The client named a leader epoch that has passed."""


class UnknownLeaderEpochError(BrokerResponseError, code=ErrorCode.UNKNOWN_LEADER_EPOCH):
    """The client knows a newer leader epoch than the broker."""


class UnsupportedCompressionTypeError(
    BrokerResponseError,
    code=ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    advice="choose another compression_type",
):
    """The broker does not know this compression."""


class OffsetNotAvailableError(BrokerResponseError, code=ErrorCode.OFFSET_NOT_AVAILABLE):
    """A new leader does not know the end of its log yet."""


class MemberIdRequiredError(BrokerResponseError, code=ErrorCode.MEMBER_ID_REQUIRED):
    """The group gave the member an id to join with."""


class PreferredLeaderNotAvailableError(
    BrokerResponseError, code=ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
):
    """The preferred leader is not alive or not in sync."""


class GroupMaxSizeReachedError(
    BrokerResponseError, code=ErrorCode.GROUP_MAX_SIZE_REACHED, advice="raise group.max.size"
):
    """The group has as many members as the broker allows."""


class FencedInstanceIdError(
    BrokerResponseError, code=ErrorCode.FENCED_INSTANCE_ID, advice="give each member its own"
):
    """Another member uses the same group_instance_id."""


class EligibleLeadersNotAvailableError(
    BrokerResponseError, code=ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
):
    """No replica that may lead is alive."""


class ElectionNotNeededError(BrokerResponseError, code=ErrorCode.ELECTION_NOT_NEEDED):
    """The right replica leads already."""


class NoReassignmentInProgressError(
    BrokerResponseError, code=ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
):
    """The partition is not being reassigned."""


class GroupSubscribedToTopicError(
    BrokerResponseError, code=ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, advice="stop its members first"
):
    """The group reads the topic."""


class InvalidRecordError(BrokerResponseError, code=ErrorCode.INVALID_RECORD):
    """The topic does not take this record."""


class UnstableOffsetCommitError(BrokerResponseError, code=ErrorCode.UNSTABLE_OFFSET_COMMIT):
    """A transaction has offsets of the group open."""


class ThrottlingQuotaExceededError(BrokerResponseError, code=ErrorCode.THROTTLING_QUOTA_EXCEEDED):
    """The cluster limits how often this may be done."""


class ProducerFencedError(BrokerResponseError, code=ErrorCode.PRODUCER_FENCED):
    """A newer producer has the same transactional id."""


class UnknownTopicIdError(BrokerResponseError, code=ErrorCode.UNKNOWN_TOPIC_ID):
    """The broker does not know the topic of this id."""


class InconsistentTopicIdError(BrokerResponseError, code=ErrorCode.INCONSISTENT_TOPIC_ID):
    """The topic was deleted and created again."""


class InvalidPartitionMetadataError(BrokerResponseError, code=ErrorCode.INVALID_PARTITION_METADATA):
    """The topic was resized since the client asked for its metadata."""
