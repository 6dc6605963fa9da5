"""A leader's change of the ISR, from its proposal to its outcome: pure rules.

Owns the one state of a change and what an answer to AlterIsr says of it; sending is the broker's,
the decision the controller's (KIP-497). Until the outcome is known the change counts: the watermark
goes by the larger ISR.

| answer for the partition | outcome |
|---|---|
| NONE, INVALID_UPDATE_VERSION: of this leader and epoch, a newer ISR version | that state holds |
| NONE: of this leader and epoch, the ISR and version that are known | nothing was to change |
| INELIGIBLE_REPLICA, INVALID_REQUEST | refused: the ISR is as it was |
| any other, or none | unknown: the same is asked again |

A refusal is certain, also after an answer that was lost: had the first try been committed, the ISR
version would be another one, and the controller compares it before it looks at the members. Every
error that says neither is transient for all that a leader can know: a node of the store that was
damaged for a moment answers UNKNOWN_TOPIC_OR_PARTITION, one that an old tool has written
INCONSISTENT_TOPIC_ID, and no LeaderAndIsr need ever follow. A leader that was really deposed asks
until its LeaderAndIsr or StopReplica comes, at most once in ``RETRY_MAX_MS``.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.model.errors import ErrorCode
from tidelog.replication.command_rules import Refusal
from tidelog.runtime.backoff import steady

RETRY_MS = 50
"""First pause after an answer that leaves the outcome unknown; it doubles up to
``RETRY_MAX_MS``."""

RETRY_MAX_MS = 1_000


@dataclass(slots=True, eq=False)
class IsrChange:
    """One change whose outcome is not known: what it stands on, and the members by their lives.

    It is its own identity: an answer counts for the change that was asked about, and for no other.
    """

    leader_epoch: int
    isr_version: int
    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...] = ()
    unclean_handled: bool = False
    tries: int = 0
    due_ms: int = 0
    """When it is asked about next."""

    def left_open(self, now_ms: int) -> None:
        """An answer told nothing: the same is asked again after a pause."""
        self.due_ms = now_ms + int(steady(RETRY_MS, RETRY_MAX_MS).pause_ms(self.tries))
        self.tries += 1


@dataclass(frozen=True, slots=True)
class Answered:
    """What AlterIsr answers for one partition."""

    error: ErrorCode
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    isr_version: int


@dataclass(frozen=True, slots=True)
class Settled:
    """This ISR holds, in this version."""

    isr: tuple[int, ...]
    isr_version: int


def outcome(
    change: IsrChange, leader: int, known_isr: tuple[int, ...], answer: Answered
) -> Settled | Refusal | None:
    """Return what became of a change in flight by the table above; None: it is not known.

    ``known_isr`` is the ISR on which the change stands.
    """
    if answer.error in (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_REQUEST):
        return Refusal(answer.error, "the controller refuses the change")
    if answer.error not in (ErrorCode.NONE, ErrorCode.INVALID_UPDATE_VERSION):
        return None
    if (answer.leader, answer.leader_epoch) != (leader, change.leader_epoch):
        return None
    if answer.isr_version > change.isr_version:
        return Settled(answer.isr, answer.isr_version)
    is_as_before = answer.isr_version == change.isr_version and set(answer.isr) == set(known_isr)
    if answer.error is ErrorCode.NONE and is_as_before:
        return Settled(known_isr, change.isr_version)
    return None
