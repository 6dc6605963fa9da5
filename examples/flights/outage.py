"""kill -9 of a broker in mid-stream, and what becomes of it, as it happens.

Owns the choice of the broker and the lines about it; the clients know nothing of any of this.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence

from confluent_kafka.admin import AdminClient, PartitionMetadata
from examples.flights.server import RunningCluster

_DEADLINE_S = 60.0
_CHECK_S = 0.05


class Outage:
    """One broker's death and return. `strike` kills it; `finish` waits until all is well again."""

    def __init__(self, cluster: RunningCluster, topic: str, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._topic = topic
        self._say = say
        self._admin = self._client_without(None)
        self._watch: threading.Thread | None = None
        self._failure: Exception | None = None

    def strike(self) -> int:
        """Kill a broker that leads partitions of the topic, and watch what happens; its id."""
        led = {
            broker: [index for index, each in self._partitions().items() if each.leader == broker]
            for broker in self._candidates()
        }
        victim = max(led, key=lambda broker: len(led[broker]))
        pid = self._cluster.pid(victim)
        assert pid is not None
        # A client that was connected to the victim alone would first wait for it.
        self._admin = self._client_without(victim)
        self._partitions()
        os.kill(pid, signal.SIGKILL)
        leads = _named("partition", led[victim])
        self._say(f"kill -9: broker {victim}, process {pid}, which led {leads}")
        self._watch = threading.Thread(target=self._report, args=(victim, pid, led[victim]))
        self._watch.start()
        return victim

    def finish(self) -> None:
        """Wait until all replicas are in sync again. Raises TimeoutError."""
        if self._watch is not None:
            self._watch.join()
        if self._failure is not None:
            raise self._failure

    def _client_without(self, broker: int | None) -> AdminClient:
        others = [each for each in self._cluster.read()["brokers"] if each["id"] != broker]
        addresses = ",".join(f"{each['host']}:{each['port']}" for each in others)
        return AdminClient({"bootstrap.servers": addresses, "log_level": 2})

    def _candidates(self) -> list[int]:
        # The broker that shares its process with the controller is spared: the demo shows one
        # death at a time.
        found = self._cluster.read()
        controllers = {each["id"] for each in found["controllers"]}
        return [each["id"] for each in found["brokers"] if each["id"] not in controllers]

    def _report(self, victim: int, pid: int, led: Sequence[int]) -> None:
        begun = time.monotonic()
        try:
            self._until(lambda: all(self._partitions()[x].leader not in (-1, victim) for x in led))
            seconds = time.monotonic() - begun
            others = sorted({self._partitions()[index].leader for index in led})
            lead = "leads" if len(others) == 1 else "lead"
            now = f"{_named('broker', others)} {lead} instead"
            self._say(f"{now}, {seconds:.1f} s later; the flights go on")
            self._until(lambda: self._cluster.pid(victim) not in (None, pid))
            self._say(f"broker {victim} is back as process {self._cluster.pid(victim)}")
            self._until(
                lambda: all(len(x.isrs) == len(x.replicas) for x in self._partitions().values())
            )
            self._say("every replica is in sync again")
        except Exception as error:
            self._failure = error

    def _partitions(self) -> dict[int, PartitionMetadata]:
        found = self._admin.list_topics(self._topic, timeout=_DEADLINE_S)
        return dict(found.topics[self._topic].partitions)

    def _until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + _DEADLINE_S
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError("the killed broker's partitions did not recover in time")
            time.sleep(_CHECK_S)


def _named(word: str, numbers: Sequence[int]) -> str:
    """Such as "partition 3" and "partitions 0 and 3"."""
    if len(numbers) == 1:
        return f"{word} {numbers[0]}"
    return f"{word}s {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
