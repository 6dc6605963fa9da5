"""The cluster scenario with transactional producers and readers of committed records (KIP-98).

Owns the course of such a run. Most runs have no other clients: they are cheap. Some have those of
``cluster`` beside them. What the clients do: see ``cluster.transactional_writer`` and
``cluster.transactional_readers``; the checks: see ``transaction_checkers``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

from tests.simulation import transaction_checkers
from tests.simulation.clients import SimulatedReader
from tests.simulation.cluster import faults, mover
from tests.simulation.cluster.clients import ClusterTarget
from tests.simulation.cluster.transactional import (
    IDS,
    LONGEST_TIMEOUT_MS,
    PARTITIONS,
    TOPIC,
    Transactional,
)
from tests.simulation.cluster.transactional_readers import (
    CommittedReader,
    Deleted,
    delete_records,
    ends_of,
    position_of,
    read_committed_whole,
    replicas_of,
    start_of,
    until_stable,
    watch_positions,
    watch_stable_offsets,
)
from tests.simulation.cluster.transactional_writer import TransactionalWriter
from tests.simulation.history import History
from tests.simulation.scenarios.cluster import REST_SECONDS, SEGMENTS, ClusterRun
from tests.simulation.scenarios.course import Course
from tests.simulation.scenarios.result import Result
from tests.simulation.transaction_history import Verdict
from tidelog.client.errors import ClientError
from tidelog.model.errors import ErrorCode
from tidelog.model.levels import LATEST
from tidelog.model.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

NOT_OFFERED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
"""What clients get below the level of transactions: stock producers end with it."""

SECONDS, END_SECONDS = 18.0, 22.0
COMPANY_SHARE = 0.15
"""Of the seeds, those with the other clients of a cluster."""

DELETIONS_SHARE = 0.3
"""Of the seeds, those in which records are deleted by DeleteRecords."""

STABLE_SECONDS = LONGEST_TIMEOUT_MS / 1000 + 2.0
"""The last stable offset is at the watermark so long after the last fault: the promise on it."""


def transactions_course(seed: int) -> Course:
    """Return the course of a seed."""
    rng = random.Random(f"{seed}/of transactions")
    return Course(
        seconds=SECONDS,
        end_seconds=END_SECONDS,
        mixed=False,
        # What reads bits that were turned over is in ``audit``, and reads other topics.
        weights={name: share for name, share in faults.ALL.items() if name != "flip_bits"},
        pause=rng.choice(((0.1, 1.5), (0.3, 3.0), (0.5, 4.0))),
        brokers=rng.choice((3, 3, 4)),
        moves=rng.random() < 0.3,
        fewest_replicas=3,
    )


class TransactionsRun(ClusterRun):
    """One run of the scenario."""

    def __init__(
        self, seed: int, course: Course | None = None, enough: Callable[[str], bool] | None = None
    ) -> None:
        super().__init__(seed, course or transactions_course(seed), enough)
        self.with_company = self.world.random("company").random() < COMPANY_SHARE
        if not self.with_company:
            self.group.members.clear()
        own = TOPIC, OFFSETS_TOPIC, TRANSACTIONS_TOPIC
        self.mover.topics = (*own, *mover.TOPICS) if self.with_company else own
        self.disks.compacted.add(TRANSACTIONS_TOPIC)
        self.setting = Transactional(self.world, self.outside)
        self.writers = [TransactionalWriter(self.setting, name) for name in IDS]
        self.committed: list[CommittedReader] = []
        self.control = History()
        """What readers of uncommitted records get."""
        self._transactional_work: list[asyncio.Task[None]] = []
        self._deleting: asyncio.Task[None] | None = None

    def _configs(self) -> dict[str, str]:
        draw = self.world.random("transaction configs")
        return {
            **super()._configs(),
            "transaction.state.log.num.partitions": "2",
            "transaction.state.log.segment.bytes": draw.choice(("4000", "104857600")),
            "transaction.max.timeout.ms": str(LONGEST_TIMEOUT_MS),
        }

    async def _create_topics(self) -> None:
        if self.with_company:
            await super()._create_topics()
        size = self.world.random("segments").choice(("4000", "1000000"))
        configs = {**SEGMENTS, "segment.bytes": size, "min.insync.replicas": "2"}
        await self.admin.create(TOPIC, PARTITIONS, 3, configs)

    # --- clients -------------------------------------------------------------------------------

    def _start_clients(self) -> list[asyncio.Task[None]]:
        background = super()._start_clients() if self.with_company else []
        if not self.with_company:
            self.producing = []
        setting = self.setting
        self.committed = [
            CommittedReader(setting, where, name, of_any=of_any)
            for where in setting.places
            for name, of_any in (("committed", False), ("of any replica", True))
        ]
        uncommitted = [
            SimulatedReader(self.control, setting.random(where.name), where, "uncommitted")
            for where in setting.places
        ]
        work = [each.run() for each in [*self.writers, *self.committed, *uncommitted]]
        work += [watch_stable_offsets(setting), watch_positions(setting)]
        if self.world.random("deletions").random() < DELETIONS_SHARE:
            self._deleting = asyncio.create_task(delete_records(setting, self.admin))
        self._transactional_work = [asyncio.create_task(each) for each in work]
        return background

    # --- the end -------------------------------------------------------------------------------

    async def _recover(self) -> None:
        healed_at = self.setting.now
        watermarks = await self._watermarks()
        await super()._recover()
        left = STABLE_SECONDS - (self.setting.now - healed_at)
        unstable = await until_stable(self.setting, watermarks, left)
        self.found += [
            f"the_stable_offset_follows: not in {STABLE_SECONDS} s after the last fault: {line}"
            for name, line in unstable.items()
        ]

    async def _watermarks(self) -> dict[str, int]:
        """Return the watermark of each partition whose leader answers, as the faults have ended."""
        found = {}
        for where in self.setting.watched:
            try:
                _, found[where.name], _ = await ends_of(where)
            except (ClientError, OSError):
                continue
        return found

    async def _come_to_rest(self) -> None:
        await self._rest_transactions()
        if self.with_company:
            await super()._come_to_rest()
        else:
            await self._until(self.faults.all_in_sync, "full ISRs", REST_SECONDS)
        await self._look_at_the_end()
        self._judge()

    async def _rest_transactions(self) -> None:
        if self._deleting is not None:
            if self._deleting.done():
                self._deleting.result()
            self._deleting.cancel()
        for writer in self.writers:
            writer.finish()
        await self._until(
            lambda: all(writer.done.is_set() for writer in self.writers),
            "transactional producers answered",
            REST_SECONDS,
        )
        self.say("transactional producers are answered")
        for task in self._transactional_work:
            if task.done():
                task.result()

    async def _look_at_the_end(self) -> None:
        """At rest the last stable offset is at the watermark everywhere, and no group waits."""
        setting = self.setting
        watermarks = await self._watermarks()
        unstable = await until_stable(setting, watermarks, STABLE_SECONDS)
        self.found += [
            f"the_stable_offset_follows: at rest {line}" for name, line in unstable.items()
        ]
        for where in setting.places:
            try:
                async with asyncio.timeout(REST_SECONDS):
                    while not await self._read_at_the_end(where):
                        pass
            except TimeoutError:
                line = f"{where.name} is not readable up to its end at each replica"
                self.found.append(f"the_stable_offset_follows: at rest {line}")
        for name in IDS:
            await self._look_at_position(name)
        for task in self._transactional_work:
            task.cancel()

    async def _read_at_the_end(self, where: ClusterTarget) -> bool:
        """Each replica has the same committed records as the leader. Return False if one of them
        starts later: a DeleteRecords that was not answered may have reached it only."""
        finals, hosts = self.setting.history.finals, replicas_of(where)
        starts = self.setting.history.starts
        starts[where.name] = max(await start_of(self.setting, where), starts.get(where.name, 0))
        try:
            whole = finals[where.name] = await read_committed_whole(self.setting, where)
            copies = {host: await read_committed_whole(self.setting, where, host) for host in hosts}
        except Deleted as later:
            if self._deleting is None:
                raise
            starts[where.name] = later.start
            return False
        for host, found in copies.items():
            if found != whole:
                more, less = (
                    sorted(found.keys() - whole.keys()),
                    sorted(whole.keys() - found.keys()),
                )
                name = "aborted_is_never_visible" if more else "committed_stays"
                self.found.append(
                    f"{name}: {host} serves {more[:5]} of {where.name} more than its "
                    f"leader, {less[:5]} less"
                )
        return True

    async def _look_at_position(self, name: str) -> None:
        last = ""
        end = self.setting.now + STABLE_SECONDS
        while self.setting.now < end:
            try:
                position = await position_of(self.setting, name)
            except (ClientError, OSError) as error:
                last = str(error)
                await asyncio.sleep(0.2)
            else:
                self.setting.history.last_positions[name] = position
                return
        self.found.append(f"the_stable_offset_follows: at rest the group of {name}: {last}")

    def _judge(self) -> None:
        self.found += transaction_checkers.violations(self.setting.history, self.verdict.not_clean)
        self.found += [
            f"nothing_is_refused_for_good: the cluster is at level {LATEST.name}: {what}"
            for what in sorted(self.setting.counts)
            if what.endswith(NOT_OFFERED.name)
        ]
        for reader in self.committed:
            if reader.above_stable:
                line = f"a reader got {reader.above_stable[:5]}, above the last stable offset"
                self.found.append(f"aborted_is_never_visible: {line}")

    def _counts(self) -> dict[str, int]:
        history = self.setting.history
        never = {
            sent.value for each in history.transactions if not each.may_count for sent in each.sent
        }
        return {
            **super()._counts(),
            **self.setting.counts,
            **{
                f"transactions {verdict.value}": sum(1 for _ in history.of(verdict))
                for verdict in Verdict
            },
            "committed reads": len(history.seen),
            "aborted reads of the control": sum(x.value in never for x in self.control.reads),
            "stable offsets": len(history.stable),
            "positions": len(history.positions),
            "with company": int(self.with_company),
        }


def run_transactions(seed: int) -> Result:
    """Run the scenario once."""
    return replace(TransactionsRun(seed).run(), scenario="transactions")
