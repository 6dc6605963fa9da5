"""The outcome of one record for the threads that wait for it, as kafka-python's future.

Owns waiting and callbacks. Not the outcome: the sender on the loop gives it.

No lock is held per record. The giver writes the outcome, then looks for waiters and callbacks; a
thread that waits adds itself, then looks for the outcome: so one of the two sees the other.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from tidelog.aio.arguments import seconds
from tidelog.client.errors import ClientError, GaveUp, WrongState
from tidelog.client.producing.record_metadata import RecordMetadata

_log = logging.getLogger(__name__)


class FutureRecordMetadata:
    """The future of a record: ``get(timeout)`` waits for its place in the log.

    It is thread-safe. Callbacks run on the clients' loop, or at once if the outcome is known; they
    must return soon, and an exception that they raise is logged.
    """

    __slots__ = ("_callbacks", "_done", "_error", "_on_loop", "_result", "_waiter")

    def __init__(self, on_loop: Callable[[], bool]) -> None:
        self._done = False
        self._result: RecordMetadata | None = None
        self._error: ClientError | None = None
        self._waiter: threading.Event | None = None
        self._callbacks: list[Callable[[FutureRecordMetadata], object]] | None = None
        self._on_loop = on_loop

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self._done

    @property
    def is_done(self) -> bool:
        """Whether the outcome is known."""
        return self._done

    def succeeded(self) -> bool:
        """Return whether the record was written."""
        return self._done and self._error is None

    def failed(self) -> bool:
        """Return whether the record was not acknowledged."""
        return self._error is not None

    def get(self, timeout: float | None = None) -> RecordMetadata:
        """Return where the record is, or raise why it was not acknowledged.

        Raises KafkaTimeoutError when the outcome is not known within ``timeout`` seconds.
        """
        if not self._done:
            self._wait(timeout)
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Do what ``get`` does; the name of concurrent.futures."""
        return self.get(timeout)

    def exception(self, timeout: float | None = None) -> ClientError | None:
        """Return why the record was not acknowledged; None when it was. Waits as ``get`` does."""
        if not self._done:
            self._wait(timeout)
        return self._error

    def add_callback(
        self, callback: Callable[..., object], *args: Any, **kwargs: Any
    ) -> FutureRecordMetadata:
        """Call ``callback(*args, metadata, **kwargs)`` when the record was written."""
        call = partial(callback, *args, **kwargs)
        return self.add_done_callback(lambda done: done._error or call(done._result))

    def add_errback(
        self, errback: Callable[..., object], *args: Any, **kwargs: Any
    ) -> FutureRecordMetadata:
        """Call ``errback(*args, exception, **kwargs)`` when the record was not acknowledged."""
        call = partial(errback, *args, **kwargs)
        return self.add_done_callback(lambda done: done._error and call(done._error))

    def add_done_callback(
        self, callback: Callable[[FutureRecordMetadata], object]
    ) -> FutureRecordMetadata:
        """Call ``callback(self)`` when the outcome is known."""
        if self._callbacks is None:
            self._callbacks = []
        self._callbacks.append(callback)
        if self._done:
            self._call()
        return self

    def set_result(self, result: RecordMetadata, /) -> None:
        """Give the place of the record; the sender calls it, once."""
        self._result = result
        self._settle()

    def set_exception(self, exception: ClientError, /) -> None:
        """Give the reason of a failure; the sender calls it, once."""
        self._error = exception
        self._settle()

    def _settle(self) -> None:
        self._done = True
        if self._waiter is not None:
            self._waiter.set()
        if self._callbacks is not None:
            self._call()

    def _call(self) -> None:
        callbacks = self._callbacks
        while callbacks:
            try:
                # Two threads may be here: each callback goes to one of them.
                callback = callbacks.pop(0)
            except IndexError:
                return
            try:
                callback(self)
            except BaseException as error:
                # On the loop SystemExit would end the loop of all clients, and not the program.
                if not isinstance(error, Exception) and not self._on_loop():
                    raise
                _log.exception("a callback of a producer's future failed")

    def _wait(self, timeout: float | None) -> None:
        timeout = seconds(timeout)
        if self._on_loop():
            raise WrongState(
                "a callback must not wait for a record: use add_callback on its future instead"
            )
        with _waiters_lock:
            waiter = self._waiter
            if waiter is None:
                waiter = self._waiter = threading.Event()
        if self._done:
            return
        if not waiter.wait(timeout) and not self._done:
            raise GaveUp(f"the record has no outcome within {timeout} s: it is still being sent")


_waiters_lock = threading.Lock()
"""Held while a thread that waits makes the event that others wait for, too."""
