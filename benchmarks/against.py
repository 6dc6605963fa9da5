"""This checkout beside an older version of tidelog: `make bench AGAINST=COMMIT`.

`python -m benchmarks.against COMMIT [--rounds 9] [--rows WORD,...] [--quick]`. Both versions run
all the time on the same cores; in each round every row measures one and then the other, and the
order changes with the round. Prints each row's ratio with its exact 90 % interval and a verdict.
The exit status is 1 when a row is worse: the interval of a CPU row lies above 1.03, that of another
beyond 0.95 or 1.05 on the bad side.

Which cores servers and clients have: see `cores`.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.support.java import missing

from benchmarks import (
    consumer_throughput,
    java_producer,
    latency,
    many_partitions,
    one_record_requests,
    start_and_memory,
    three_nodes,
)
from benchmarks.clusters import ClusterTarget
from benchmarks.cores import Cores, machine, pin_clients, pinned
from benchmarks.ending import end_on_sigterm
from benchmarks.memory import have_memory_at_hand
from benchmarks.nodes import Target
from benchmarks.ratios import LEAST_ROUNDS, Compared, Verdict, table
from benchmarks.run import Row, say
from benchmarks.versions import Version, two_versions

ROUNDS = 9
WARM_UP_ROUNDS = 1

NODE_ROWS: tuple[Row, ...] = (
    *java_producer.ROWS,
    *one_record_requests.ROWS,
    *many_partitions.ROWS,
    *latency.ROWS,
    *consumer_throughput.ROWS,
    *start_and_memory.ROWS,
)
CLUSTER_ROWS: tuple[Row, ...] = three_nodes.VERSION_ROWS
ALL_ROWS = (*NODE_ROWS, *CLUSTER_ROWS)


def chosen_rows(words: str | None) -> list[Row]:
    """Return the rows whose title contains one of the words."""
    wanted = [word.strip().lower() for word in (words or "").split(",")]
    found = [row for row in ALL_ROWS if any(word in row.title.lower() for word in wanted)]
    if not found:
        titles = ", ".join(row.title for row in ALL_ROWS)
        sys.exit(f"no row is called like {words}; there are: {titles}")
    return found


def run(rows: Sequence[Row], targets: Sequence[Any], rounds: int, quick: bool) -> list[Compared]:
    """Measure all rows on the old and the new version, in turns."""
    old, new = targets
    found = {row.title: [Compared(each, [], []) for each in row.metrics] for row in rows}
    for round_number in range(1 - WARM_UP_ROUNDS, rounds + 1):
        for row in rows:
            if row.cold and round_number < 1:
                continue
            for target in (old, new) if round_number % 2 == 0 else (new, old):
                have_memory_at_hand()
                values = row.measure(target, quick)
                say(round_number, rounds, row, target, values)
                if round_number > 0:
                    for each, value in zip(found[row.title], values, strict=True):
                        (each.old if target is old else each.new).append(value)
    return [each for compared in found.values() for each in compared]


def measure(
    versions: Sequence[Version],
    rows: Sequence[Row],
    folder: Path,
    rounds: int,
    quick: bool,
    cores: Cores,
) -> list[Compared]:
    """Measure the rows of one node, then those of a controller and three brokers."""
    compared: list[Compared] = []
    on_nodes = [row for row in NODE_ROWS if row in rows]
    if on_nodes:
        with ExitStack() as running:
            nodes = [
                Target(x.name, pinned(x.node, cores), folder / f"node-{i}")
                for i, x in enumerate(versions)
            ]
            for target in nodes:
                running.enter_context(target.node)
            compared += run(on_nodes, nodes, rounds, quick)
    on_clusters = [row for row in CLUSTER_ROWS if row in rows]
    if on_clusters:
        with ExitStack() as running:
            clusters = [
                ClusterTarget(x.name, pinned(x.cluster, cores), folder / f"cluster-{i}")
                for i, x in enumerate(versions)
            ]
            for each in clusters:
                running.enter_context(each.node)
                each.node.start()
            compared += run(on_clusters, clusters, rounds, quick)
    return compared


def circumstances(versions: Sequence[Version], rounds: int, cores: Cores) -> str:
    """Return what a reader must know of the run, in one paragraph."""
    load = ", ".join(f"{part:.1f}" for part in os.getloadavg())
    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    old, new = versions
    return (
        f"{new.name} against {old.name}, {when}. {rounds} rounds after {WARM_UP_ROUNDS} to warm "
        f"up; {machine()}; {cores}; load average at the end {load}."
    )


def main() -> None:
    """Parse the command line, measure, print; exit with 1 when a row is worse."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against", description=__doc__)
    parser.add_argument("commit", help="what to compare with")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"measured rounds ({ROUNDS})")
    parser.add_argument("--rows", help="only rows whose title contains one of these words")
    parser.add_argument("--quick", action="store_true", help="smaller rows")
    parser.add_argument("--out", type=Path, help="where to write the table, too")
    options = parser.parse_args()
    rows = chosen_rows(options.rows)
    reason = missing()
    if reason is not None:
        sys.exit(reason)
    if options.rounds < LEAST_ROUNDS:
        print(f"fewer than {LEAST_ROUNDS} rounds decide nothing: a trial", file=sys.stderr)
    end_on_sigterm()
    cores = pin_clients()
    with tempfile.TemporaryDirectory(prefix="tidelog-against-") as name:
        folder = Path(name)
        with two_versions(options.commit, folder) as versions:
            compared = measure(versions, rows, folder, options.rounds, options.quick, cores)
    page = "\n\n".join(
        (
            circumstances(versions, options.rounds, cores),
            table(compared, versions[0].name, versions[1].name),
        )
    )
    print(page)
    if options.out is not None:
        options.out.write_text(page + "\n")
    worse = [each.metric.name for each in compared if each.verdict is Verdict.WORSE]
    if worse:
        sys.exit(f"worse than {versions[0].name}: {'; '.join(worse)}")


if __name__ == "__main__":
    main()
