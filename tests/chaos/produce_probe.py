"""How long a produce takes under a load, one record at a time, seen by a process of its own.

The threads of a load share one interpreter: a producer among them would wait for the others, and
that wait would be counted. Its own process measures what the server takes.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from pathlib import Path

import confluent_kafka

from tests.support.processes import DEADLINE_S

ROOT = Path(__file__).resolve().parents[2]
INTERVAL_S = 0.01


class ProduceProbe:
    """A producer with acks=all and no linger that sends a record, waits for its answer, and goes on
    after 10 ms, until `finish`."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.produce_probe", bootstrap, topic],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self) -> list[float]:
        """End it; the seconds that each record took, in their order. AssertionError when one was
        not acknowledged."""
        out, errors = self._process.communicate("", timeout=DEADLINE_S)
        assert self._process.returncode == 0, f"the probe failed: {errors[-2000:]}"
        took_s: list[float] = json.loads(out)
        return took_s

    def kill(self) -> None:
        """End it without an answer, if it runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def main(bootstrap: str, topic: str) -> None:
    """Produce until standard input ends; print the seconds as JSON."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0}
    )

    def answered(error: confluent_kafka.KafkaError | None, _: object) -> None:
        assert error is None, error

    took_s: list[float] = []
    while not select.select([sys.stdin], [], [], INTERVAL_S)[0]:
        begun_s = time.monotonic()
        producer.produce(topic, b"x" * 100, partition=0, on_delivery=answered)
        assert producer.flush(DEADLINE_S) == 0, "a record is not acknowledged"
        took_s.append(time.monotonic() - begun_s)
    print(json.dumps(took_s))


if __name__ == "__main__":
    main(*sys.argv[1:])
