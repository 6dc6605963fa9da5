"""Error codes of the Kafka protocol: number, name, whether a client may try again, and advice.

Owns the table. Not the error messages: the code that refuses a request writes them.
Source: the published protocol; 1253 is ours (KIP-253, "Error code").
"""

from __future__ import annotations

from enum import IntEnum

RETRIABLE, FINAL = True, False


class ErrorCode(IntEnum):
    """An error code as sent on the wire (int16)."""

    retriable: bool
    """Whether a client may send the same request again and succeed."""
    advice: str
    """What a caller can do, where the broker gives no reason; "" where that says itself."""

    def __new__(cls, code: int, retriable: bool = FINAL, advice: str = "") -> ErrorCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.advice = advice
        return member

    UNKNOWN_SERVER_ERROR = -1, FINAL, "read the broker's log"
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2, RETRIABLE
    UNKNOWN_TOPIC_OR_PARTITION = 3, RETRIABLE, "create it, or check its name"
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5, RETRIABLE
    NOT_LEADER_OR_FOLLOWER = 6, RETRIABLE
    REQUEST_TIMED_OUT = 7, RETRIABLE
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9, RETRIABLE
    MESSAGE_TOO_LARGE = 10, FINAL, "send less, or raise max.message.bytes of the topic"
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12, FINAL, "shorten it, or raise offset.metadata.max.bytes"
    NETWORK_EXCEPTION = 13, RETRIABLE
    COORDINATOR_LOAD_IN_PROGRESS = 14, RETRIABLE
    COORDINATOR_NOT_AVAILABLE = 15, RETRIABLE
    NOT_COORDINATOR = 16, RETRIABLE
    INVALID_TOPIC_EXCEPTION = 17, FINAL, "use at most 249 of the characters a-z A-Z 0-9 . _ -"
    RECORD_LIST_TOO_LARGE = 18, FINAL, "send smaller batches (batch_size)"
    NOT_ENOUGH_REPLICAS = 19, RETRIABLE
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, RETRIABLE
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22, FINAL, "poll, so that the consumer joins again"
    INCONSISTENT_GROUP_PROTOCOL = (
        23,
        FINAL,
        "give all members a common partition_assignment_strategy",
    )
    INVALID_GROUP_ID = 24, FINAL, "name a group_id that is not empty"
    UNKNOWN_MEMBER_ID = 25, FINAL, "poll, so that the consumer joins again"
    INVALID_SESSION_TIMEOUT = (
        26,
        FINAL,
        "choose it between group.min.session.timeout.ms and group.max.session.timeout.ms",
    )
    REBALANCE_IN_PROGRESS = 27, FINAL, "poll, so that the consumer joins again"
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29, FINAL, "ask its operator for access"
    GROUP_AUTHORIZATION_FAILED = 30, FINAL, "ask its operator for access"
    CLUSTER_AUTHORIZATION_FAILED = 31, FINAL, "ask its operator for access"
    INVALID_TIMESTAMP = (
        32,
        FINAL,
        "correct it, or widen message.timestamp.before.max.ms or .after.max.ms of the topic",
    )
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35, FINAL, "upgrade the older one of client and broker"
    TOPIC_ALREADY_EXISTS = 36, FINAL, "choose another name, or use that one"
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38, FINAL, "use at most as many replicas as there are live brokers"
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41, RETRIABLE
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51, RETRIABLE
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56, RETRIABLE
    LOG_DIR_NOT_FOUND = 57, FINAL, "describe_log_dirs lists them"
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = (
        60,
        FINAL,
        "wait until list_partition_reassignments lists no move, or cancel it",
    )
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68, FINAL, "stop them first"
    GROUP_ID_NOT_FOUND = 69, FINAL, "list_consumer_groups lists them"
    FETCH_SESSION_ID_NOT_FOUND = 70, RETRIABLE
    INVALID_FETCH_SESSION_EPOCH = 71, RETRIABLE
    LISTENER_NOT_FOUND = 72, RETRIABLE
    TOPIC_DELETION_DISABLED = 73, FINAL, "set delete.topic.enable"
    FENCED_LEADER_EPOCH = 74, RETRIABLE
    UNKNOWN_LEADER_EPOCH = 75, RETRIABLE
    UNSUPPORTED_COMPRESSION_TYPE = 76, FINAL, "choose another compression_type"
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78, RETRIABLE
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80, RETRIABLE
    GROUP_MAX_SIZE_REACHED = 81, FINAL, "raise group.max.size"
    FENCED_INSTANCE_ID = 82, FINAL, "give each member its own"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, RETRIABLE
    ELECTION_NOT_NEEDED = 84, RETRIABLE
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86, FINAL, "stop its members first"
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88, RETRIABLE
    THROTTLING_QUOTA_EXCEEDED = 89, RETRIABLE
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100, RETRIABLE
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103, RETRIABLE
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106, RETRIABLE
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122, RETRIABLE
    INVALID_SHARE_SESSION_EPOCH = 123, RETRIABLE
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133, RETRIABLE
    INVALID_PARTITION_METADATA = 1253, RETRIABLE
