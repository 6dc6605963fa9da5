"""The stock clients with the same two calls, `write` and `read`: any pair can be compared.

All of them use topic partition 0. Owns no assertions.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import kafka.codec
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.java import ToolRunner
from tests.support.processes import DEADLINE_S, wait_until

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True)
class Record:
    """One record as text, which every client and tool can print."""

    key: str | None
    value: str | None
    headers: tuple[tuple[str, str], ...] = ()


def admin(bootstrap: str) -> AdminClient:
    """librdkafka's admin client; a topic that it is asked about it does not make."""
    return AdminClient(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 3,
            # Else a look at a topic that is still to come makes one with the defaults.
            "allow.auto.create.topics": False,
        }
    )


def committed_after_a_move(
    consumer: confluent_kafka.Consumer, places: list[confluent_kafka.TopicPartition]
) -> list[confluent_kafka.TopicPartition]:
    """Return a group's committed offsets, where its coordinator may be moving.

    A broker whose metadata are older than the election names the former coordinator. librdkafka
    gives the NOT_COORDINATOR of that one to its caller; Java's consumer asks again by itself.
    """
    answer: list[confluent_kafka.TopicPartition] = []

    def is_answered() -> bool:
        try:
            answer[:] = consumer.committed(places, timeout=DEADLINE_S)
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() != confluent_kafka.KafkaError.NOT_COORDINATOR:
                raise
        return bool(answer)

    wait_until(is_answered, DEADLINE_S, "the group's coordinator answers", 0.1)
    return answer


def create_topic(bootstrap: str, topic: str, partitions: int = 1, **config: object) -> None:
    """Create a topic and return when every partition has a leader.

    Configuration names are given with underscores (`segment_bytes=…` is `segment.bytes`).
    """
    client = admin(bootstrap)
    names = {name.replace("_", "."): str(value) for name, value in config.items()}
    made = client.create_topics([NewTopic(topic, partitions, 1, config=names)])
    made[topic].result(DEADLINE_S)

    def led() -> bool:
        seen = client.list_topics(topic, timeout=DEADLINE_S).topics[topic]
        leaders = [part.leader for part in seen.partitions.values()]
        return len(leaders) == partitions and min(leaders) >= 0

    wait_until(led, DEADLINE_S, f"{topic} has leaders", pause_s=0.02)


def write_confluent(
    bootstrap: str, topic: str, records: Sequence[Record], compression: str
) -> None:
    failures: list[confluent_kafka.KafkaError] = []

    def delivered(error: confluent_kafka.KafkaError | None, _: object) -> None:
        if error is not None:
            failures.append(error)

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "compression.type": compression, "linger.ms": 50}
    )
    for record in records:
        producer.produce(
            topic,
            key=record.key,
            value=record.value,
            headers=[(name, value.encode()) for name, value in record.headers],
            partition=0,
            on_delivery=delivered,
        )
    left = producer.flush(DEADLINE_S)
    assert left == 0 and not failures, (left, failures)


COORDINATOR_COMES = {
    confluent_kafka.KafkaError.NOT_COORDINATOR,
    confluent_kafka.KafkaError.COORDINATOR_NOT_AVAILABLE,
    confluent_kafka.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}


def failure_of(message: confluent_kafka.Message) -> confluent_kafka.KafkaError | None:
    """Return the error that librdkafka hands to its application; None for what it only reports.

    It looks for the coordinator again by itself. The first use of a group makes the topic of the
    offsets: one broker may name a coordinator that does not know yet that it is one.
    """
    error = message.error()
    return None if error is not None and error.code() in COORDINATOR_COMES else error


def read_confluent(bootstrap: str, topic: str, count: int) -> list[Record]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    got: list[Record] = []
    end = time.monotonic() + DEADLINE_S
    while len(got) < count and time.monotonic() < end:
        for message in consumer.consume(count - len(got), 0.5):
            assert message.error() is None, message.error()
            headers = tuple((name, value.decode()) for name, value in message.headers() or ())
            got.append(Record(_text(message.key()), _text(message.value()), headers))
    consumer.close()
    return got


def kafka_python_lacks() -> str | None:
    """Which packages kafka-python misses for its compressions, in one line; None where it has all.

    The other clients bring their own.
    """
    has = {
        "python-snappy": kafka.codec.has_snappy(),
        "lz4": kafka.codec.has_lz4(),
        "zstandard": kafka.codec.has_zstd(),
    }
    lacks = [name for name, there in has.items() if not there]
    return f"kafka-python needs the packages {', '.join(lacks)}" if lacks else None


def _as_arguments(record: Record) -> dict[str, Any]:
    """What `send` of kafka-python and of aiokafka takes."""
    return {
        "key": _bytes(record.key),
        "value": _bytes(record.value),
        "headers": [(name, value.encode()) for name, value in record.headers],
        "partition": 0,
    }


def write_kafka_python(
    bootstrap: str, topic: str, records: Sequence[Record], compression: str
) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if compression == "none" else compression,
        linger_ms=50,
    )
    sent = [producer.send(topic, **_as_arguments(record)) for record in records]
    for future in sent:
        future.get(timeout=DEADLINE_S)
    producer.close()


def read_kafka_python(bootstrap: str, topic: str, count: int) -> list[Record]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    consumer.assign([kafka.TopicPartition(topic, 0)])
    got: list[Record] = []
    end = time.monotonic() + DEADLINE_S
    while len(got) < count and time.monotonic() < end:
        for messages in consumer.poll(500).values():
            for message in messages:
                headers = tuple((name, value.decode()) for name, value in message.headers)
                got.append(Record(_text(message.key), _text(message.value), headers))
    consumer.close()
    return got


def write_aiokafka(bootstrap: str, topic: str, records: Sequence[Record], compression: str) -> None:
    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if compression == "none" else compression,
            linger_ms=50,
            acks="all",
        )
        async with producer:
            sent = [await producer.send(topic, **_as_arguments(record)) for record in records]
            await asyncio.wait_for(asyncio.gather(*sent), DEADLINE_S)

    asyncio.run(run())


def read_aiokafka(bootstrap: str, topic: str, count: int) -> list[Record]:
    async def run() -> list[Record]:
        got: list[Record] = []
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            consumer.assign([aiokafka.TopicPartition(topic, 0)])
            end = time.monotonic() + DEADLINE_S
            while len(got) < count and time.monotonic() < end:
                for messages in (await consumer.getmany(timeout_ms=500)).values():
                    for message in messages:
                        headers = tuple((name, value.decode()) for name, value in message.headers)
                        got.append(Record(_text(message.key), _text(message.value), headers))
        finally:
            await consumer.stop()
        return got

    return asyncio.run(run())


def kcat(*args: str, stdin: str = "", deadline_s: float = DEADLINE_S) -> str:
    """Run kcat and return what it printed; AssertionError unless it ends with status 0."""
    done = subprocess.run(
        ["kcat", *args], input=stdin, capture_output=True, text=True, timeout=deadline_s
    )
    assert done.returncode == 0, f"kcat {' '.join(args)}: {done.returncode}\n{done.stderr}"
    return done.stdout


def kcat_missing() -> str | None:
    """Why kcat cannot run here, in one line; None where it is installed."""
    if shutil.which("kcat") is None:
        return "kcat is not installed: install it (Debian: kcat)"
    return None


def write_kcat(bootstrap: str, topic: str, records: Sequence[Record], compression: str) -> None:
    """kcat gives all records of a run the same headers: those of the first."""
    headers = [arg for name, value in records[0].headers for arg in ("-H", f"{name}={value}")]
    lines = "".join(f"{record.key}\t{record.value}\n" for record in records)
    kcat(
        *("-P", "-b", bootstrap, "-t", topic, "-p", "0", "-K", "\t"),
        *("-z", compression, "-X", "linger.ms=50", *headers),
        stdin=lines,
    )


def read_kcat(bootstrap: str, topic: str, count: int) -> list[Record]:
    said = kcat("-C", "-b", bootstrap, "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-J")
    got = []
    for line in said.splitlines():
        seen = json.loads(line)
        flat = seen.get("headers", [])
        headers = tuple(zip(flat[::2], flat[1::2], strict=True))
        got.append(Record(seen["key"], seen["payload"], headers))
    return got[:count]


def java_writer(tools: ToolRunner) -> Callable[[str, str, Sequence[Record], str], None]:
    """Kafka's console producer with the contract of the other writers."""

    def write(bootstrap: str, topic: str, records: Sequence[Record], compression: str) -> None:
        lines = "".join(
            f"{','.join(f'{name}:{value}' for name, value in record.headers)}"
            f"\t{record.key}\t{record.value}\n"
            for record in records
        )
        done = tools.run(
            *("kafka-console-producer", "--bootstrap-server", bootstrap, "--topic", topic),
            *("--compression-codec", compression),
            *("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true"),
            stdin=lines,
        ).check()
        assert "ERROR" not in done.err, str(done)

    return write


def java_reader(tools: ToolRunner) -> Callable[[str, str, int], list[Record]]:
    """Kafka's console consumer with the contract of the other readers."""

    def read(bootstrap: str, topic: str, count: int) -> list[Record]:
        said = tools.run(
            *("kafka-console-consumer", "--bootstrap-server", bootstrap, "--topic", topic),
            *("--partition", "0", "--offset", "earliest", "--max-messages", str(count)),
            *("--timeout-ms", "90000", "--formatter-property", "print.key=true"),
            *("--formatter-property", "print.headers=true"),
        ).check()
        got = []
        for line in said.out.splitlines():
            header, key, value = line.split("\t")
            pairs = [] if header == "NO_HEADERS" else [h.split(":") for h in header.split(",")]
            got.append(Record(key, value, tuple((name, text) for name, text in pairs)))
        return got

    return read


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
