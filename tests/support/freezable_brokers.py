"""Listeners in the place of brokers that a test freezes, as SIGSTOP does.

Owns the few responses that a look-up of metadata needs. Not a broker: see ``lone_broker``.
"""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from tidelog.model.api_keys import ApiKey
from tidelog.protocol import codec, messages


class FreezableBrokers:
    """Listeners of one cluster, ids 0 to 2; those of ``frozen`` accept, and respond to nothing."""

    def __init__(self) -> None:
        self.frozen: set[int] = set()
        self.topics: dict[str, UUID] = {}
        """The topics that they describe, each of one partition."""
        self.leader, self.leader_epoch = 0, 1
        self._changed = asyncio.Event()
        self.asked: list[tuple[int, ApiKey]] = []
        self.ports: list[int] = []
        self._servers: list[asyncio.Server] = []
        self._open: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> FreezableBrokers:
        for index in range(3):
            serve: Any = lambda r, w, index=index: self._serve(index, r, w)  # noqa: E731
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            self._servers.append(server)
            self.ports.append(server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        self.freeze()
        for writer in self._open:
            writer.close()
        for server in self._servers:
            server.close()

    def freeze(self, *indexes: int) -> None:
        """Let these respond to nothing, and the others to everything, what came before included."""
        self.frozen = set(indexes)
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def bootstrap(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.ports]

    async def _serve(
        self, index: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._open.append(writer)
        try:
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                header = codec.decode_request_header(memoryview(frame))
                self.asked.append((index, ApiKey(header.api_key)))
                while index in self.frozen:
                    await self._changed.wait()
                # No response to Produce: acks=0.
                if header.api_key != ApiKey.PRODUCE:
                    self._answer(writer, header)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass

    def _answer(self, writer: asyncio.StreamWriter, header: Any) -> None:
        if header.api_key == ApiKey.API_VERSIONS:
            kind = messages.ApiVersionsResponse
            keys = [(ApiKey.API_VERSIONS, 3), (ApiKey.METADATA, 12), (ApiKey.INIT_PRODUCER_ID, 2)]
            keys.append((ApiKey.PRODUCE, 9))
            answer: Any = kind(api_keys=[kind.ApiVersion(key, 0, most) for key, most in keys])
        elif header.api_key == ApiKey.INIT_PRODUCER_ID:
            answer = messages.InitProducerIdResponse(producer_id=7, producer_epoch=0)
        else:
            kind = messages.MetadataResponse
            brokers = [
                kind.MetadataResponseBroker(node_id, "127.0.0.1", port)
                for node_id, port in enumerate(self.ports)
            ]
            leader, epoch = self.leader, self.leader_epoch
            part = kind.MetadataResponsePartition(0, 0, leader, epoch, [0, 1, 2], [0, 1, 2], [])
            topics = [
                kind.MetadataResponseTopic(0, name, topic_id, partitions=[part])
                for name, topic_id in self.topics.items()
            ]
            answer = kind(brokers=brokers, controller_id=0, topics=topics)
        chunks = codec.encode_response(
            header.api_key, header.api_version, header.correlation_id, answer
        )
        writer.writelines(chunks)
