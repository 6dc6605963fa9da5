"""A paced load of numbered records by tidelog's own producer, in a thread of its own.

Owns no assertions but that each record is acknowledged. Each key has the numbers 0, 1, 2, …, by
which its order can be judged.
"""

from __future__ import annotations

import asyncio
import json
import threading

from tests.support.processes import wait_until
from tidelog.client.cluster import Cluster
from tidelog.client.producing.sender import RecordSender

KEYS = [b"key-%d" % number for number in range(60)]
PER_S = 600


class Load:
    """An aware producer in a thread of its own: each record is acknowledged, or fails the test."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.acked = 0
        self.failure: BaseException | None = None

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def more(self, count: int, deadline_s: float) -> None:
        """Wait until so many more are acknowledged."""
        wanted = self.acked + count
        wait_until(
            lambda: self.acked >= wanted or self.failure is not None, deadline_s, "the load goes on"
        )
        assert self.failure is None, self.failure

    async def _run(self) -> None:
        try:
            async with Cluster(self._bootstrap) as client, RecordSender(client) as sender:
                number = 0
                while not self._stopped.is_set():
                    sent = [
                        await sender.send(self._topic, json.dumps({"n": number}).encode(), key)
                        for key in KEYS
                    ]
                    await asyncio.gather(*sent)
                    self.acked += len(KEYS)
                    number += 1
                    # The pace, unless the load ends.
                    await asyncio.to_thread(self._stopped.wait, len(KEYS) / PER_S)
        except BaseException as error:
            self.failure = error
