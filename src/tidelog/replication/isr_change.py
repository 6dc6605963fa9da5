"""A leader's change of the ISR, from its proposal to its outcome: pure rules.

Owns the state of a change and how a response to AlterIsr settles it (KIP-497). Not sending, nor the
controller's decision. Until the outcome is known the change counts: the high watermark waits for
the larger ISR.

| response for the partition | outcome |
|---|---|
| NONE, INVALID_UPDATE_VERSION: of this leader and epoch, a newer ISR version | that state |
| NONE: of this leader and epoch, the ISR and version that are known | there was no change to make |
| INELIGIBLE_REPLICA, INVALID_REQUEST | refused: the ISR is as it was |
| any other, or none | unknown: the same request is sent again |

A refusal is certain, also after a response that was lost: if the first attempt had been committed,
the ISR version would differ, and the controller compares it before it checks the members. Every
other error is transient for all that a leader can know: a node of the store that was damaged for a
moment causes UNKNOWN_TOPIC_OR_PARTITION, one that an old tool has written INCONSISTENT_TOPIC_ID,
and no LeaderAndIsr need ever follow. A deposed leader repeats its request until its LeaderAndIsr or
StopReplica arrives, at most once in ``RETRY_MAX_MS``.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.model.errors import ErrorCode
from tidelog.replication.command_rules import CommandRefusal
from tidelog.runtime.backoff import steady

RETRY_MS = 50
"""First pause after a response that leaves the outcome unknown; it doubles up to
``RETRY_MAX_MS``."""

RETRY_MAX_MS = 1_000


@dataclass(slots=True, eq=False)
class IsrChange:
    """One change whose outcome is not known: its base, and the members by their broker epochs.

    It is its own identity: a response counts for the change that was proposed, and for no other.
    """

    leader_epoch: int
    isr_version: int
    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...] = ()
    unclean_handled: bool = False
    tries: int = 0
    due_ms: int = 0
    """When it is proposed again."""

    def left_open(self, now_ms: int) -> None:
        """Keep the change open after a response without an outcome, and propose it after a
        pause."""
        self.due_ms = now_ms + int(steady(RETRY_MS, RETRY_MAX_MS).pause_ms(self.tries))
        self.tries += 1


@dataclass(frozen=True, slots=True)
class Answered:
    """The response to AlterIsr for one partition."""

    error: ErrorCode
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    isr_version: int


@dataclass(frozen=True, slots=True)
class Settled:
    """The committed ISR and its version."""

    isr: tuple[int, ...]
    isr_version: int


def outcome(
    change: IsrChange, leader: int, known_isr: tuple[int, ...], answer: Answered
) -> Settled | CommandRefusal | None:
    """Return the outcome of a change in flight by the table above; None if it is not known.

    ``known_isr`` is the ISR that the change is based on.
    """
    if answer.error in (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_REQUEST):
        return CommandRefusal(answer.error, "the controller refuses the change")
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
