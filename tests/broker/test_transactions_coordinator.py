"""The transaction coordinator's shell on real logs: leadership, loads, markers, time-outs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.lone_broker import until
from tests.support.transaction_broker import ID, TransactionBroker, partitions
from tidelog.broker.transactions import transaction_partition
from tidelog.model.errors import ErrorCode as E
from tidelog.model.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tidelog.records.builder import NewRecord, build_batch
from tidelog.runtime import pace
from tidelog.transactions import limits, table
from tidelog.transactions.decision import SendMarkers
from tidelog.transactions.records import TransactionRecord, encode
from tidelog.transactions.state import IdAndEpoch, Transaction, TransactionState

Story = Callable[[TransactionBroker], Awaitable[None]]


def run(folder: Path, story: Story, **config: object) -> None:
    """Run a story with a broker that leads and has loaded ``__transaction_state``."""

    async def main() -> None:
        broker = TransactionBroker(folder, config)
        await broker.start()
        try:
            broker.lead("t", 4)
            await broker.lead_and_load()
            await story(broker)
        finally:
            await broker.stop()

    asyncio.run(main())


def test_a_transaction_from_its_first_request_to_its_markers(tmp_path: Path) -> None:
    async def story(broker: TransactionBroker) -> None:
        producer = await broker.init()
        assert producer == (1000, 0)
        assert await broker.state() == "Empty"
        assert await broker.add(producer, ("t", 0), ("t", 2)) == [E.NONE, E.NONE]
        assert await broker.add_offsets(producer, "g") == E.NONE
        assert await broker.state() == "Ongoing"
        # It is answered when the decision is durable: no marker is written yet.
        assert await broker.end(producer) == E.NONE
        assert await broker.state() == "PrepareCommit"
        await until(lambda: broker.markers.sent)
        (sent,) = broker.markers.sent
        of_group = broker.coordinator.partition_of("g")
        assert of_group is not None
        named = partitions((OFFSETS_TOPIC, of_group), ("t", 0), ("t", 2))
        assert sent.markers == SendMarkers(ID, IdAndEpoch(*producer), True, named)
        assert (sent.state_partition, sent.coordinator_epoch) == (0, 0)
        sent.written()
        assert await broker.state() == "CompleteCommit"
        assert await broker.add(producer, ("t", 1)) == [E.NONE]
        assert await broker.end(producer, committed=False) == E.NONE
        await until(lambda: len(broker.markers.sent) == 2)
        assert not broker.markers.sent[1].markers.committed

    run(tmp_path, story)


def test_markers_follow_the_commit_of_their_decision(tmp_path: Path) -> None:
    async def story(broker: TransactionBroker) -> None:
        broker.state_isr = broker.state_replicas = (1, 2)
        hosted = await led_by_two(broker)
        producer = await committed(hosted, broker.init())
        assert await committed(hosted, broker.add(producer, ("t", 0))) == [E.NONE]
        ending = asyncio.create_task(broker.end(producer))
        end = hosted.end_offset
        await until(lambda: hosted.end_offset > end)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not broker.markers.sent and not ending.done()
        assert await committed(hosted, ending) == E.NONE
        await until(lambda: broker.markers.sent)

    run(tmp_path, story)


async def led_by_two(broker: TransactionBroker) -> Any:
    """Lead with a follower, whose fetches the test makes by ``committed``."""
    hosted = broker.lead_state(epoch=5)
    reloading = asyncio.create_task(broker.ids.reloaded(hosted))
    assert await committed(hosted, reloading) is None
    return hosted


async def committed(hosted: Any, request: Any) -> Any:
    """Wait for a request while the follower fetches what is there."""
    task = asyncio.ensure_future(request)

    def fetched() -> bool:
        hosted.follower_fetched(2, hosted.end_offset)
        return task.done()

    await until(fetched)
    return await task


def test_the_next_producer_fences_and_aborts(tmp_path: Path) -> None:
    async def story(broker: TransactionBroker) -> None:
        first = await broker.init()
        assert await broker.add(first, ("t", 0)) == [E.NONE]
        second = asyncio.create_task(broker.init())
        await until(lambda: broker.markers.sent)
        (sent,) = broker.markers.sent
        # The markers have the epoch that fences; the next producer has one after it.
        assert sent.markers == SendMarkers(ID, IdAndEpoch(1000, 1), False, partitions(("t", 0)))
        assert not second.done()
        sent.written()
        assert await second == (1000, 2)
        for version, code in ((1, E.INVALID_PRODUCER_EPOCH), (2, E.PRODUCER_FENCED)):
            assert await broker.add(first, ("t", 1), version=version) == [code]
            assert await broker.add_offsets(first, "g", version) == code
            assert await broker.end(first, version=version) == code
        for version, code in ((3, E.INVALID_PRODUCER_EPOCH), (4, E.PRODUCER_FENCED)):
            assert (await broker.ask_init(first, version=version)).error_code == code
        # A producer that names its identity goes on (KIP-360).
        assert await broker.init(claimed=(1000, 2)) == (1000, 3)

    run(tmp_path, story)


def test_what_waits_for_markers_waits_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(broker: TransactionBroker) -> None:
        producer = await broker.init()
        await broker.add(producer, ("t", 0))
        await broker.end(producer)
        adding = asyncio.create_task(broker.add(producer, ("t", 1)))
        await until(lambda: broker.markers.sent)
        assert not adding.done()
        broker.markers.sent[0].written()
        assert await adding == [E.NONE]
        await broker.end(producer)
        monkeypatch.setattr(limits, "WAIT_MS", 20)
        assert await broker.add(producer, ("t", 1)) == [E.CONCURRENT_TRANSACTIONS]
        assert (await broker.ask_init()).error_code == E.CONCURRENT_TRANSACTIONS
        assert await broker.end(producer) == E.CONCURRENT_TRANSACTIONS, "the same verdict"
        assert await broker.end(producer, committed=False) == E.INVALID_TXN_STATE

    run(tmp_path, story)


def test_a_transaction_that_passes_its_time_out_is_aborted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidelog.audit")

    async def story(broker: TransactionBroker) -> None:
        producer = await broker.init(timeout_ms=20)
        await broker.add(producer, ("t", 3))
        await until(lambda: broker.markers.sent)
        (line,) = [each for each in caplog.records if each.name == "tidelog.audit"]
        assert line.getMessage().endswith(
            f"{ID}: aborts the transaction of producer 1000, epoch 0, in 1 partition: it "
            "passed its time-out of 20 ms"
        )
        (sent,) = broker.markers.sent
        aborted = SendMarkers(ID, IdAndEpoch(1000, 1), False, partitions(("t", 3)))
        assert sent.markers == aborted
        assert await broker.end(producer) == E.PRODUCER_FENCED
        sent.written()
        assert await broker.state() == "CompleteAbort"
        assert await broker.end(producer) == E.PRODUCER_FENCED

    run(tmp_path, story)


def test_an_id_that_is_not_used_for_long_is_removed(tmp_path: Path) -> None:
    async def story(broker: TransactionBroker) -> None:
        hosted = broker.broker.partitions.get(TRANSACTIONS_TOPIC, 0)
        assert hosted is not None
        await broker.init()
        await until(lambda: broker.table().get(ID) is None)
        assert hosted.end_offset == 2, "an id and its tombstone"
        assert (await broker.describe()).error_code == E.TRANSACTIONAL_ID_NOT_FOUND

    run(tmp_path, story, **{"transactional.id.expiration.ms": 30})


def test_a_new_coordinator_goes_on_with_what_the_log_says(tmp_path: Path) -> None:
    """An open transaction is still open, and a decision is carried out again."""

    async def before(broker: TransactionBroker) -> None:
        producer = await broker.init()
        await broker.add(producer, ("t", 0))
        other = await broker.init(transactional_id="open")
        assert other == (1001, 0)
        await broker.end(producer)

    async def after() -> None:
        broker = TransactionBroker(tmp_path)
        await broker.start()
        try:
            broker.lead("t", 4)
            hosted = broker.lead_state(epoch=3)
            assert (await broker.ask_init()).error_code == E.COORDINATOR_LOAD_IN_PROGRESS
            assert await broker.ids.reloaded(hosted) is None
            await until(lambda: broker.markers.sent)
            (sent,) = broker.markers.sent
            assert (sent.coordinator_epoch, sent.markers.committed) == (3, True)
            assert sent.markers.partitions == partitions(("t", 0))
            ending = asyncio.create_task(broker.end((1000, 0)))
            sent.written()
            assert await ending == E.NONE
            assert await broker.state() == "CompleteCommit"
            assert (await broker.describe("open")).transaction_state == "Empty"
            # A newer leader epoch of the same leadership keeps them, and its markers have it.
            broker.lead_state(epoch=7)
            assert await broker.add((1000, 0), ("t", 1)) == [E.NONE]
            await broker.end((1000, 0))
            await until(lambda: len(broker.markers.sent) == 2)
            assert broker.markers.sent[1].coordinator_epoch == 7
        finally:
            await broker.stop()

    run(tmp_path, before)
    asyncio.run(after())


def test_an_open_transaction_passes_its_time_out_with_the_next_coordinator(tmp_path: Path) -> None:
    async def before(broker: TransactionBroker) -> None:
        producer = await broker.init(timeout_ms=200)
        await broker.add(producer, ("t", 0))

    async def after(broker: TransactionBroker) -> None:
        await until(lambda: broker.markers.sent)
        assert broker.markers.sent[0].markers.producer == IdAndEpoch(1000, 1)

    run(tmp_path, before)
    run(tmp_path, after)


def test_what_the_log_says_is_carried_out_while_transactions_are_offered_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """``__transaction_state`` may be of a time at which they were: an open transaction, a decision
    without an end, and a time-out that passes."""
    caplog.set_level(logging.INFO)

    async def before(broker: TransactionBroker) -> None:
        decided = await broker.init()
        await broker.add(decided, ("t", 0))
        await broker.init(transactional_id="open", timeout_ms=1)
        await broker.end(decided)

    async def after() -> None:
        broker = TransactionBroker(tmp_path)
        await broker.start()
        level = broker.broker.cluster_level
        try:
            level.take("1.5")
            broker.lead("t", 4)
            hosted = broker.lead_state(epoch=3)
            end = hosted.end_offset
            assert await broker.ids.reloaded(hosted) == "this broker does not coordinate them"
            broker.lead_state(epoch=4)
            await nothing_loads(broker)
            assert not broker.markers.sent and hosted.end_offset == end
            # The level comes: what is led is loaded, in the epoch in which it is led.
            level.take("1.6")
            assert await broker.ids.reloaded(hosted) is None
            await until(lambda: broker.markers.sent)
            (sent,) = broker.markers.sent
            assert (sent.coordinator_epoch, sent.markers.committed) == (4, True)
            # It goes: its markers are forgotten, and no table is left.
            level.take("1.5")
            assert broker.markers.stopped == [0]
            await nothing_loads(broker)
            end = hosted.end_offset
            sent.written()
            assert hosted.end_offset == end
            # And comes again, with another leader: this broker loads nothing.
            broker.lead_state(epoch=5, leader=2)
            level.take("1.6")
            await nothing_loads(broker)
            assert len(broker.markers.sent) == 1
        finally:
            await broker.stop()

    async def nothing_loads(broker: TransactionBroker) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        assert not broker.ids.led() and not broker.ids.is_loading

    run(tmp_path, before)
    asyncio.run(after())
    loads = [line for line in caplog.messages if line.startswith("loaded ")]
    assert len(loads) == 2, loads


def test_a_leadership_that_ends_refuses_what_waits_and_forgets_its_markers(tmp_path: Path) -> None:
    async def story(broker: TransactionBroker) -> None:
        broker.session.block_length = 1
        producer = await broker.init()
        await broker.add(producer, ("t", 0))
        await broker.end(producer)
        await until(lambda: broker.markers.sent)
        adding = asyncio.create_task(broker.add(producer, ("t", 1)))
        broker.session.answers.clear()
        other = asyncio.create_task(broker.ask_init(transactional_id="other"))
        await until(lambda: broker.session.asked == 2)
        broker.lead_state(epoch=1, leader=2)
        assert await adding == [E.NOT_COORDINATOR]
        assert (await other).error_code == E.NOT_COORDINATOR
        assert broker.markers.stopped == [0]
        assert await broker.end(producer) == E.NOT_COORDINATOR
        assert (await broker.describe()).error_code == E.NOT_COORDINATOR
        # What the sender has finished late changes nothing at the next coordinator.
        hosted = await broker.lead_and_load(epoch=2)
        end = hosted.end_offset
        broker.markers.sent[0].written()
        broker.session.answers.set()
        await until(lambda: len(broker.markers.sent) == 2)
        assert hosted.end_offset == end and await broker.state() == "PrepareCommit"

    run(tmp_path, story)


def test_a_record_that_the_log_refuses_changes_nothing(tmp_path: Path) -> None:
    async def story(broker: TransactionBroker) -> None:
        producer = await broker.init()
        # A follower is added, and is not in the ISR yet.
        broker.state_replicas = (1, 2)
        hosted = broker.lead_state(epoch=1)
        end = hosted.end_offset
        assert await broker.add(producer, ("t", 0)) == [E.COORDINATOR_NOT_AVAILABLE]
        assert hosted.end_offset == end and await broker.state() == "Empty"
        broker.state_replicas = (1,)
        broker.lead_state(epoch=2)
        assert await broker.add(producer, ("t", 0)) == [E.NONE]

    run(tmp_path, story)


def test_a_record_that_is_committed_late_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gets an error in time, asks again, and waits for the record in flight."""

    async def story(broker: TransactionBroker) -> None:
        broker.state_isr = broker.state_replicas = (1, 2)
        hosted = await led_by_two(broker)
        producer = await committed(hosted, broker.init())
        assert await broker.add(producer, ("t", 0)) == [E.COORDINATOR_NOT_AVAILABLE]
        assert await broker.state() == "Empty"
        end = hosted.end_offset
        again = asyncio.create_task(broker.add(producer, ("t", 0)))
        await until(lambda: broker.table().get(ID).waiting)  # type: ignore[union-attr]
        assert hosted.end_offset == end, "no second record"
        assert await committed(hosted, again) == [E.NONE]
        assert await broker.state() == "Ongoing"

    monkeypatch.setattr(limits, "COMMIT_MS", 30)
    run(tmp_path, story)


def test_markers_that_need_no_partition_are_written_at_once(tmp_path: Path) -> None:
    async def story(broker: TransactionBroker) -> None:
        producer = await broker.init()
        assert await broker.add(producer) == []
        assert await broker.end(producer) == E.NONE
        entry = broker.table().get(ID)
        complete = TransactionState.COMPLETE_COMMIT
        await until(lambda: entry.known.transaction.state is complete)  # type: ignore[union-attr]
        assert not broker.markers.sent

    run(tmp_path, story)


def test_the_record_of_the_end_is_written_again_until_the_log_takes_it(tmp_path: Path) -> None:
    async def story(broker: TransactionBroker) -> None:
        producer = await broker.init()
        await broker.add(producer, ("t", 0))
        await broker.end(producer)
        await until(lambda: broker.markers.sent)
        broker.state_replicas = (1, 2)
        broker.lead_state(epoch=1)
        broker.markers.sent[0].written()
        assert await broker.state() == "PrepareCommit"
        broker.state_replicas = (1,)
        broker.lead_state(epoch=2)
        entry = broker.table().get(ID)
        complete = TransactionState.COMPLETE_COMMIT
        await until(lambda: entry.known.transaction.state is complete)  # type: ignore[union-attr]
        assert len(broker.markers.sent) == 1

    run(tmp_path, story)


def test_markers_that_a_bug_keeps_from_being_sent_are_sent_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(broker: TransactionBroker) -> None:
        send, failures = broker.markers.send, [ZeroDivisionError("planted")]

        def failing(*of: Any) -> None:
            if failures:
                raise failures.pop()
            send(*of)

        monkeypatch.setattr(broker.markers, "send", failing)
        producer = await broker.init()
        await broker.add(producer, ("t", 0))
        assert await broker.end(producer) == E.NONE
        await until(lambda: broker.markers.sent)

    monkeypatch.setattr(limits, "RETRY_MS", 10)
    run(tmp_path, story)
    assert f"the markers of {ID} could not be sent" in caplog.text


# Producer ids ----------------------------------------------------------------------------------


def test_an_id_waits_a_bounded_time_for_a_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(broker: TransactionBroker) -> None:
        broker.session.is_reachable = False
        assert (await broker.ask_init()).error_code == E.COORDINATOR_LOAD_IN_PROGRESS
        broker.session.answers.clear()
        monkeypatch.setattr(limits, "WAIT_MS", 20)
        assert (await broker.ask_init()).error_code == E.COORDINATOR_LOAD_IN_PROGRESS
        assert len(broker.table()) == 0
        broker.session.is_reachable = True
        broker.session.answers.set()
        assert await broker.init() == (1000, 0)

    with caplog.at_level(logging.WARNING):
        run(tmp_path, story)
    lines = [x.getMessage() for x in caplog.records if "no producer id" in x.getMessage()]
    assert lines == [
        f"no producer id for {ID}: planted",
        f"no producer id for {ID}: no answer in time",
    ]


def test_few_requests_wait_for_producer_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(broker: TransactionBroker) -> None:
        broker.session.answers.clear()
        waiting = [
            asyncio.create_task(broker.ask_init(transactional_id=f"id-{number}"))
            for number in range(3)
        ]
        await until(lambda: broker.session.asked)
        refused = await broker.ask_init(transactional_id="one-more")
        assert refused.error_code == E.COORDINATOR_LOAD_IN_PROGRESS
        broker.session.answers.set()
        assert {(await each).error_code for each in waiting} == {E.NONE}

    monkeypatch.setattr(transaction_partition, "MAX_ALLOCATING", 3)
    run(tmp_path, story)


def test_a_bug_in_an_allocation_gives_an_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(broker: TransactionBroker) -> None:
        async def broken(_: object) -> None:
            raise ZeroDivisionError("planted")

        broker.session.request = broken
        assert (await broker.ask_init()).error_code == E.UNKNOWN_SERVER_ERROR

    run(tmp_path, story)
    assert "producer-id failed" in caplog.text


def test_the_end_of_the_broker_answers_what_waits_for_a_producer_id(tmp_path: Path) -> None:
    async def story(broker: TransactionBroker) -> None:
        broker.session.answers.clear()
        waiting = asyncio.create_task(broker.ask_init())
        await until(lambda: broker.session.asked)
        await broker.ids.close()
        assert (await waiting).error_code == E.NOT_COORDINATOR

    run(tmp_path, story)


# Loading ---------------------------------------------------------------------------------------


def test_a_load_of_many_ids_gives_way_and_sends_its_markers_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 100,000 decisions of a dead coordinator no single turn sends all of them."""
    count = 5 * table.SETTLED_AT_ONCE

    async def before(broker: TransactionBroker) -> None:
        for number in range(count):
            await broker.init(transactional_id=f"id-{number}")

    run(tmp_path, before)
    steps, turns = 0, []

    async def after(broker: TransactionBroker) -> None:
        assert len(broker.table()) == count
        assert steps >= count // table.SETTLED_AT_ONCE, "deadlines are set in steps"
        assert broker.table().next_deadline_ms is not None
        own = broker.ids.leading(0).own_part
        monkeypatch.setattr(pace.Turn, "is_over", property(lambda _: bool(turns.append(1)) or True))
        for number in range(3):
            producer = IdAndEpoch(number, 0)
            own.carry_out(SendMarkers(f"id-{number}", producer, True, partitions(("t", 0))))
        assert not broker.markers.sent, "no event may be decided while effects are performed"
        await asyncio.sleep(0)
        first = len(broker.markers.sent)
        await until(lambda: len(broker.markers.sent) == 3)
        assert first < 3

    settle = table.TransactionTable.settle

    def counted(self: table.TransactionTable, now_ms: int) -> Any:
        nonlocal steps
        for said in settle(self, now_ms):
            steps += 1
            yield said

    monkeypatch.setattr(table.TransactionTable, "settle", counted)
    run(tmp_path, after)


def test_a_load_decodes_the_newest_record_of_each_id_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log of a million records has the states of a few ids, and loads in seconds."""
    ids = [f"id-{number}" for number in range(3)]

    async def before(broker: TransactionBroker) -> None:
        for name in ids * 20:
            await broker.init(transactional_id=name)

    run(tmp_path, before)
    decoded: list[Any] = []
    decode = table.decode

    def counted(*of: Any) -> Any:
        decoded.append(decode(*of))
        return decoded[-1]

    async def after(broker: TransactionBroker) -> None:
        assert sorted(each.transactional_id for each in decoded) == ids
        for name in ids:
            assert (await broker.describe(name)).producer_epoch == 19

    monkeypatch.setattr(table, "decode", counted)
    run(tmp_path, after)


def test_a_newest_state_that_cannot_be_read_is_never_replaced_by_an_older_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key, _ = encode(TransactionRecord(ID, None))

    async def main() -> None:
        broker = TransactionBroker(tmp_path)
        await broker.start()
        try:
            hosted = await broker.lead_and_load()
            producer = await broker.init()
            now_ms = broker.broker.clock.wall_ms()
            hosted.append(build_batch([NewRecord(now_ms, key, b"\0\x63")]), now_ms)
            hosted = broker.lead_state(epoch=1, leader=2)
            hosted = broker.lead_state(epoch=2)
            assert await broker.ids.reloaded(hosted) == "not loaded: COORDINATOR_NOT_AVAILABLE"
            assert (await broker.describe()).error_code == E.COORDINATOR_NOT_AVAILABLE
            # A later state that can be read replaces it.
            state = Transaction(*producer, 60_000, TransactionState.EMPTY, updated_ms=now_ms)
            later = encode(TransactionRecord(ID, state))
            hosted.append(build_batch([NewRecord(now_ms, *later)]), now_ms)
            assert await broker.ids.reloaded(hosted) is None
            assert await broker.state() == "Empty"
        finally:
            await broker.stop()

    asyncio.run(main())
    assert "value version 99; upgrade this broker or restore the replica" in caplog.text
