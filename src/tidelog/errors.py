"""The exceptions of the public clients, by Kafka's names; ``KafkaError`` is the base of all.

Owns the public names, with a class for each error code that a client may meet. Not the texts: see
``tidelog.client.errors``; their advice is in the table of codes, ``tidelog.model.errors``. Each
text says what is wrong, and what the caller can do about it.

| exception | when |
|---|---|
| ``KafkaConnectionError`` | a connection ended or could not be opened |
| ``NoBrokersAvailable`` | no address of ``bootstrap_servers`` responds |
| ``KafkaTimeoutError`` | a time-out of the caller or of a setting passed; see its ``__cause__`` |
| ``ListingIncompleteError`` | some brokers did not list what they have: ``valid``, ``errors`` |
| ``BrokerResponseError`` | a broker refused something: a class for each error code, ``code`` |
| ``TransactionAbortableError`` | the transaction cannot be committed: abort it, and go on |
| ``ProducerEndedError`` | close this producer; ``ProducerFencedError``: another one has its id |
| ``KafkaConfigurationError``, ``IllegalStateError`` | the caller's own mistakes |
"""

from __future__ import annotations

from tidelog.client.errors import AbortTransaction as TransactionAbortableError
from tidelog.client.errors import ClientError as KafkaError
from tidelog.client.errors import ClusterUnreachable as NoBrokersAvailable
from tidelog.client.errors import CommitFailed as CommitFailedError
from tidelog.client.errors import ConfigurationRefused as KafkaConfigurationError
from tidelog.client.errors import ConnectionLost as KafkaConnectionError
from tidelog.client.errors import GaveUp as KafkaTimeoutError
from tidelog.client.errors import ListingIncomplete as ListingIncompleteError
from tidelog.client.errors import LogTruncated as LogTruncationError
from tidelog.client.errors import OffsetOutOfRange as OffsetOutOfRangeError
from tidelog.client.errors import ProducerEnded as ProducerEndedError
from tidelog.client.errors import ProducerFenced as ProducerFencedError
from tidelog.client.errors import RecordUnreadable as RecordUnreadableError
from tidelog.client.errors import Refused
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
    "ListingIncompleteError",
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
    "ProducerEndedError",
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
    "TransactionAbortableError",
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


class UnknownServerError(Refused, code=ErrorCode.UNKNOWN_SERVER_ERROR):
    """The broker failed with an error of its own."""


class CorruptRecordError(Refused, code=ErrorCode.CORRUPT_MESSAGE):
    """A batch arrived with a wrong checksum."""


class UnknownTopicOrPartitionError(Refused, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
    """The brokers do not know the topic or the partition."""


class LeaderNotAvailableError(Refused, code=ErrorCode.LEADER_NOT_AVAILABLE):
    """The partition has no leader now."""


class NotLeaderOrFollowerError(Refused, code=ErrorCode.NOT_LEADER_OR_FOLLOWER):
    """The broker does not lead the partition."""


class BrokerRequestTimedOutError(Refused, code=ErrorCode.REQUEST_TIMED_OUT):
    """The broker could not complete the request in time."""


class ReplicaNotAvailableError(Refused, code=ErrorCode.REPLICA_NOT_AVAILABLE):
    """The broker has no such replica."""


class MessageSizeTooLargeError(Refused, code=ErrorCode.MESSAGE_TOO_LARGE):
    """A record is larger than the producer or the topic allows."""


class OffsetMetadataTooLargeError(Refused, code=ErrorCode.OFFSET_METADATA_TOO_LARGE):
    """The note of a committed offset is too long."""


class CoordinatorLoadInProgressError(Refused, code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
    """The coordinator is loading the group."""


class CoordinatorNotAvailableError(Refused, code=ErrorCode.COORDINATOR_NOT_AVAILABLE):
    """No broker coordinates the group now."""


class NotCoordinatorError(Refused, code=ErrorCode.NOT_COORDINATOR):
    """The broker does not coordinate the group."""


class InvalidTopicError(Refused, code=ErrorCode.INVALID_TOPIC_EXCEPTION):
    """The name cannot be that of a topic."""


class RecordListTooLargeError(Refused, code=ErrorCode.RECORD_LIST_TOO_LARGE):
    """A batch is larger than the broker's segment."""


class NotEnoughReplicasError(Refused, code=ErrorCode.NOT_ENOUGH_REPLICAS):
    """Fewer replicas are in sync than min.insync.replicas demands."""


class NotEnoughReplicasAfterAppendError(Refused, code=ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
    """The record was written, but too few replicas were in sync to acknowledge it."""


class InvalidRequiredAcksError(Refused, code=ErrorCode.INVALID_REQUIRED_ACKS):
    """acks is none of 0, 1 and all."""


class IllegalGenerationError(Refused, code=ErrorCode.ILLEGAL_GENERATION):
    """The group has rebalanced since."""


class InconsistentGroupProtocolError(Refused, code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
    """The members of the group share no assignor."""


class InvalidGroupIdError(Refused, code=ErrorCode.INVALID_GROUP_ID):
    """The group id is not valid."""


class UnknownMemberIdError(Refused, code=ErrorCode.UNKNOWN_MEMBER_ID):
    """The group does not have this member."""


class InvalidSessionTimeoutError(Refused, code=ErrorCode.INVALID_SESSION_TIMEOUT):
    """session_timeout_ms is outside of what the broker allows."""


class RebalanceInProgressError(Refused, code=ErrorCode.REBALANCE_IN_PROGRESS):
    """The group is rebalancing."""


class InvalidCommitOffsetSizeError(Refused, code=ErrorCode.INVALID_COMMIT_OFFSET_SIZE):
    """The commit is too large."""


class TopicAuthorizationFailedError(Refused, code=ErrorCode.TOPIC_AUTHORIZATION_FAILED):
    """The broker does not permit this on the topic."""


class GroupAuthorizationFailedError(Refused, code=ErrorCode.GROUP_AUTHORIZATION_FAILED):
    """The broker does not permit this on the group."""


class ClusterAuthorizationFailedError(Refused, code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
    """The broker does not permit this on the cluster."""


class InvalidTimestampError(Refused, code=ErrorCode.INVALID_TIMESTAMP):
    """The timestamp of a record is out of range."""


class UnsupportedVersionOfRequestError(Refused, code=ErrorCode.UNSUPPORTED_VERSION):
    """The broker does not serve this version of the request."""


class TopicAlreadyExistsError(Refused, code=ErrorCode.TOPIC_ALREADY_EXISTS):
    """A topic of this name exists."""


class InvalidPartitionsError(Refused, code=ErrorCode.INVALID_PARTITIONS):
    """The number of partitions is not possible."""


class InvalidReplicationFactorError(Refused, code=ErrorCode.INVALID_REPLICATION_FACTOR):
    """The replication factor is not possible."""


class InvalidReplicaAssignmentError(Refused, code=ErrorCode.INVALID_REPLICA_ASSIGNMENT):
    """The assignment of replicas is not possible."""


class InvalidConfigurationError(Refused, code=ErrorCode.INVALID_CONFIG):
    """A configuration or its value is not valid."""


class NotControllerError(Refused, code=ErrorCode.NOT_CONTROLLER):
    """The broker is not the controller."""


class InvalidRequestError(Refused, code=ErrorCode.INVALID_REQUEST):
    """The request contradicts itself."""


class PolicyViolationError(Refused, code=ErrorCode.POLICY_VIOLATION):
    """A policy of the topic or the cluster forbids this."""


class OutOfOrderSequenceNumberError(Refused, code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
    """Batches of an idempotent producer arrived with a gap."""


class InvalidProducerEpochError(Refused, code=ErrorCode.INVALID_PRODUCER_EPOCH):
    """A newer producer with the same identity has written."""


class OperationNotAttemptedError(Refused, code=ErrorCode.OPERATION_NOT_ATTEMPTED):
    """Another part of the request was refused first."""


class KafkaStorageError(Refused, code=ErrorCode.KAFKA_STORAGE_ERROR):
    """The broker cannot read or write its disk."""


class LogDirNotFoundError(Refused, code=ErrorCode.LOG_DIR_NOT_FOUND):
    """The broker has no such log directory."""


class UnknownProducerIdError(Refused, code=ErrorCode.UNKNOWN_PRODUCER_ID):
    """The broker has forgotten this producer."""


class ReassignmentInProgressError(Refused, code=ErrorCode.REASSIGNMENT_IN_PROGRESS):
    """The partitions are being reassigned."""


class NonEmptyGroupError(Refused, code=ErrorCode.NON_EMPTY_GROUP):
    """The group has members."""


class GroupIdNotFoundError(Refused, code=ErrorCode.GROUP_ID_NOT_FOUND):
    """There is no such group."""


class TopicDeletionDisabledError(Refused, code=ErrorCode.TOPIC_DELETION_DISABLED):
    """The cluster deletes no topics."""


class FencedLeaderEpochError(Refused, code=ErrorCode.FENCED_LEADER_EPOCH):
    """The client named a leader epoch that has passed."""


class UnknownLeaderEpochError(Refused, code=ErrorCode.UNKNOWN_LEADER_EPOCH):
    """The client knows a newer leader epoch than the broker."""


class UnsupportedCompressionTypeError(Refused, code=ErrorCode.UNSUPPORTED_COMPRESSION_TYPE):
    """The broker does not know this compression."""


class OffsetNotAvailableError(Refused, code=ErrorCode.OFFSET_NOT_AVAILABLE):
    """A new leader does not know the end of its log yet."""


class MemberIdRequiredError(Refused, code=ErrorCode.MEMBER_ID_REQUIRED):
    """The group gave the member an id to join with."""


class PreferredLeaderNotAvailableError(Refused, code=ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE):
    """The preferred leader is not alive or not in sync."""


class GroupMaxSizeReachedError(Refused, code=ErrorCode.GROUP_MAX_SIZE_REACHED):
    """The group has as many members as the broker allows."""


class FencedInstanceIdError(Refused, code=ErrorCode.FENCED_INSTANCE_ID):
    """Another member uses the same group_instance_id."""


class EligibleLeadersNotAvailableError(Refused, code=ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE):
    """No replica that may lead is alive."""


class ElectionNotNeededError(Refused, code=ErrorCode.ELECTION_NOT_NEEDED):
    """The right replica leads already."""


class NoReassignmentInProgressError(Refused, code=ErrorCode.NO_REASSIGNMENT_IN_PROGRESS):
    """The partition is not being reassigned."""


class GroupSubscribedToTopicError(Refused, code=ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC):
    """The group reads the topic."""


class InvalidRecordError(Refused, code=ErrorCode.INVALID_RECORD):
    """The topic does not take this record."""


class UnstableOffsetCommitError(Refused, code=ErrorCode.UNSTABLE_OFFSET_COMMIT):
    """A transaction has offsets of the group open."""


class ThrottlingQuotaExceededError(Refused, code=ErrorCode.THROTTLING_QUOTA_EXCEEDED):
    """The cluster limits how often this may be done."""


class UnknownTopicIdError(Refused, code=ErrorCode.UNKNOWN_TOPIC_ID):
    """The broker does not know the topic of this id."""


class InconsistentTopicIdError(Refused, code=ErrorCode.INCONSISTENT_TOPIC_ID):
    """The topic was deleted and created again."""


class InvalidPartitionMetadataError(Refused, code=ErrorCode.INVALID_PARTITION_METADATA):
    """The topic was resized since the client asked for its metadata."""
