"""A connection, as its server sees it: what it asks of it, and what it may do to it."""

from __future__ import annotations

from typing import Protocol

from tidelog.network.router import Peer


class OpenConnection(Peer, Protocol):
    """A connection, as its server sees it."""

    closing_since: float | None
    """When it began to close: its client has still to read what is written."""

    @property
    def last_active(self) -> float:
        """When it last received or sent something, or had a reason not to."""

    @property
    def is_starved(self) -> bool:
        """Whether it waits for memory, and is not read until there is room."""

    @property
    def unanswered(self) -> int:
        """Requests whose response is still to come."""

    @property
    def is_sending(self) -> bool:
        """Whether part of a file is on its way."""

    @property
    def is_holding(self) -> bool:
        """Whether it holds memory that others may wait for and that cannot just be given back."""

    def may_answer_now(self) -> bool:
        """See ``answer_queue.ResponseWaiter``."""

    def answer_now(self) -> None:
        """See ``answer_queue.ResponseWaiter``."""

    def frame_is_late(self) -> None:
        """Close: the frame that was awaited is not complete in its time."""

    def release_idle_buffer(self) -> None:
        """Give an empty buffer back."""

    def stay_active(self, now_s: float) -> None:
        """Not count as idle: others are the reason that nothing happens."""

    def stop_taking(self) -> None:
        """Serve no further request; responses that are pending still go out."""

    def abort(self) -> None:
        """Close at once; what is not sent is lost."""
