"""How long does an audit of ten million records take on two cores, and a second one?

`python -m benchmarks.audit_lake [--records N] [--cores 0,1]` starts a broker, writes the records
(keyed, 100 bytes of value, four partitions, lz4), archives them and runs the command `audit` four
times, Spark's start included: the first time, again at once, again after a thousandth more records,
and in full with `--keys murmur2`. It prints the table of `benchmarks/NOTES.md`: seconds, files and
offsets read. All processes, the broker included, share the cores named.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Producer
from tests.support.clients import create_topic
from tests.support.server import TidelogNode

TOPIC = "audited"
PARTITIONS = 4
KEYS = 100_000
_VALUE = b'{"n":%010d,"text":"' + b"tidelog " * 9 + b'%06d"}'
_DEADLINE_S = 900.0


def write(bootstrap: str, first: int, count: int) -> None:
    """Publish records `first` to `first + count` and wait until all are acknowledged."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 50,
            "batch.size": 1 << 20,
            "compression.type": "lz4",
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 500_000,
        }
    )
    for n in range(first, first + count):
        while True:
            try:
                producer.produce(TOPIC, _VALUE % (n, n * 7919 % 10**6), b"key-%d" % (n % KEYS))
                break
            except BufferError:
                producer.poll(0.1)
        if n % 1000 == 0:
            producer.poll(0)
    assert producer.flush(_DEADLINE_S) == 0


def job(name: str, bootstrap: str, lake: Path, *more: str) -> tuple[float, str]:
    """Run a job by its command line: seconds, and the JSON that it wrote."""
    found = lake.parent / "found.json"
    command = [
        *(sys.executable, "-m", "tidelog.pipeline", name, "--bootstrap-server", bootstrap),
        *("--lake", str(lake), "--master", "local[2]", "--json-file", str(found), *more),
    ]
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S)
    seconds = time.perf_counter() - begun
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return seconds, found.read_text()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--cores", default="0,1")
    given = parser.parse_args(arguments)
    os.sched_setaffinity(0, {int(core) for core in given.cores.split(",")})
    with tempfile.TemporaryDirectory() as folder, TidelogNode(Path(folder)) as node:
        create_topic(node.bootstrap, TOPIC, PARTITIONS)
        lake = Path(folder) / "lake"
        begun = time.perf_counter()
        write(node.bootstrap, 0, given.records)
        print(f"written in {time.perf_counter() - begun:.1f} s", flush=True)
        more = ("--topic", TOPIC, "--once")
        seconds, _ = job("archive", node.bootstrap, lake, *more)
        print(f"archived in {seconds:.1f} s\n", flush=True)
        print("| audit | seconds | files read | offsets compared now | verdict |")
        print("|---|---|---|---|---|", flush=True)
        _audit("first", node.bootstrap, lake)
        _audit("again", node.bootstrap, lake)
        new = max(1, given.records // 1000)
        write(node.bootstrap, given.records, new)
        job("archive", node.bootstrap, lake, *more)
        _audit(f"after {new:,} more", node.bootstrap, lake)
        _audit("all again, --keys murmur2", node.bootstrap, lake, "--full", "--keys", "murmur2")


def _audit(title: str, bootstrap: str, lake: Path, *more: str) -> None:
    seconds, text = job("audit", bootstrap, lake, "--complete", *more)
    found = json.loads(text)
    print(
        f"| {title} | {seconds:.1f} | {found['files_now']} of {found['files']} |"
        f" {found['compared_now']:,} of {found['archived']:,} | {found['verdict']} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
