"""Brokers without a controller on one machine of a simulated world, and copies between them.

Owns what a test of copies sets: leaders, followers and configurations.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path

from tests.simulation.kernel import Machine
from tests.support.lone_broker import LoneBroker
from tidelog.broker.handlers import describe_log_dirs
from tidelog.broker.metadata.configurations import EntityType
from tidelog.broker.partitions.partition import HostedPartition, LeaderAndIsrState
from tidelog.model.work import finish
from tidelog.network.router import Handler, Router
from tidelog.protocol import messages
from tidelog.records.builder import NewRecord, build_batch

BATCH_BYTES = 5_000
TOPIC_ID = uuid.uuid5(uuid.NAMESPACE_OID, "t")


class CopyingBroker(LoneBroker):
    """A process on the machine of the world, that knows all others."""

    def __init__(self, machine: Machine, node_id: int) -> None:
        self.node_id = node_id
        self.process = machine.process(f"broker-{node_id}")
        configs = {"node.id": node_id, "replica.fetch.max.bytes": 20_000}
        super().__init__(Path(f"/data/{node_id}"), configs, self.process.seams)

    def router(self, extra: Iterable[Handler] = ()) -> Router:
        return super().router([describe_log_dirs.HANDLER, *extra])

    def knows(self, others: list[CopyingBroker]) -> None:
        request = messages.UpdateMetadataRequest
        live = [
            request.UpdateMetadataBroker(
                id=each.node_id,
                endpoints=[
                    request.UpdateMetadataEndpoint(
                        port=each.port, host=each.process.host, listener="PLAINTEXT"
                    )
                ],
            )
            for each in others
        ]
        self.broker.metadata.apply(request(controller_id=1, live_brokers=live), complete=False)

    def applies(self, index: int, state: LeaderAndIsrState) -> HostedPartition:
        partitions = self.broker.partitions
        hosted = partitions.create("t", index, state)
        partitions.apply(hosted, state)
        return hosted

    def configure(self, kind: EntityType, name: str, values: dict[str, str]) -> None:
        finish(self.broker.topic_configs.apply([(kind, name, values)], complete=False))


def state_of(source: int, replica: int, *, in_sync: bool, target: bool) -> LeaderAndIsrState:
    return LeaderAndIsrState(
        topic_id=TOPIC_ID,
        partition_epoch=0,
        leader=source,
        leader_epoch=1,
        isr=(source, replica) if in_sync else (source,),
        isr_version=1,
        replicas=(source,) if target else (source, replica),
        targets=(replica,) if target else (),
    )


def append(hosted: HostedPartition, size: int, now_ms: int) -> None:
    for _ in range(size // BATCH_BYTES):
        hosted.append(build_batch([NewRecord(now_ms, None, bytes(BATCH_BYTES))]), now_ms)
