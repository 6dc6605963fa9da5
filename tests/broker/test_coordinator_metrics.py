"""The metrics of coordinators, in the words of Kafka's."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.lone_broker import until
from tests.support.transaction_broker import TransactionBroker
from tidelog.broker.coordinator.coordinator import LoadTimes
from tidelog.broker.coordinator_metrics import of_coordinators
from tidelog.model.errors import ErrorCode as E
from tidelog.protocol import messages

MARKERS = "kafka_coordinator_transaction_transactionmarkerchannelmanager_"
UNKNOWN, REFUSED = f"{MARKERS}unknowndestinationqueuesize", f"{MARKERS}logappendretryqueuesize"


def values(broker: TransactionBroker) -> dict[str, float]:
    return {each.name: each.samples[0].value for each in of_coordinators(broker.broker)}


def test_markers_without_a_leader_and_ends_that_the_log_refuses_are_counted(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        broker = TransactionBroker(tmp_path)
        await broker.start()
        await broker.lead_and_load()
        broker.lead("u")
        broker.broker.transactions.send_with(broker.broker.markers.sender)
        assert values(broker)[UNKNOWN] == values(broker)[REFUSED] == 0
        producer = await broker.init()
        assert await broker.add(producer, ("u", 0)) == [E.NONE]
        gone = messages.UpdateMetadataRequest
        dead = gone.UpdateMetadataPartitionState(partition_index=0, leader=-2)
        state = gone.UpdateMetadataTopicState(topic_name="u", partition_states=[dead])
        broker.broker.metadata.apply(gone(topic_states=[state]), complete=False)
        assert await broker.end(producer) == E.NONE
        await until(lambda: values(broker)[UNKNOWN] == 1)
        await broker.broker.markers.sender.close()
        await broker.stop()

    asyncio.run(main())


def test_the_end_of_a_transaction_that_the_log_refuses_is_counted(tmp_path: Path) -> None:
    async def main() -> None:
        broker = TransactionBroker(tmp_path)
        await broker.start()
        await broker.lead_and_load()
        broker.lead("t")
        producer = await broker.init()
        assert await broker.add(producer, ("t", 0)) == [E.NONE]
        assert await broker.end(producer) == E.NONE
        await until(lambda: broker.markers.sent)
        broker.state_replicas = (1, 2)
        broker.lead_state(epoch=1)
        broker.markers.sent.pop().written()
        await until(lambda: values(broker)[REFUSED] == 1)
        broker.state_replicas = (1,)
        broker.lead_state(epoch=2)
        await until(lambda: values(broker)[REFUSED] == 0)
        assert await broker.state() == "CompleteCommit"
        await broker.stop()

    asyncio.run(main())


def test_loads_are_measured(tmp_path: Path) -> None:
    async def main() -> None:
        broker = TransactionBroker(tmp_path)
        await broker.start()
        name = "kafka_server_transaction_coordinator_metrics_partition_load_time_"
        assert values(broker)[f"{name}max"] == values(broker)[f"{name}avg"] == 0
        await broker.lead_and_load()
        times = broker.ids.load_times
        assert times.count == 1
        times.add(900)
        assert values(broker)[f"{name}max"] == 900
        assert values(broker)[f"{name}avg"] == times.total_ms / 2
        await broker.stop()

    asyncio.run(main())


def test_the_longest_and_the_average_of_loads() -> None:
    times = LoadTimes()
    for ms in (3, 9, 6):
        times.add(ms)
    assert (times.count, times.total_ms, times.longest_ms) == (3, 18, 9)
