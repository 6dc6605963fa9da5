"""Whether a batch may begin a transaction in its partition: the rules of a leader (KIP-890).

Owns what a coordinator's answer means for the batch, and what must not have changed while it
waited. Pure. Not the questions to coordinators: see `verifier`. Not the queue in which the batch
waits: see `inspected_appends`.

| a batch of a transaction, when it has its turn          | what follows                        |
|---------------------------------------------------------|-------------------------------------|
| is known                                                | success with its first offset       |
| goes on with what is open here (`storage.log.joining`)  | appended, if nothing below happened |
| ``transaction.partition.verification.enable=false``     | the same                            |
| otherwise                                               | its coordinator is asked            |

| the coordinator's answer                                | the batch                           |
|---------------------------------------------------------|-------------------------------------|
| the partition is in this open transaction               | appended, if nothing below happened |
| it is not (TRANSACTION_ABORTABLE, INVALID_TXN_STATE)    | TRANSACTION_ABORTABLE; before       |
|                                                         | Produce v11 INVALID_TXN_STATE       |
| the epoch is old (PRODUCER_FENCED)                      | INVALID_PRODUCER_EPOCH              |
| INVALID_PRODUCER_ID_MAPPING                             | the same                            |
| any other: it loads, moves, ends the transaction, fails | NOT_ENOUGH_REPLICAS: clients retry  |
| none in time, or the metadata have only an older        | it, and ask for no metadata         |
| coordinator than that of the producer's last marker     |                                     |

| since the batch arrived                                 | right before the append             |
|---------------------------------------------------------|-------------------------------------|
| this broker has not led without a break                 | NOT_LEADER_OR_FOLLOWER              |
| its producer got a newer epoch in the log               | INVALID_PRODUCER_EPOCH              |
| a marker of its producer came: the batch is a late one  | as "it is not" above                |

That a marker makes a batch a late one is certain: a coordinator adds the partition to the next
transaction only when all leaders have the markers of the one before. Kafka calls this the
verification guard. Each answer counts for the one batch for which it was asked, and is asked for
after the batch has arrived.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import Rejected

ABORTABLE_SINCE = 11
"""The first version of Produce whose clients know TRANSACTION_ABORTABLE."""


class Claim(NamedTuple):
    """The transaction that a batch names."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class Guard(NamedTuple):
    """What a leader knows of a batch's producer, and of itself."""

    led_since: int
    """The first leader epoch of those in which this broker has led without a break; -1: none."""
    producer_epoch: int
    last_marker: int


class Verification(Enum):
    """What is known of a batch's place in a transaction."""

    CONFIRMED = auto()
    LATE = auto()
    FENCED = auto()
    UNKNOWN_ID = auto()
    UNANSWERED = auto()
    MOVED = auto()


_VERIFICATIONS = {
    ErrorCode.NONE: Verification.CONFIRMED,
    ErrorCode.TRANSACTION_ABORTABLE: Verification.LATE,
    ErrorCode.INVALID_TXN_STATE: Verification.LATE,
    ErrorCode.PRODUCER_FENCED: Verification.FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH: Verification.FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: Verification.UNKNOWN_ID,
}


def verification_of(error: int) -> Verification:
    """Return what a coordinator's error code for a partition means."""
    for code, verification in _VERIFICATIONS.items():
        if error == code:
            return verification
    return Verification.UNANSWERED


def why_dropped(claim: Claim, before: Guard, now: Guard) -> Verification | None:
    """Return why a batch must not be appended whatever its coordinator said, or None.

    ``before``: when the batch arrived.
    """
    if now.led_since != before.led_since:
        return Verification.MOVED
    if now.producer_epoch > claim.producer_epoch:
        return Verification.FENCED
    # A producer that was forgotten meanwhile has no last marker, and none came.
    if now.last_marker > before.last_marker:
        return Verification.LATE
    return None


def refusal_of(
    verification: Verification, claim: Claim, key: TopicPartition, version: int
) -> Rejected | None:
    """Return the refusal of a batch in a version of Produce; None where it is confirmed."""
    producer = f"producer {claim.producer_id}, epoch {claim.producer_epoch}"
    match verification:
        case Verification.CONFIRMED:
            return None
        case Verification.LATE:
            knows = version >= ABORTABLE_SINCE
            error = ErrorCode.TRANSACTION_ABORTABLE if knows else ErrorCode.INVALID_TXN_STATE
            return Rejected(error, f"{key} is in no open transaction of {producer}")
        case Verification.FENCED:
            sentence = f"a newer epoch of its transactional id has fenced {producer}"
            return Rejected(ErrorCode.INVALID_PRODUCER_EPOCH, sentence)
        case Verification.UNKNOWN_ID:
            sentence = f"its transactional id does not belong to {producer}"
            return Rejected(ErrorCode.INVALID_PRODUCER_ID_MAPPING, sentence)
        case Verification.UNANSWERED:
            sentence = (
                f"the coordinator of {producer} could not confirm {key} in its transaction: "
                "send it again"
            )
            return Rejected(ErrorCode.NOT_ENOUGH_REPLICAS, sentence)
        case Verification.MOVED:
            sentence = f"this broker stopped leading {key} while the batch waited"
            return Rejected(ErrorCode.NOT_LEADER_OR_FOLLOWER, sentence)
