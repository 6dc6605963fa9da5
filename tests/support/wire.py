"""Single requests to a node, byte for byte as a test wants them, through kio's messages.

For what no client sends: broken batches, impossible epochs, control batches. kio rejects tagged
fields that it does not know, so take non-flexible versions of Metadata, Produce and Fetch.
"""

from __future__ import annotations

import datetime
import io
import socket
import struct
from collections.abc import Sequence
from typing import Any

import crc32c
from kio.index import load_response_schema
from kio.schema.produce.v8.request import PartitionProduceData, ProduceRequest, TopicProduceData
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i16, i32, i32Timedelta

from tests.support.node import receive_frame
from tests.support.processes import DEADLINE_S

CLIENT_ID = "bad-input"


class Wire:
    """One connection; requests go out one by one."""

    def __init__(self, port: int, timeout_s: float = DEADLINE_S) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self._correlation_id = 0

    def send_raw(self, frame: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(frame)

    def receive_raw(self) -> bytes:
        """One answer without its length; ConnectionError when the node closes the connection."""
        return receive_frame(self.socket)

    def call(self, request: Any) -> Any:
        """Send a kio request and return the kio response of the same version."""
        self._correlation_id += 1
        kind = type(request)
        head = struct.pack(
            f">hhih{len(CLIENT_ID)}s",
            kind.__api_key__,
            kind.__version__,
            self._correlation_id,
            len(CLIENT_ID),
            CLIENT_ID.encode(),
        )
        if kind.__flexible__:
            head += b"\0"
        body = io.BytesIO()
        entity_writer(kind)(body, request)
        frame = head + body.getvalue()
        self.send_raw(struct.pack(">i", len(frame)) + frame)
        answer = self.receive_raw()
        assert struct.unpack_from(">i", answer)[0] == self._correlation_id
        schema = load_response_schema(kind.__api_key__, kind.__version__)
        # A flexible answer has a tag buffer in its header; that of ApiVersions never has.
        skip = 5 if kind.__flexible__ and kind.__api_key__ != 18 else 4
        response, size = entity_reader(schema)(answer, skip)
        assert skip + size == len(answer), "the answer has trailing bytes"
        return response

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def varint(number: int) -> bytes:
    """A zigzag varint, as records have them."""
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def record(delta: int, value: bytes, key: bytes | None = None) -> bytes:
    """One record of format v2 without headers."""
    keyed = varint(-1) if key is None else varint(len(key)) + key
    body = b"\0" + varint(0) + varint(delta) + keyed + varint(len(value)) + value + varint(0)
    return varint(len(body)) + body


def batch(
    values: Sequence[bytes],
    *,
    magic: int = 2,
    attributes: int = 0,
    crc_error: int = 0,
    count: int | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
    timestamp_ms: int = 1_700_000_000_000,
    keys: Sequence[bytes] | None = None,
) -> bytes:
    """A batch of format v2; `crc_error` is added to its CRC, `producer` is id, epoch, sequence."""
    records = b"".join(
        record(delta, value, keys[delta] if keys else None) for delta, value in enumerate(values)
    )
    after_crc = (
        struct.pack(
            ">hiqqqhii",
            attributes,
            len(values) - 1,
            timestamp_ms,
            timestamp_ms,
            *producer,
            len(values) if count is None else count,
        )
        + records
    )
    crc = (crc32c.crc32c(after_crc) + crc_error) & 0xFFFFFFFF
    body = struct.pack(">ibI", 0, magic, crc) + after_crc
    return struct.pack(">qi", 0, len(body)) + body


def produce(topic: str, records: bytes, *, partition: int = 0, acks: int = -1) -> ProduceRequest:
    """A Produce v8 request of one partition."""
    part = PartitionProduceData(index=i32(partition), records=records)
    return ProduceRequest(
        acks=i16(acks),
        timeout=i32Timedelta.parse(datetime.timedelta(seconds=10)),
        topic_data=(TopicProduceData(name=topic, partition_data=(part,)),),
    )


def produce_error(wire: Wire, topic: str, records: bytes, **options: Any) -> int:
    """Send a batch and return the partition's error code."""
    answer = wire.call(produce(topic, records, **options))
    return int(answer.responses[0].partition_responses[0].error_code)
