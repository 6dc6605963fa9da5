"""`python -m examples.flights.demo`: a cluster, a year of flights, an archive, answers, an audit.

Starts three tidelog brokers of its own (or takes a cluster of tidelog's with --bootstrap-server),
publishes all flights while the archive job runs and the topic grows and shrinks, kills a broker
meanwhile (one of its own), computes on the lake, audits it, and prints a short table. Everything it
makes lies in demo-out/.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.flights import questions
from examples.flights.data import Message, flights, messages
from examples.flights.growth import Growth
from examples.flights.outage import Outage
from examples.flights.publish import create_topic, publish
from examples.flights.server import BROKERS, running_cluster
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tidelog.pipeline import lake as lakes
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.jobs import archive, audit
from tidelog.pipeline.progress import Plain
from tidelog.pipeline.report.page import heading, paragraph, table, text_table
from tidelog.pipeline.report.pictures import heat_map
from tidelog.pipeline.session import session

TOPIC = "flights"
PARTITIONS = 4
COUNTS = (8, 16, 5)
# While a resize is under way so many flights are sent at once, with a pause after them.
_AT_ONCE = 20
_REPORT_EVERY = 2000
_TRIGGER_MS = 500
_ARCHIVE_DEADLINE_S = 300.0
_CHECK_S = 0.1
# Short runs are over before the optimizing compiler has paid for itself on two cores.
_SPARK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "4",
}

MADE_BY_US = ".tidelog-demo"
"""The file that marks a folder as the demo's own."""


class Screen:
    """What the demo says while it runs: steps with their times, and bars on a terminal."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._begun = time.monotonic()

    def say(self, line: str) -> None:
        """One line, with the seconds since the start."""
        seconds = time.monotonic() - self._begun
        self._console.print(f"{seconds:6.1f} s  {line}", markup=False, soft_wrap=True)

    def text(self, block: str) -> None:
        """Result text as it is."""
        self._console.print(block, markup=False, soft_wrap=True)

    @contextmanager
    def bars(self) -> Iterator[Progress]:
        """Bars that vanish when they are full."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        hidden = not self._console.is_terminal
        with Progress(
            *columns, TimeElapsedColumn(), console=self._console, transient=True, disable=hidden
        ) as progress:
            yield progress


@dataclass
class Archiving(Plain):
    """The archive job in a thread of its own; also its reporter."""

    spark: SparkSession
    settings: archive.ArchiveSettings
    screen: Screen
    rows: int = 0
    wanted: int | None = None
    result: dict[str, Any] = field(default_factory=dict)
    failure: BaseException | None = None

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="archive")
        self._stopped = threading.Event()

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = archive.run(self.spark, self.settings, self, self._is_done)
        except BaseException as error:
            self.failure = error

    def _is_done(self) -> bool:
        return self._stopped.is_set() or (self.wanted is not None and self.rows >= self.wanted)

    def finish(self, wanted: int, report: Callable[[int], None]) -> dict[str, Any]:
        """Wait until so many records are archived; what the job returned."""
        self.wanted = wanted
        end = time.monotonic() + _ARCHIVE_DEADLINE_S
        while self._thread.is_alive() and time.monotonic() < end:
            report(self.rows)
            self._thread.join(_CHECK_S)
        self.stop()
        if self.failure is not None:
            raise self.failure
        if self.result["rows"] < wanted:
            raise PipelineError(f"only {self.rows:,} records were archived in time")
        return self.result

    def waiting_for_more(self) -> Iterator[None]:
        """Something to wait for until more is archived than now, or the job has ended."""
        before, end = self.rows, time.monotonic() + _ARCHIVE_DEADLINE_S
        while self.rows <= before and self._thread.is_alive() and time.monotonic() < end:
            yield None

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def update(self, done: int, total: int, **facts: Any) -> None:
        self.rows = done

    def say(self, line: str) -> None:
        self.screen.say(line)


class NotOurs(Exception):
    """A folder with something in it that the demo did not make."""


def prepare(out: Path) -> None:
    """Make an empty folder of the demo, in place of the one of an earlier run.

    Deletes nothing that no earlier run made. Raises NotOurs.
    """
    if out.is_dir() and not any(out.iterdir()):
        out.rmdir()
    elif out.exists() and not (out / MADE_BY_US).is_file():
        raise NotOurs(f"{out} exists and the demo did not make it: name another folder with --out")
    else:
        shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / MADE_BY_US).touch()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; 0 when the audit finds everything right."""
    parser = argparse.ArgumentParser(prog="flights demo", description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap-server", help="use this cluster instead of starting one")
    parser.add_argument("--out", default="demo-out", help="where everything goes")
    parser.add_argument("--flights", type=int, help="only so many of the first flights")
    given = parser.parse_args(arguments)
    out = Path(given.out).absolute()
    try:
        prepare(out)
    except NotOurs as error:
        print(f"flights demo: {error}", file=sys.stderr)
        return 2
    screen = Screen()
    with ExitStack() as running:
        bootstrap, outage, replicas = given.bootstrap_server, None, 1
        if bootstrap is None:
            screen.say(f"starting {BROKERS} brokers: tidelog up --brokers {BROKERS} --restart")
            cluster = running.enter_context(running_cluster(out))
            bootstrap, replicas = cluster.bootstrap, BROKERS
            outage = Outage(cluster, TOPIC, screen.say)
        screen.say(f"brokers on {bootstrap}")
        create_topic(bootstrap, TOPIC, PARTITIONS, replicas)
        copies = f", {replicas} replicas each" if replicas > 1 else ""
        screen.say(f"topic {TOPIC} with {PARTITIONS} partitions{copies}; starting Spark")
        with session("flights demo", "local[2]", _SPARK, log=out / "spark.log") as spark:
            return show(spark, bootstrap, out, screen, given.flights, outage)


def show(
    spark: SparkSession,
    bootstrap: str,
    out: Path,
    screen: Screen,
    limit: int | None,
    outage: Outage | None = None,
) -> int:
    """The demo on a running cluster and session; with an `outage` a broker dies on the way."""
    lake = out / "lake"
    settings = archive.ArchiveSettings(bootstrap, (TOPIC,), str(lake), trigger_ms=_TRIGGER_MS)
    frame = flights() if limit is None else flights().head(limit)
    archiving = Archiving(spark, settings, screen)
    screen.say("Spark is up; the archive job reads the topic while it fills")
    archiving.start()
    try:
        with screen.bars() as bars:
            sent = bars.add_task("published", total=len(frame))
            kept = bars.add_task("archived", total=len(frame))

            growth = Growth(bootstrap, TOPIC, PARTITIONS, list(COUNTS), screen.say)

            def acknowledged(acked: int) -> None:
                growth.acknowledged()
                if acked % _REPORT_EVERY == 0:
                    bars.update(sent, completed=acked)
                    bars.update(kept, completed=archiving.rows)

            year = side_by_side(messages(frame), len(frame), archiving, growth, outage)
            count = publish(bootstrap, TOPIC, year, acknowledged)
            screen.say(
                f"published {count:,} flights to 4, 8, 16 and 5 partitions,"
                f" {archiving.rows:,} of them archived meanwhile"
            )
            done = archiving.finish(count, lambda rows: bars.update(kept, completed=rows))
    finally:
        archiving.stop()
    if outage is not None:
        outage.finish()
    screen.say(
        f"archived {done['rows']:,} records once each:"
        f" {done['files']} files, {done['batch'] + 1} batches"
    )
    screen.say("asking Spark")
    text, parts = answers(lakes.read(spark, str(lake), TOPIC))
    screen.say("auditing the lake against the live topic, record by record")
    asked = audit.AuditSettings(
        bootstrap, str(lake), sequence="moment", complete=True, keys="murmur2"
    )
    result = audit.run(spark, asked)
    grown = [heading("The topic while it was written"), *growth.parts()]
    audit.write_reports(result, out, [*grown, *parts])
    screen.say("done")
    shown = f"{growth.picture()}\n\n{growth.table()}"
    said = f"\n{shown}\n\n{text}\n\n{result.text}\n\nreport: {out / 'report.html'}"
    screen.text(said.replace(f"{Path.cwd()}/", ""))
    return 0 if result.is_right else 1


def side_by_side(
    year: Iterator[Message], total: int, archiving: Archiving, growth: Growth, outage: Outage | None
) -> Iterator[Message | None]:
    """The year as it is, with pauses (None), so that what the demo shows happens under load.

    After each quarter the topic is resized, and the flights go on slowly meanwhile. A quarter takes
    a second to publish and the first batch of a new query some more: without a pause before the
    second and the third quarter all would be there before any is archived. In the middle of the
    second quarter a broker is killed.
    """
    for number, message in enumerate(year):
        if outage is not None and number == total * 3 // 8:
            growth.note(f"broker {outage.strike()} killed")
        if number and number in (total // 4, total // 2, total * 3 // 4):
            yield from _until_done(growth)
            if number <= total // 2:
                since_s = growth.now_s
                yield from archiving.waiting_for_more()
                growth.leave_out(since_s)
            growth.begin()
        if number % _AT_ONCE == 0 and growth.is_busy:
            yield None
        yield message
    yield from _until_done(growth)


def _until_done(growth: Growth) -> Iterator[None]:
    while growth.is_busy:
        yield None


def answers(lake: DataFrame) -> tuple[str, list[str]]:
    """The answers as text and as parts of the page."""
    left = questions.departures(lake).cache()
    planes = questions.aircraft(left).cache()
    columns = ("tailnum", "departures", "mean_gap_h", "longest_gap_h")
    head = ("aircraft", "departures", "mean hours between", "longest idle, hours")
    busiest = _rows(questions.busiest(planes, 3), columns)
    idle = _rows(questions.longest_idle(planes, 3), columns)
    delays = questions.delays(left).orderBy("carrier", "hour").collect()
    worst = sorted(
        (line for line in delays if line["departures"] >= 100), key=lambda line: -line["mean_delay"]
    )[:5]
    delay_head = ("carrier", "hour", "departures", "mean delay, min", "still there next time, %")
    names = ("carrier", "hour", "departures", "mean_delay", "still_there")
    delay_rows = [tuple(line[name] for name in names) for line in worst]
    blocks = (
        ("Busiest aircraft", text_table(head, busiest)),
        ("Longest idle aircraft", text_table(head, idle)),
        ("Worst delays by carrier and hour (100 departures or more)",
         text_table(delay_head, delay_rows)),
    )  # fmt: skip
    text = "\n\n".join(f"{title}\n{block}" for title, block in blocks)
    parts = [
        heading("Busiest aircraft"),
        table(head, busiest),
        heading("Longest idle aircraft"),
        table(head, idle),
        heading("Mean departure delay by carrier and scheduled hour"),
        _heat(delays, "mean_delay", "mean delay", "minutes"),
        heading("How much of a delay is still there at the aircraft's next departure"),
        paragraph("Share of the delayed minutes, of departures followed by another.", "soft"),
        _heat(delays, "still_there", "still there", "%"),
    ]
    planes.unpersist()
    left.unpersist()
    return text, parts


def _rows(frame: DataFrame, columns: Sequence[str]) -> list[tuple[object, ...]]:
    return [tuple(line[name] for name in columns) for line in frame.collect()]


def _heat(lines: Sequence[Any], name: str, title: str, unit: str) -> str:
    values = {
        (line["carrier"], f"{line['hour']:02d}"): line[name]
        for line in lines
        if line[name] is not None and line["departures"] >= 20
    }
    carriers = sorted({carrier for carrier, _ in values})
    hours = sorted({hour for _, hour in values})
    return heat_map(carriers, hours, values, title, unit, "scheduled hour of departure")


if __name__ == "__main__":
    sys.exit(main())
