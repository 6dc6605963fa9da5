"""What an unclean election leaves to a broker: notes of what is cut, reports, handlings."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.isr_grants import altered
from tests.support.lone_broker import LoneBroker, until
from tidelog.broker.data_loss import handling, loss_notes, loss_reports
from tidelog.broker.data_loss.handling import PartitionKind, kind_of
from tidelog.broker.data_loss.loss_notes import FILE, LossNote, LossNotes, note_of
from tidelog.broker.partitions.partition import HostedPartition, StorageFailed
from tidelog.client.errors import ConnectionLost
from tidelog.model.errors import ErrorCode as E
from tidelog.model.topics import TopicPartition
from tidelog.model.work import finish
from tidelog.protocol import messages
from tidelog.protocol.messages import FetchResponse
from tidelog.protocol.primitives import NO_UUID
from tidelog.records.builder import NewRecord, build_batch
from tidelog.storage.log.results import Appended
from tidelog.storage.log.watermark_note import NOTHING

NOW_MS = 1_000


class Session:
    """A controller that notes its requests and responds as configured (then NONE)."""

    broker_epoch = 7

    def __init__(self, answers: Iterable[int | Exception] = ()) -> None:
        self.answers = list(answers)
        self.reports: list[tuple[int, int, tuple[int, ...]]] = []
        self.handled: list[tuple[str, int]] = []
        self.asked = 0

    async def request(self, request: Any) -> Any:
        self.asked += 1
        answer = self.answers.pop(0) if self.answers else 0
        if isinstance(answer, Exception):
            raise answer
        if isinstance(request, messages.AlterIsrRequest):
            return self._alter_isr(request, answer)
        if not answer:
            assert request.broker_epoch == self.broker_epoch
            self.reports += [
                (x.from_offset, x.to_offset, tuple(x.leader_epochs)) for x in request.truncations
            ]
        return messages.ReportTruncationResponse(error_code=answer)

    def _alter_isr(self, request: Any, code: int) -> Any:
        if not code:
            self.handled += [
                (topic.topic_name, part.leader_epoch)
                for topic in request.topics
                for part in topic.partitions
                if part.unclean_handled
            ]
        return altered(request, code, newer=code in (E.NONE, E.INVALID_UPDATE_VERSION))


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


@asynccontextmanager
async def broker(folder: Path, session: Session | None = None) -> AsyncIterator[LoneBroker]:
    """A broker that talks to ``session``; its tasks run."""
    lone = LoneBroker(folder)
    await lone.start()
    lone.session = session or Session()
    for part in (lone.broker.loss_reports, lone.broker.data_loss, lone.broker.isr_changes):
        part.start()
    try:
        yield lone
    finally:
        for part in (lone.broker.data_loss, lone.broker.loss_reports, lone.broker.isr_changes):
            await part.stop()
        await lone.stop()


def write(hosted: HostedPartition, count: int) -> None:
    for _ in range(count):
        hosted.append(build_batch([NewRecord(NOW_MS, None, b"x")]), NOW_MS)


def former_leader(lone: LoneBroker) -> HostedPartition:
    """Offsets 0 to 3 of epoch 1 and 4 to 9 of epoch 3, all committed; 2 leads in epoch 5 now."""
    hosted = lone.lead("t", epoch=1)
    write(hosted, 4)
    hosted = lone.lead("t", epoch=3, isr_version=1)
    write(hosted, 6)
    assert hosted.high_watermark == 10
    return lone.lead("t", epoch=5, leader=2, isr=(2,), replicas=(1, 2), isr_version=2)


def parting(epoch: int, end: int) -> Any:
    part = FetchResponse.PartitionData(0, 0, 8, 8, 0)
    part.diverging_epoch = FetchResponse.EpochEndOffset(epoch, end)
    return part


def cut(lone: LoneBroker, hosted: HostedPartition, epoch: int, end: int) -> str | None:
    from tidelog.broker.following.follower_log import take_in

    return finish(take_in(hosted, parting(epoch, end), NOW_MS, lone.broker.loss_reports))


def test_what_is_cut_below_the_watermark_is_reported_until_it_is_answered(tmp_path: Path) -> None:
    async def main() -> None:
        session = Session([ConnectionLost("planted"), int(E.STALE_BROKER_EPOCH)])
        async with broker(tmp_path, session) as lone:
            hosted = former_leader(lone)
            assert cut(lone, hosted, 1, 2) is None
            assert (hosted.end_offset, hosted.high_watermark) == (2, 2)
            await until(lambda: session.reports)
            assert session.reports == [(2, 10, (1, 3))]
            await until(lambda: not (tmp_path / FILE).read_bytes())
            assert session.asked == 3
            assert lone.broker.loss_reports.lost_offsets == 8

    run(main())


def test_what_is_cut_above_the_watermark_is_nobodys_loss(tmp_path: Path) -> None:
    async def main() -> None:
        session = Session()
        async with broker(tmp_path, session) as lone:
            hosted = former_leader(lone)
            hosted.log.high_watermark = 4
            assert cut(lone, hosted, 1, 4) is None
            assert hosted.end_offset == 4
            assert not (tmp_path / FILE).exists()
        assert session.reports == []

    run(main())


def test_a_cut_in_several_rounds_is_reported_as_a_whole(tmp_path: Path) -> None:
    async def main() -> None:
        session = Session()
        async with broker(tmp_path, session) as lone:
            hosted = former_leader(lone)
            # The leader knows epoch 2, which is unknown here: first all of epoch 3 goes.
            assert cut(lone, hosted, 2, 9) is None
            assert hosted.end_offset == 4
            assert cut(lone, hosted, 1, 1) is None
            await until(lambda: len(session.reports) == 2)
            assert sorted(session.reports) == [(1, 4, (1,)), (4, 10, (3,))]

    run(main())


def crash(lone: LoneBroker) -> None:
    """End a broker as kill -9 does: nothing is closed, nothing is written."""
    for directory in lone.broker.directories:
        directory._lock.close()


def test_a_kill_between_note_cut_and_report_loses_no_report(tmp_path: Path) -> None:
    async def main() -> None:
        # Killed between note and cut: the records are still there, so nothing is lost yet.
        lone = LoneBroker(tmp_path)
        await lone.start()
        hosted = former_leader(lone)
        finish(lone.broker.directories[0].checkpoint()).run()  # type: ignore[union-attr]
        assert finish(lone.broker.loss_reports.before_cut(hosted, 2, 10)) is None
        crash(lone)
        session = Session()
        second = LoneBroker(tmp_path)
        await second.start()
        second.session = session
        notes = LossNotes(second.broker.partitions)
        assert len(notes) == 1
        assert notes.due() == []
        # Killed between cut and report.
        hosted = second.lead("t", epoch=5, leader=2, isr=(2,), replicas=(1, 2), isr_version=2)
        assert hosted.high_watermark == 10
        assert cut(second, hosted, 1, 2) is None
        crash(second)
        async with broker(tmp_path, session):
            await until(lambda: session.reports)
            assert session.reports == [(2, 10, (1, 3))]
        # Answered: the next life has nothing to tell.
        async with broker(tmp_path, session):
            assert not (tmp_path / FILE).read_bytes()
        assert len(session.reports) == 1

    run(main())


def test_records_that_were_to_be_cut_and_lead_again_are_not_lost(tmp_path: Path) -> None:
    async def main() -> None:
        session = Session()
        async with broker(tmp_path, session) as lone:
            hosted = former_leader(lone)
            finish(lone.broker.loss_reports.before_cut(hosted, 2, 10))
            assert (tmp_path / FILE).read_bytes()
            # The unclean leader is gone for good: this one is elected again, with all its records.
            lone.lead("t", epoch=6, isr_version=3)
            await until(lambda: not (tmp_path / FILE).read_bytes())
        assert session.reports == []

    run(main())


def test_new_records_at_the_same_offsets_are_not_the_old_ones(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as lone:
            hosted = former_leader(lone)
            loss = note_of(hosted, 2, 10)
            assert loss.epochs == (1, 3)
            assert not loss_notes.has_happened(loss, hosted.log)
            finish(hosted.log.truncation(2, NOW_MS))
            assert loss_notes.has_happened(loss, hosted.log)
            hosted = lone.lead("t", epoch=6, isr_version=3)
            write(hosted, 20)
            assert loss_notes.has_happened(loss, hosted.log)

    run(main())


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "no space left")


def broken(*_: object) -> None:
    raise OSError(errno.EIO, "planted")


def test_nothing_is_cut_that_could_not_be_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        session = Session()
        async with broker(tmp_path, session) as lone:
            hosted = former_leader(lone)
            with monkeypatch.context() as patched:
                patched.setattr(lone.seams.disk, "replace", full)
                setback = cut(lone, hosted, 1, 2)
                assert setback is not None
                assert "no space left" in setback
            assert hosted.end_offset == 10
            assert lone.broker.directories[0].failed is None
            # There is room again.
            assert cut(lone, hosted, 1, 2) is None
            await until(lambda: session.reports == [(2, 10, (1, 3))])
            hosted = former_leader_again(lone, hosted)
            monkeypatch.setattr(lone.seams.disk, "replace", broken)
            assert cut(lone, hosted, 5, 3) is not None
            # Promise 25: a failed write is final for its directory.
            assert lone.broker.directories[0].failed is not None

    run(main())


def former_leader_again(lone: LoneBroker, hosted: HostedPartition) -> HostedPartition:
    hosted = lone.lead("t", epoch=6, isr_version=3)
    write(hosted, 3)
    return lone.lead("t", epoch=7, leader=2, isr=(2,), replicas=(1, 2), isr_version=4)


def test_a_damaged_note_is_named_and_the_others_are_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with broker(tmp_path) as lone:
            hosted = former_leader(lone)
            loss = replace(note_of(hosted, 2, 10), key=hosted.key)
            notes = LossNotes(lone.broker.partitions)
            assert finish(notes.adding([(hosted, loss)])) is None
            content = (tmp_path / FILE).read_bytes()
            (tmp_path / FILE).write_bytes(content.replace(b'"first": 2', b'"first": 3') + content)
            again = LossNotes(lone.broker.partitions)
            assert len(again) == 1
            assert "damaged note" in caplog.text

    run(main())


def test_notes_of_one_replica_are_limited(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as lone:
            hosted = former_leader(lone)
            notes = LossNotes(lone.broker.partitions)
            for offset in range(2 * loss_notes.KEPT_RANGES):
                loss = LossNote(hosted.key, hosted.topic_id, 2 * offset, 2 * offset + 1, (offset,))
                assert finish(notes.adding([(hosted, loss)])) is None
            assert len(notes) == loss_notes.KEPT_RANGES
            assert notes.due()[-1].end == 4 * loss_notes.KEPT_RANGES - 1

    run(main())


def test_many_notes_cost_one_look_at_what_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unclean leader of thousands of partitions notes them all at once."""
    checked = 0
    bounded = loss_notes._bounded

    def counting(losses: Sequence[LossNote]) -> list[LossNote]:
        nonlocal checked
        checked += len(losses)
        return bounded(losses)

    monkeypatch.setattr(loss_notes, "_bounded", counting)

    async def main() -> None:
        async with broker(tmp_path) as lone:
            hosted = former_leader(lone)
            notes = LossNotes(lone.broker.partitions)
            old = [
                (hosted, LossNote(TopicPartition("t", index), hosted.topic_id, 2, 10, (3,)))
                for index in range(3)
            ]
            assert finish(notes.adding(old)) is None
            new = [
                (hosted, LossNote(TopicPartition("u", index), hosted.topic_id, 2, 10, (3,)))
                for index in range(500)
            ]
            assert finish(notes.adding(new)) is None
            assert checked == 3 + 503
            assert len(LossNotes(lone.broker.partitions)) == 503, "all are on disk"

    run(main())


# Handlings ---------------------------------------------------------------------------------------


def lead_uncleanly(lone: LoneBroker, topic: str = "t", **changes: Any) -> HostedPartition:
    """Lead in epoch 4 with ten records of epoch 3, after an unclean election."""
    hosted = lone.lead(topic, epoch=3)
    write(hosted, 10)
    fields = {"is_unclean_leader": True, "has_debt": True, **changes}
    state = replace(hosted.state, leader_epoch=4, isr_version=1, **fields)
    lone.broker.partitions.apply(hosted, state)
    return hosted


def test_an_unclean_leader_tells_where_its_log_ends_and_clears_its_flag(tmp_path: Path) -> None:
    async def main() -> None:
        session = Session()
        async with broker(tmp_path, session) as lone:
            hosted = lead_uncleanly(lone)
            write(hosted, 5)
            await until(lambda: session.handled)
            assert session.reports == [(10, 10, (3,))]
            assert session.handled == [("t", 4)]
            await until(lambda: not len(lone.broker.data_loss))
            assert not hosted.state.is_unclean_leader
            assert not hosted.state.has_debt
            assert hosted.isr_version == 2
        assert session.handled == [("t", 4)]

    run(main())


def test_what_a_power_loss_took_from_the_unclean_leader_is_reported(tmp_path: Path) -> None:
    """The watermark on disk was higher than the log is now; others may have had no replica."""

    async def main() -> None:
        session = Session()
        async with broker(tmp_path, session) as lone:
            hosted = lone.lead("t", epoch=3)
            write(hosted, 10)
            hosted.log.watermark_note.known = 14
            flagged = replace(hosted.state, leader_epoch=4, isr_version=1, is_unclean_leader=True)
            lone.broker.partitions.apply(hosted, flagged)
            write(hosted, 10)
            await until(lambda: session.handled)
            assert session.reports == [(10, 10, (3,)), (10, 14, (3,))]
            assert hosted.log.watermark_note.known == NOTHING, "it would be reported twice"

    run(main())


def test_what_a_power_loss_took_from_a_follower_goes_with_what_it_cuts(tmp_path: Path) -> None:
    """It knew that 20 records were committed, has 10 of them left, and follows one that has 2."""

    async def main() -> None:
        session = Session()
        async with broker(tmp_path, session) as lone:
            hosted = former_leader(lone)
            hosted.log.watermark_note.known = 20
            assert cut(lone, hosted, 1, 2) is None
            await until(lambda: session.reports)
            assert session.reports == [(2, 20, (1, 3))]
            assert lone.broker.loss_reports.lost_offsets == 18
            # Once: the next cut is of what this leader had.
            write_as_follower(hosted, 3)
            hosted.log.high_watermark = 3
            assert cut(lone, hosted, 5, 2) is None
            await until(lambda: len(session.reports) == 2)
            assert session.reports[1] == (2, 3, (5,))

    run(main())


def test_what_a_power_loss_took_from_a_follower_and_its_leader_has_is_no_loss(
    tmp_path: Path,
) -> None:
    """It is fetched again, and the note of it goes when the watermark has passed it."""

    async def main() -> None:
        session = Session()
        async with broker(tmp_path, session) as lone:
            hosted = former_leader(lone)
            hosted.log.watermark_note.known = 12
            write_as_follower(hosted, 5)
            hosted.replicated(0, 15)
            assert hosted.high_watermark == 15
            assert not session.reports and not lone.broker.loss_reports.lost_offsets
            assert not len(lone.broker.loss_reports._notes)
            # What is cut later is counted from there.
            assert cut(lone, hosted, 3, 8) is None
            await until(lambda: session.reports)
            assert session.reports == [(8, 15, (3, 5))]

    run(main())


def write_as_follower(hosted: HostedPartition, count: int) -> None:
    for _ in range(count):
        records = build_batch(
            [NewRecord(NOW_MS, None, b"x")], base_offset=hosted.end_offset, leader_epoch=5
        )
        assert isinstance(hosted.log.append_as_follower(records, NOW_MS), Appended)


@pytest.mark.parametrize("is_still_flagged", [True, False])
def test_an_unclean_leader_that_keeps_leading_before_its_report_reports_where_its_log_ended(
    tmp_path: Path, is_still_flagged: bool
) -> None:
    """Not where the newer epoch begins: by then the log has what it has taken since."""

    async def main() -> None:
        session = Session()
        async with broker(tmp_path, session) as lone:
            hosted = lone.lead("t", epoch=3)
            write(hosted, 10)
            hosted.log.watermark_note.known = 14
            state = replace(hosted.state, leader_epoch=4, isr_version=1, has_debt=True)
            lone.broker.partitions.apply(hosted, replace(state, is_unclean_leader=True))
            write(hosted, 10)
            newer = replace(state, leader_epoch=5, is_unclean_leader=is_still_flagged)
            lone.broker.partitions.apply(hosted, newer)
            await until(lambda: session.handled)
            assert session.reports == [(10, 10, (3,)), (10, 14, (3,))]
            assert session.handled == [("t", 5)]

    run(main())


def test_a_deleted_partition_owes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        session = Session([int(E.NOT_CONTROLLER)] * 3)
        async with broker(tmp_path, session) as lone:
            lead_uncleanly(lone)
            assert len(lone.broker.data_loss) == 1
            await until(lambda: session.asked)
            lone.broker.partitions.stop("t", 0, delete=True)
            assert len(lone.broker.data_loss) == 0
            await until(lambda: session.reports)
        assert session.handled == []

    run(main())


@pytest.mark.parametrize("is_stale", [False, True])
def test_a_loss_without_a_topic_id_is_not_charged_to_the_next_topic_of_the_name(
    tmp_path: Path, is_stale: bool
) -> None:
    """Below level 1.4 a replica has no id; the topic is deleted, created again, and gets one."""

    async def main() -> None:
        session = Session()
        async with broker(tmp_path, session) as lone:
            partitions = lone.broker.partitions
            state = replace(lone.lead("other").state, topic_id=NO_UUID, leader_epoch=3)
            nameless = partitions.create("t", 0, state)
            partitions.apply(nameless, state)
            write(nameless, 4)
            assert finish(lone.broker.loss_reports.before_cut(nameless, 1, 4)) is None
            if is_stale:
                partitions.quarantine("t", 0, "a test")
            else:
                partitions.stop("t", 0, delete=True)
            state = replace(state, topic_id=UUID(int=5), is_unclean_leader=True, has_debt=True)
            partitions.apply(partitions.create("t", 0, state), state)
            await until(lambda: session.handled)
            assert session.reports == [(0, 0, (-1,))]

    run(main())


def test_a_failed_directory_takes_no_topic_id(tmp_path: Path) -> None:
    """Promise 25: the level goes up, and a directory has seen a failed fsync."""

    async def main() -> None:
        async with broker(tmp_path) as lone:
            partitions = lone.broker.partitions
            state = replace(lone.lead("other").state, topic_id=NO_UUID)
            nameless = partitions.create("t", 0, state)
            partitions.directory_of(nameless).resources.fail("a test")
            with pytest.raises(StorageFailed, match="cannot take its topic id"):
                partitions.adopt_identity("t", 0, UUID(int=5), -1)
            assert not (tmp_path / "t-0" / "partition.metadata").exists()

    run(main())


def test_a_leader_in_sync_works_off_the_debt_that_it_inherited(tmp_path: Path) -> None:
    async def main() -> None:
        session = Session()
        async with broker(tmp_path, session) as lone:
            hosted = lead_uncleanly(lone, is_unclean_leader=False)
            await until(lambda: session.handled == [("t", 4)])
            await until(lambda: not hosted.state.has_debt)
        assert session.reports == []

    run(main())


@pytest.mark.parametrize(
    "answers",
    [
        # ReportTruncation is lost, refused, then answered; AlterIsr is lost, refused, answered.
        [ConnectionLost("x"), int(E.NOT_CONTROLLER), 0, ConnectionLost("x"), 0],
        [0, int(E.INELIGIBLE_REPLICA), int(E.INVALID_UPDATE_VERSION), 0],
    ],
)
def test_the_handling_gets_through_in_the_end(
    tmp_path: Path, answers: list[int | Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.broker.control_plane.isr_changes.REFUSED_MS", 20)
    monkeypatch.setattr(loss_reports, "RETRY_MS", 5)

    async def main() -> None:
        session = Session(answers)
        async with broker(tmp_path, session) as lone:
            hosted = lead_uncleanly(lone)
            await until(lambda: not hosted.state.has_debt)
        assert session.handled == [("t", 4)]

    run(main())


def test_a_routine_that_fails_leaves_the_flag_and_is_tried_again_ever_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(handling, "RETRY_MS", 1)
    outcomes: list[str | Exception | None] = ["not yet", KeyError("planted"), "nor now", None]

    class Coordinator:
        async def reloaded(self, _: HostedPartition) -> str | None:
            outcome = outcomes.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

    async def main() -> None:
        session = Session()
        async with broker(tmp_path, session) as lone:
            lone.broker.coordinator.reloaded = Coordinator().reloaded  # type: ignore[method-assign]
            hosted = lead_uncleanly(lone, "__consumer_offsets")
            ordinary = lead_uncleanly(lone)
            # Others are not held up.
            await until(lambda: not ordinary.state.has_debt)
            await until(lambda: len(outcomes) < 3)
            assert hosted.state.is_unclean_leader
            await until(lambda: not hosted.state.is_unclean_leader)
            assert outcomes == []
        assert set(session.handled) == {("t", 4), ("__consumer_offsets", 4)}

    run(main())
    assert "reload the groups: not yet (1)" in caplog.text


def test_groups_that_never_load_hold_up_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(handling, "LONGEST_ROUTINE_S", 1.0)

    class Coordinator:
        async def reloaded(self, hosted: HostedPartition) -> str | None:
            if hosted.partition == 0:
                await asyncio.get_running_loop().create_future()
            return None

    async def main() -> None:
        session = Session()
        async with broker(tmp_path, session) as lone:
            lone.broker.coordinator.reloaded = Coordinator().reloaded  # type: ignore[method-assign]
            stuck = lead_uncleanly(lone, "__consumer_offsets")
            other = lone.broker.partitions.create("__consumer_offsets", 1, stuck.state)
            lone.broker.partitions.apply(other, stuck.state)
            await until(lambda: not other.state.is_unclean_leader)
            assert stuck.state.is_unclean_leader
        assert session.handled == [("__consumer_offsets", 4)]

    run(main())
    assert "__consumer_offsets-0: data-loss handling, reload the groups: still" in caplog.text
    assert "__consumer_offsets-1: data-loss handling" not in caplog.text, "finished at once"


def test_a_new_epoch_starts_it_again_and_a_lost_leadership_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_reports, "RETRY_MS", 5)

    async def main() -> None:
        session = Session([int(E.NOT_CONTROLLER)] * 4)
        async with broker(tmp_path, session) as lone:
            hosted = lead_uncleanly(lone)
            apply = lone.broker.partitions.apply
            apply(hosted, replace(hosted.state, leader=2, leader_epoch=5, isr_version=2))
            assert not len(lone.broker.data_loss)
            apply(
                hosted,
                replace(
                    hosted.state, leader=1, leader_epoch=6, isr_version=3, is_unclean_leader=False
                ),
            )
            await until(lambda: not hosted.state.has_debt)
        assert session.handled == [("t", 6)]

    run(main())


def test_an_ordinary_change_of_the_isr_clears_nothing(tmp_path: Path) -> None:
    asked: list[bool] = []

    class Watching(Session):
        def _alter_isr(self, request: Any, code: int) -> Any:
            asked.extend(p.unclean_handled for t in request.topics for p in t.partitions)
            return super()._alter_isr(request, code)

    async def main() -> None:
        async with broker(tmp_path, Watching()) as lone:
            hosted = lone.lead("t", epoch=3, replicas=(1, 2))
            hosted.follower_fetched(2, 0, 9, lone.broker.clock.monotonic_ms())
            lone.broker.isr_changes.fetched(hosted, 2)
            await until(lambda: hosted.isr == (1, 2))
        assert asked == [False]

    run(main())


@pytest.mark.parametrize(
    ("topic", "kind"),
    [
        ("t", PartitionKind.ORDINARY),
        ("__consumer_offsets", PartitionKind.GROUPS),
        ("__transaction_state", PartitionKind.TRANSACTIONS),
    ],
)
def test_the_kinds(topic: str, kind: PartitionKind) -> None:
    assert kind_of(topic) is kind


def test_every_kind_records_what_was_lost() -> None:
    names = {kind: [name for name, _ in handling.ROUTINES[kind]] for kind in PartitionKind}
    assert {first for first, *_ in names.values()} == {"record what was lost"}
    assert names[PartitionKind.GROUPS][1:] == ["reload the groups"]
    assert names[PartitionKind.TRANSACTIONS][1:] == ["settle the transactions"]
