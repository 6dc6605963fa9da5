"""Hosted partitions that serve Fetch requests by the fast path or the handler, with no loop.

Owns the two ways in and what can be seen afterwards. Not what is sent. A request that must wait on
an event loop cannot be served here: each has ``max_wait_ms`` 0, and its records are in memory.
"""

from __future__ import annotations

import copy
import os
import random
import uuid
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.fetch_steps import finished
from tests.support.storage_logs import NOW_MS, FixedClock, open_as_a_server
from tidelog.broker.fetching import fetch_fast_path
from tidelog.broker.fetching.client_sessions import FetchSessions
from tidelog.broker.fetching.partition_reads import Reader
from tidelog.broker.handlers import fetch
from tidelog.broker.metadata.cache import MetadataCache
from tidelog.broker.metadata.configurations import ConfigCache
from tidelog.broker.metadata.shown_epochs import ShownEpochs
from tidelog.broker.metadata.topic_names import TopicNames
from tidelog.broker.partitions.partition import HostedPartition, LeaderAndIsrState
from tidelog.broker.partitions.throttles import LEADER, Throttles
from tidelog.model.api_keys import ApiKey
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.errors import ErrorCode
from tidelog.model.principals import ANONYMOUS
from tidelog.model.topics import TopicPartition
from tidelog.network.limits import Account
from tidelog.network.router import RequestContext
from tidelog.protocol import codec, messages
from tidelog.storage.checkpoints import PartitionMetadata

CORRELATION = 77
MOST_BYTES = 400_000
"""``fetch.max.bytes``."""


class Client:
    """The connection of a consumer."""

    client_host = "a"
    listener_name = "L"
    is_trusted = False

    def __init__(self) -> None:
        self.account = Account(1_000_000)
        self.budget = 2**30
        self.sends_files = True

    def answer_budget(self) -> int:
        return self.budget

    def can_send_files(self) -> bool:
        return self.sends_files


class Hosts:
    """Partitions of a broker with their logs on disk, and one client of it."""

    def __init__(self, folder: Path, keys: Iterable[TopicPartition], configs: TopicConfigs) -> None:
        self.clock = FixedClock(NOW_MS)
        self.client = Client()
        self.partitions: dict[TopicPartition, HostedPartition] = {}
        self.lives: dict[str, int] = {}
        """How often each topic was deleted and created again."""
        self.names = TopicNames()
        for key in keys:
            self.names.put(key.topic, self.id_of(key.topic))
        self.fast = 0
        """Requests that the fast path has served."""
        directory = open_as_a_server(folder)
        commit = SimpleNamespace(before_ack=False, want=lambda _: None)
        by_topic: dict[str, dict[int, HostedPartition]] = {}
        for key in keys:
            log = directory.create(key, configs, PartitionMetadata(self.id_of(key.topic), 0, ()))
            hosted = self.partitions[key] = HostedPartition(key, log, 1, commit)
            by_topic.setdefault(key.topic, {})[key.partition] = hosted
        self.metadata = MetadataCache()
        shown = ShownEpochs(self.metadata)
        self.metadata.when_resized = shown.resized
        self.sessions = FetchSessions(100, random.Random(1))
        sent = Throttles(ConfigCache(1, {}), self.clock, LEADER)
        self.broker: Any = SimpleNamespace(
            partitions=SimpleNamespace(by_topic=by_topic),
            clock=self.clock,
            reader=Reader(
                *(1, None, MOST_BYTES, False, None, lambda _: []),
                throttles=sent,
                shown=shown,
                fetched=lambda *_: None,
            ),
            fetch_sessions=self.sessions,
            metadata=SimpleNamespace(names=self.names),
            leader_hints=SimpleNamespace(
                why_not_here=lambda *_: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                name_leaders_of_fetch=lambda response, _: response,
            ),
        )

    def id_of(self, topic: str, *, former: bool = False) -> uuid.UUID:
        """The id of a topic, or of its former incarnation."""
        return uuid.uuid5(uuid.NAMESPACE_OID, f"{topic} {self.lives.get(topic, 0) - former}")

    def create_again(self, topic: str, *, shown: bool) -> None:
        """Give a topic another id; ``shown``: the metadata show it already."""
        self.lives[topic] = self.lives.get(topic, 0) + 1
        for key, partition in self.partitions.items():
            if key.topic == topic:
                metadata = partition.log.metadata
                assert metadata is not None
                partition.log.metadata = replace(metadata, topic_id=self.id_of(topic))
        if shown:
            self.names.drop(self.id_of(topic, former=True))
            self.names.put(topic, self.id_of(topic))

    def become(self, key: TopicPartition, leads: bool, leader_epoch: int, replicas: Any) -> None:
        """Lead or follow, as LeaderAndIsr says it."""
        state = LeaderAndIsrState(
            topic_id=self.id_of(key.topic),
            leader=1 if leads else 2,
            leader_epoch=leader_epoch,
            isr=replicas,
            replicas=replicas,
        )
        self.partitions[key].become(state)

    def show(self, topic: str, resize_epoch: int) -> None:
        """Let the metadata show a resize epoch of a topic, also an older one than before."""
        update = messages.UpdateMetadataRequest
        part = update.UpdateMetadataPartitionState(partition_index=0, leader=1)
        whole = update.UpdateMetadataTopicState(
            topic_name=topic,
            partition_states=[part],
            undeleted_partition_count=8,
            resize_epoch=resize_epoch,
        )
        self.metadata.topics.clear()
        self.metadata.apply(update(topic_states=[whole]), complete=False)

    def general(self, request: Any, version: int) -> bytes:
        """The bytes of the handler's response."""
        # It sets the names of a request with ids, and must not find those of the other side.
        request = copy.deepcopy(request)
        context = RequestContext(
            self.client,
            version,
            CORRELATION,
            "c",
            ANONYMOUS,  # type: ignore[arg-type]
        )
        response = fetch.handle(self.broker, request, context)
        if not hasattr(response, "error_code"):
            response = finished(response)
        return sent(codec.encode_response(ApiKey.FETCH, version, CORRELATION, response))

    def kept_sessions(self) -> list[Any]:
        """The sessions, the least recently used first."""
        return list(self.sessions._sessions.values())

    def look_again(self) -> None:
        """Let the next request of each session read all of its partitions."""
        for session in self.kept_sessions():
            for wanted in session.wanted.values():
                wanted.resting = None

    def flat(self, request: Any, version: int) -> bytes:
        """The same of the fast path, or of the handler where that leaves the request alone."""
        frame = memoryview(b"".join(codec.encode_request(1, version, CORRELATION, "c", request)))[
            4:
        ]
        at = codec.decode_request_header(frame).body
        client: Any = self.client
        self.sessions.expire(self.clock.now_ms)
        before = self.state()
        chunks = fetch_fast_path.answer(self.broker, frame, at, version, CORRELATION, client)
        if chunks is not None:
            self.fast += 1
            return sent(chunks)
        assert self.state() == before, "no effect but on the fetch offsets of a session"
        return self.general(request, version)

    def state(self) -> dict[str, Any]:
        """All that the next request or an operator can find out, but the fetch offsets."""
        return {
            "counts": {
                key: (each.bytes_out, each.counts.fetches, each.counts.refused_fetches)
                for key, each in self.partitions.items()
            },
            "sessions": [
                (
                    (each.id, each.epoch, each.used_ms, each.held),
                    [(key, x.sent_ends, x.sent_start) for key, x in each.wanted.items()],
                )
                for each in self.kept_sessions()
            ],
            "account": self.client.account.used,
        }

    def asked(self) -> list[Any]:
        """The fetch offsets of the sessions, and the numbers of counts."""
        return [
            (
                (x.fetch_offset, x.max_bytes, x.leader_epoch, x.last_fetched_epoch, x.log_start),
                x.named,
            )
            for each in self.kept_sessions()
            for x in each.wanted.values()
        ]


def sent(chunks: Any) -> bytes:
    """The bytes that the network sends."""
    return b"".join(
        os.pread(chunk.fileno, chunk.size, chunk.position) if hasattr(chunk, "fileno") else chunk
        for chunk in chunks
    )
