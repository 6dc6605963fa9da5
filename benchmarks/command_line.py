"""How long do `tidelog produce` and `consume` take for a million lines, beside kcat?

Both tools send the same file to one tidelog node, and read the same topic from it, in alternating
order; a line has 100 bytes. Seconds are those of the whole command (median, least to most), CPU is
user and system of the tool alone. The promise is within three times kcat's time. Run on idle cores:
``python -m benchmarks.command_line [--rounds 5] [--lines 1000000]``. Result: benchmarks/NOTES.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.support import clients
from tests.support.server import TidelogNode, tidelog_command

from benchmarks.measuring import spread

LINE_BYTES = 100
PARTITIONS = 4
PROMISED = 3.0
"""What the time of a row may be, as a multiple of kcat's."""

FIELDS = "%k\t%s\n"


@dataclass
class Row:
    """One line of the table: how each tool does the same, and how long that took."""

    name: str
    ours: Sequence[str]
    theirs: Sequence[str]
    source: Path | None = None
    """What is piped in; None for a row that reads a topic."""

    took_s: dict[str, list[float]] = field(default_factory=dict)
    cpu_s: dict[str, list[float]] = field(default_factory=dict)

    def measure(self, number: int, out: IO[bytes]) -> None:
        """Run both once; the order alternates from round to round."""
        commands = [("tidelog", self.ours), ("kcat", self.theirs)]
        for tool, command in commands if number % 2 == 0 else reversed(commands):
            took_s, cpu_s = timed(command, self.source, out)
            self.took_s.setdefault(tool, []).append(took_s)
            self.cpu_s.setdefault(tool, []).append(cpu_s)

    def ratio(self) -> float:
        """The median of tidelog's time over kcat's, round by round."""
        pairs = zip(self.took_s["tidelog"], self.took_s["kcat"], strict=True)
        return statistics.median(ours / theirs for ours, theirs in pairs)


def timed(command: Sequence[str], source: Path | None, out: IO[bytes]) -> tuple[float, float]:
    """Run a command to its end; seconds, and CPU seconds. Raises CalledProcessError."""
    with (source or Path(os.devnull)).open("rb") as lines:
        begun = time.monotonic()
        running = subprocess.Popen(command, stdin=lines, stdout=out, stderr=subprocess.PIPE)
        assert running.stderr is not None
        said = running.stderr.read()
        _, status, used = os.wait4(running.pid, 0)
        took_s = time.monotonic() - begun
    running.stderr.close()
    running.returncode = os.waitstatus_to_exitcode(status)
    if running.returncode:
        raise subprocess.CalledProcessError(running.returncode, command, stderr=said)
    return took_s, used.ru_utime + used.ru_stime


def files(folder: Path, count: int) -> Iterator[tuple[str, Path]]:
    """The lines of each kind, written once: no keys, a thousand of them, one to each line."""
    kinds = {"no keys": 0, "1,000 keys": 1_000, "a key to each line": count}
    for name, keys in kinds.items():
        made = folder / f"lines-{keys}"
        with made.open("wb") as out:
            for number in range(count):
                key = b"%08d\t" % (number % keys) if keys else b""
                out.write(key + b"%0*d\n" % (LINE_BYTES - 1 - len(key), number))
        yield name, made


def rows(bootstrap: str, folder: Path, count: int) -> Iterator[Row]:
    """All rows, those first that fill the topics of the others."""
    for number, (name, source) in enumerate(files(folder, count)):
        topic, with_keys = f"lines-{number}", number > 0
        clients.create_topic(bootstrap, topic, PARTITIONS)
        where = ("--bootstrap-server", bootstrap, "--topic", topic)
        parse = ("--property", "parse.key=true") if with_keys else ()
        cut = ("-K", "\t") if with_keys else ()
        yield Row(
            f"produce, {name}",
            tidelog_command("produce", *where, *parse),
            ("kcat", "-P", "-b", bootstrap, "-t", topic, *cut),
            source,
        )
        # As many as one round has written are there at least.
        end = ("--from-beginning", "--max-messages", str(count))
        keys = ("--property", "print.key=true") if with_keys else ()
        shown = ("-f", FIELDS) if with_keys else ()
        if number < 2:
            yield Row(
                "consume, keys and values" if with_keys else "consume, values",
                tidelog_command("consume", *where, *end, *keys),
                ("kcat", "-C", "-q", "-b", bootstrap, "-t", topic, "-o", "beginning",
                 "-c", str(count), *shown),
            )  # fmt: skip


def main() -> int:
    """Measure and print the table; 1 where a row takes longer than what is promised."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lines", type=int, default=1_000_000)
    given = parser.parse_args()
    if (why := clients.kcat_missing()) is not None:
        print(f"nothing was measured: {why}")
        return 0
    with tempfile.TemporaryDirectory(prefix="tidelog-") as name, open(os.devnull, "wb") as out:
        folder = Path(name)
        with TidelogNode(folder / "node") as node:
            measured = list(rows(node.bootstrap, folder, given.lines))
            for number in range(given.rounds):
                for row in measured:
                    row.measure(number, out)
    print(f"{given.lines:,} lines of {LINE_BYTES} bytes, {given.rounds} rounds, s")
    print("| | tidelog | kcat | ratio | CPU of tidelog | CPU of kcat |\n|---|---|---|---|---|---|")
    for row in measured:
        took = [spread(row.took_s[tool], 2) for tool in ("tidelog", "kcat")]
        cpu = [f"{statistics.median(row.cpu_s[tool]):.2f}" for tool in ("tidelog", "kcat")]
        print(f"| {' | '.join([row.name, *took, f'{row.ratio():.1f}', *cpu])} |")
    return 1 if any(row.ratio() > PROMISED for row in measured) else 0


if __name__ == "__main__":
    sys.exit(main())
