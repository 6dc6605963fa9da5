"""tidelog beside Apache Kafka in one run: `python -m benchmarks.run [--quick] [--rows WORD,...]`.

First one node of each, then a controller and three brokers of each. Both brokers run all the time;
in each round every row measures one and then the other, and the order changes with the round. The
first rounds warm both up and are not counted; rows that start something new each time have none.
Which cores servers and clients have, the same for both: see `cores`.
Prints the table and writes `benchmarks/RESULTS.md`, to which `benchmarks/NOTES.md` is added.
"""

from __future__ import annotations

import argparse
import compileall
import datetime
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from tests.support.java import missing

import tidelog
from benchmarks import (
    compaction,
    consumer_throughput,
    idle_latency,
    java_producer,
    latency,
    many_partitions,
    metadata_storm,
    moving,
    one_record_requests,
    spark_read,
    start_and_memory,
    three_nodes,
    transactions,
)
from benchmarks.clusters import CLUSTER_MAKERS, ClusterTarget
from benchmarks.cores import Cores, machine, pin_clients, pinned
from benchmarks.ending import end_on_sigterm
from benchmarks.measuring import Metric, Samples, table
from benchmarks.memory import have_memory_at_hand
from benchmarks.nodes import MAKERS, Target

HERE = Path(__file__).parent
OURS, THEIRS = "tidelog", "Apache Kafka"


class Row(Protocol):
    """One question: its metrics, and one measurement of each of them.

    `cold`: it measures something new each time, so there is nothing to warm up for it.
    """

    @property
    def title(self) -> str: ...

    @property
    def cold(self) -> bool: ...

    @property
    def metrics(self) -> tuple[Metric, ...]: ...

    def measure(self, target: Any, quick: bool) -> list[float]:
        """One value per metric, in their order."""
        ...


NODE_ROWS: tuple[Row, ...] = (
    *java_producer.ROWS,
    *one_record_requests.ROWS,
    *many_partitions.ROWS,
    *metadata_storm.ROWS,
    *latency.ROWS,
    *consumer_throughput.ROWS,
    *start_and_memory.ROWS,
    *spark_read.ROWS,
    *compaction.ROWS,
    *transactions.ROWS,
)
CLUSTER_ROWS: tuple[Row, ...] = (
    *three_nodes.ROWS,
    *moving.ROWS,
    *idle_latency.ROWS,
    *transactions.CLUSTER_ROWS,
    *spark_read.CLUSTER_ROWS,
)
ALL_ROWS = (*NODE_ROWS, *CLUSTER_ROWS)


def chosen_rows(words: str | None) -> list[Row]:
    """The rows whose title contains one of the words."""
    if words is None:
        return list(ALL_ROWS)
    wanted = [word.strip().lower() for word in words.split(",")]
    found = [row for row in ALL_ROWS if any(word in row.title.lower() for word in wanted)]
    if not found:
        titles = ", ".join(row.title for row in ALL_ROWS)
        sys.exit(f"no row is called like {words}; there are: {titles}")
    return found


def warm_up_rounds(quick: bool) -> int:
    """Rounds that are thrown away: a JVM still compiles in its first minutes."""
    return 1 if quick else 2


def run(rows: Sequence[Row], targets: list[Any], rounds: int, quick: bool) -> list[Samples]:
    """Measure all rows; the rounds alternate the order of the targets."""
    samples = {metric.name: Samples(metric) for row in rows for metric in row.metrics}
    for round_number in range(1 - warm_up_rounds(quick), rounds + 1):
        for row in rows:
            if row.cold and round_number < 1:
                continue
            ordered = targets if round_number % 2 == 0 else targets[::-1]
            for target in ordered:
                have_memory_at_hand()
                values = row.measure(target, quick)
                say(round_number, rounds, row, target, values)
                if round_number > 0:
                    for metric, value in zip(row.metrics, values, strict=True):
                        samples[metric.name].add(target.name, value)
    return list(samples.values())


def say(round_number: int, rounds: int, row: Row, target: Any, values: list[float]) -> None:
    """One line of progress on standard error."""
    which = "warm-up" if round_number < 1 else f"round {round_number}/{rounds}"
    shown = ", ".join(
        f"{value:,.4g} {metric.unit}" for metric, value in zip(row.metrics, values, strict=True)
    )
    print(f"{which:>9}  {row.title}: {target.name}: {shown}", file=sys.stderr, flush=True)


def circumstances(rounds: int, quick: bool, cores: Cores) -> str:
    """What a reader must know of the run, in one paragraph."""
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=30).stderr
    load = ", ".join(f"{part:.1f}" for part in os.getloadavg())
    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return (
        f"{when}. {machine()}, "
        f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB; "
        f"{cores}, for both brokers; "
        f"Java {said.split()[2].strip(chr(34))}, librdkafka {version('confluent-kafka')}, "
        f"tidelog {version('tidelog')}, Apache Kafka 4.3.0. {rounds} rounds after "
        f"{warm_up_rounds(quick)} to warm up{', quick form' if quick else ''}; load average at "
        f"the end {load}."
    )


def report(samples: list[Samples], head: str) -> str:
    """The page: circumstances, table, notes."""
    notes = HERE / "NOTES.md"
    parts = [
        "# Speed beside Apache Kafka\n",
        "Printed by `make bench`. Both brokers ran side by side with stock clients over loopback,",
        "alternating: one node each, then one controller and three brokers each. A cell is the",
        "median and, in brackets, the least and the most of the rounds; a ratio is taken within a",
        "round. Broker CPU is utime + stime of all server processes. Times move with what else the",
        "machine does; CPU and ratios move less.\n",
        head + "\n",
        table(samples, OURS, THEIRS) + "\n",
    ]
    if notes.exists():
        parts.append(notes.read_text())
    return "\n".join(parts)


def main() -> None:
    """Parse the command line, measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="smaller rows; --rounds 1: ten minutes"
    )
    parser.add_argument("--rounds", type=int, help="measured rounds (5; quick: 3)")
    parser.add_argument("--rows", help="only rows whose title contains one of these words")
    parser.add_argument("--control", action="store_true", help="Apache Kafka in both places")
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md", help="where to write")
    options = parser.parse_args()
    end_on_sigterm()
    reason = missing()
    if reason is not None:
        sys.exit(reason)
    compile_as_installed()
    cores = pin_clients()
    rounds = options.rounds or (3 if options.quick else 5)
    rows = chosen_rows(options.rows)
    samples: list[Samples] = []
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as name:
        for group, measured in ((NODE_ROWS, on_nodes), (CLUSTER_ROWS, on_clusters)):
            chosen = [row for row in group if row in rows]
            if chosen:
                samples += measured(
                    chosen, Path(name), rounds, options.quick, options.control, cores
                )
    page = report(samples, circumstances(rounds, options.quick, cores))
    print(page)
    options.out.write_text(page)
    print(f"written to {options.out}", file=sys.stderr)


def compile_as_installed() -> None:
    """Put the product's bytecode beside its sources, as pip does when it installs a package.

    Where Python may not write it (PYTHONDONTWRITEBYTECODE) each process would compile all of them
    as it starts: a third of the CPU of a start.
    """
    if not compileall.compile_dir(Path(tidelog.__file__).parent, quiet=1):
        sys.exit("the product does not compile: see above")


def on_nodes(
    rows: list[Row], folder: Path, rounds: int, quick: bool, control: bool, cores: Cores
) -> list[Samples]:
    """Measure rows of one node."""
    with ExitStack() as running:
        targets = []
        for name in (THEIRS, OURS):
            make = pinned(MAKERS[THEIRS if control else name], cores)
            targets.append(Target(name, make, folder / name.replace(" ", "-")))
            running.enter_context(targets[-1].node)
        return run(rows, targets, rounds, quick)


def on_clusters(
    rows: list[Row], folder: Path, rounds: int, quick: bool, control: bool, cores: Cores
) -> list[Samples]:
    """Measure rows of a controller and three brokers."""
    with ExitStack() as running:
        targets = []
        for name in (THEIRS, OURS):
            make = pinned(CLUSTER_MAKERS[THEIRS if control else name], cores)
            place = folder / f"cluster-{name.replace(' ', '-')}"
            targets.append(ClusterTarget(name, make, place))
            running.enter_context(targets[-1].node)
            targets[-1].node.start()
        return run(rows, targets, rounds, quick)


if __name__ == "__main__":
    main()
