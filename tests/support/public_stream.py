"""A stream of keyed records through the public producer and consumer, with books.

Owns what they write, read and judge. Not librdkafka's stream: see ``acked_stream``.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter
from typing import Any

import tidelog
from tests.support.acked_stream import Place
from tests.support.processes import DEADLINE_S, wait_until

KEYS = 9


class PublicStream:
    """A producer and a consumer, each in a thread; values are numbers, ``KEYS`` keys in turn."""

    def __init__(self, bootstrap: str, topic: str, group: str, per_s: float = 30) -> None:
        self.acked: dict[str, Place] = {}
        self.seen: Counter[str] = Counter()
        """Each value that was read, in the order of the first time."""
        self.problems: list[str] = []
        self.retried: Counter[str] = Counter()
        """Errors of ``poll``, after which the consumer polls again."""
        self.sent = 0
        self._topic = topic
        self._per_s = per_s
        self._stop_writing, self._stop_reading = threading.Event(), threading.Event()
        self._producer = tidelog.Producer(
            bootstrap_servers=bootstrap, linger_ms=5, max_block_ms=300_000, retry_backoff_ms=50
        )
        self._consumer = tidelog.Consumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=200,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=500,
            metadata_max_age_ms=1_000,
        )
        self._threads = [
            threading.Thread(target=self._noted, args=(work,), daemon=True)
            for work in (self._write, self._read)
        ]

    def start(self) -> None:
        """Begin to write and to read."""
        for thread in self._threads:
            thread.start()

    def _noted(self, work: Any) -> None:
        try:
            work()
        except Exception:
            self.problems.append(traceback.format_exc())

    def _write(self) -> None:
        begun = time.monotonic()
        while not self._stop_writing.wait(0.01):
            while self.sent < (time.monotonic() - begun) * self._per_s:
                value = f"public:{self.sent}"
                sent = self._producer.send(self._topic, value.encode(), b"k%d" % (self.sent % KEYS))
                sent.add_callback(self._acked, value)
                sent.add_errback(lambda error: self.problems.append(f"send: {error}"))
                self.sent += 1
        self._producer.close(DEADLINE_S)

    def _acked(self, value: str, place: tidelog.RecordMetadata) -> None:
        self.acked[value] = (place.partition, place.offset)

    def _read(self) -> None:
        while not self._stop_reading.is_set():
            try:
                found = self._consumer.poll(100)
            except tidelog.errors.KafkaError as error:
                self.retried[str(error)] += 1
                continue
            for records in found.values():
                self.seen.update(record.value.decode() for record in records)
        self._consumer.close()

    def state(self) -> str:
        """One line for a failure."""
        read = sum(value.startswith("public:") for value in self.seen)
        retried = list(self.retried.items())[-3:]
        return f"{self.sent} sent, {len(self.acked)} acked, {read} read; {retried} {self.problems}"

    def settle(self) -> None:
        """Stop writing, read everything, and close both; AssertionError when that is wrong.

        Each record is acknowledged and read, and each key's records come in their order.
        """
        writing, reading = self._threads
        self._stop_writing.set()
        writing.join(DEADLINE_S)
        assert not self.problems and len(self.acked) == self.sent, self.state()
        try:
            wait_until(lambda: self.acked.keys() <= self.seen.keys(), DEADLINE_S, self.state)
        finally:
            self._stop_reading.set()
            reading.join(DEADLINE_S)
        assert not self.problems and not reading.is_alive(), self.state()
        last: dict[int, int] = {}
        for value in self.seen:
            owner, _, number = value.partition(":")
            if owner == "public":
                key = int(number) % KEYS
                assert int(number) > last.get(key, -1), f"{value} after {last[key]} of k{key}"
                last[key] = int(number)
