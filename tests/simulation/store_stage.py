"""One controller on a store with planned failures, and the brokers that it commands.

Owns what must hold whatever failed: no request says what is not durable, and in the end the
controller's state is what a restart would load. What is done on the stage is ``store_kinds``'.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import Any

from tests.simulation.striking_store import Strikes, StrikingStore
from tests.simulation.struck_stores import Place
from tests.support.controller_process import configs, topic
from tests.support.lone_broker import until
from tests.support.lone_controller import LoneController
from tests.support.reporting_brokers import ReportingBroker
from tidelog.client.errors import ClientError
from tidelog.controller.decisions.cluster import _DRAFTED, ClusterState
from tidelog.controller.decisions.nodes import load
from tidelog.metadata import layout
from tidelog.metadata.records import PartitionState, TopicNode
from tidelog.metadata.store import Create, Operation, Set
from tidelog.model.configs.resolve import BrokerLayers
from tidelog.protocol import messages

TIMES = {"broker.session.timeout.ms": "6000", "broker.silence.suspect.ms": "4000"}
BEAT_S = 0.5
HEARD = b'{"version":1,"config":{"retention.ms":"7777"}}'
HEARD_WITHIN_S = 3.0

STORED = tuple(_DRAFTED[: _DRAFTED.index("confirmed")])
"""What a cluster has of the nodes."""


class Attentive(ReportingBroker):
    """A broker that holds each order against what is durable when it comes."""

    def __init__(self, node_id: int, place: Place, *, marks_count: bool) -> None:
        super().__init__(node_id)
        self.place = place
        self.marks_count = marks_count
        self.hosted: dict[tuple[str, int], uuid.UUID] = {}
        self.wrong: list[str] = []

    async def _handle(self, context: Any, request: Any, more: Any) -> Any:
        if isinstance(request, messages.LeaderAndIsrRequest):
            self._check_orders(request)
        elif isinstance(request, messages.UpdateMetadataRequest):
            self._check_metadata(request)
        return await super()._handle(context, request, more)

    def _stored(self, path: str) -> tuple[Any, int]:
        kept = self.place.node(path)
        return (None, -1) if kept is None else (layout.decode(path, kept.data), kept.version)

    def _check_orders(self, request: Any) -> None:
        named: dict[tuple[str, int], uuid.UUID] = {}
        for sent in request.topic_states:
            for state in sent.partition_states:
                where = (sent.topic_name, state.partition_index)
                named[where] = sent.topic_id
                stored, version = self._stored(layout.state(*where))
                if not isinstance(stored, PartitionState):
                    continue
                newest = (stored.leader_epoch, version)
                if (state.leader_epoch, state.isr_version) > newest:
                    self.wrong.append(f"{where} was sent as {state}, durable is {stored} {version}")
        if request.type == 2:
            for where, topic_id in self.hosted.items():
                if where not in named and self._is_assigned(where, topic_id):
                    self.wrong.append(f"a FULL makes {where} stale, which is assigned")
            self.hosted = {}
        self.hosted.update(named)

    def _is_assigned(self, where: tuple[str, int], topic_id: uuid.UUID) -> bool:
        node = self._topic(where[0], topic_id)
        return node is not None and self.node_id in node.partitions.get(where[1], [])

    def _topic(self, name: str, topic_id: uuid.UUID) -> TopicNode | None:
        """Return a topic that is there; one that is marked is being deleted, if marks count."""
        node, _ = self._stored(layout.topic(name))
        mark = layout.deletion_mark(name)
        is_marked = self.marks_count and self.place.node(mark) is not None
        is_it = isinstance(node, TopicNode) and node.topic_id == layout.id_text(topic_id)
        return node if is_it and not is_marked else None

    def _check_metadata(self, request: Any) -> None:
        for sent in request.topic_states:
            node = self._topic(sent.topic_name, sent.topic_id)
            # Partitions that a topic has no longer are sent as deleted by themselves.
            assigned = {} if node is None else node.partitions
            gone = [x.partition_index for x in sent.partition_states if x.leader == -2]
            if any(index in assigned for index in gone):
                self.wrong.append(f"{sent.topic_name} was sent as deleted, and is not")


class Stage:
    """One controller, its store, and the brokers 1 and 2 with the topics t and u."""

    def __init__(self, seams: Any, place: Place, strikes: Strikes, texts: dict[str, str]) -> None:
        self.place = place
        self.strikes = strikes
        self.seams = seams
        self.texts = {**TIMES, **texts}
        self.brokers: dict[int, Attentive] = {}
        self.silent: set[int] = set()
        self.beating: list[asyncio.Task[None]] = []
        self.controller = self.another()

    def another(self, **texts: str) -> LoneController:
        made = configs(**{**self.texts, **texts})
        return LoneController(made, self.seams, StrikingStore(self.place, self.strikes))

    @property
    def cluster(self) -> ClusterState:
        return self.controller.cluster

    def by_tool(self, *operations: Operation) -> None:
        self.place.write(*operations)

    async def broker(self, node_id: int) -> Attentive:
        marks_count = self.controller.configs.delete_topic_enable
        broker = Attentive(node_id, self.place, marks_count=marks_count)
        self.brokers[node_id] = broker
        await broker.listen()
        await self.register(broker)
        self.beating.append(asyncio.create_task(self._beat(broker)))
        return broker

    async def register(self, broker: Attentive) -> None:
        for _ in range(200):
            if broker.session is not None:
                broker.session.close()
            with contextlib.suppress(ClientError, OSError):
                answer = await broker.register(self.controller.listener_port)
                if answer.error_code == 0:
                    return
            await asyncio.sleep(0.1)
        raise AssertionError("no registration was taken")

    async def _beat(self, broker: Attentive) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            if broker.node_id in self.silent:
                continue
            try:
                answer = await broker.heartbeat()
            except (ClientError, OSError):
                answer = None
            if answer is None or answer.error_code:
                await self.register(broker)

    async def start(self) -> None:
        await self.controller.start()
        for node_id in (1, 2):
            await self.broker(node_id)
        one = self.brokers[1]
        wanted = messages.CreateTopicsRequest
        for name, replicas in (("t", [1, 2]), ("u", [2])):
            made = topic(name, min_insync_replicas=str(len(replicas)))
            made.topics[0].assignments = [wanted.CreatableReplicaAssignment(0, replicas)]
            assert (await one.forward(made, 7)).topics[0].error_code == 0

    async def ask(self, request: Any, version: int) -> Any:
        """Forward as a broker does; None for any refusal of the envelope."""
        with contextlib.suppress(ClientError, OSError, AssertionError):
            return await self.brokers[1].forward(request, version)
        return None

    async def send(self, node_id: int, request: Any) -> Any:
        broker = self.brokers[node_id]
        assert broker.session is not None
        with contextlib.suppress(ClientError, OSError):
            return await broker.session.send(request, 0)
        return None

    async def end(self) -> None:
        for task in self.beating:
            task.cancel()
        for broker in self.brokers.values():
            await broker.close()
        await self.controller.stop()

    async def until_told(self) -> None:
        while True:
            await self.controller.activity.activated.wait()
            if await self.controller.reached(self.cluster.revision, 1000):
                return
            await asyncio.sleep(0.5)

    async def hears_tools(self) -> None:
        """What others write is taken up, whatever failed: each watch stands."""
        refused = self.place.write(
            Create(layout.topic_configs("v"), HEARD), Set(layout.topic_configs("u"), HEARD)
        )
        assert refused is None, refused
        wanted = {"retention.ms": "7777"}

        def are_known() -> bool:
            return all(self.cluster.topic_configs.get(x) == wanted for x in ("u", "v"))

        await until(are_known, HEARD_WITHIN_S)

    def check(self) -> None:
        """Memory is what a restart would load, and brokers know it."""
        wrong = [line for broker in self.brokers.values() for line in broker.wrong]
        assert not wrong, wrong[:3]
        again = ClusterState(layers=BrokerLayers(static=self.controller.configs.texts))
        load(again, self.place.nodes())
        # Of nodes that are not tidelog's a start knows more than one that was there before.
        for cluster in (again, self.cluster):
            cluster.versions = {x: y for x, y in cluster.versions.items() if layout.kind_of(x)}
        for name in STORED:
            assert getattr(self.cluster, name) == getattr(again, name), name
