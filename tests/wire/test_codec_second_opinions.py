"""Our bytes held against kio, kafka-python and the classes of Kafka 3.9 and 4.3.

Each reads what we wrote and writes it again: the bytes must be the same. The names of the fields
are compared too where the library shows them, for two neighbours of one type could be swapped
without a trace in the bytes. From the KIP versions on that released Kafka used otherwise
(LeaderAndIsr v3+, StopReplica v4, UpdateMetadata v8) the documents alone decide.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import random
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support import java
from tests.support.drawn_seed import drawn_seed
from tests.support.drawn_transactions import drawn_transaction
from tests.wire import reference_codec
from tidelog.protocol import schema
from tidelog.protocol.schema import Api, Message
from tidelog.records.control_records import EndMarker, encode_marker
from tidelog.transactions.records import TransactionRecord, encode, encode_value

ROUNDS = 6
CASES = reference_codec.everything()
KIO_LACKS = {"leader_and_isr", "stop_replica", "update_metadata"}
RENAMED = {"alter_isr": "alter_partition"}


def samples(api: Api, message: Message, version: int) -> list[tuple[Any, bytes]]:
    rng = random.Random(f"{message.name}-{version}")
    values = [
        reference_codec.Generator(rng, message, version, tame=True).make() for _ in range(ROUNDS)
    ]
    return [(v, reference_codec.encode(api, message, version, v)) for v in values]


def kio_class(api: Api, message: Message, version: int) -> type[Any] | None:
    folder = schema.file_name_of(api.name).removesuffix(".txt")
    if folder in KIO_LACKS or api.key > 10000:
        return None
    folder = RENAMED.get(folder, folder)
    kind = "request" if message is api.request else "response"
    try:
        module = importlib.import_module(f"kio.schema.{folder}.v{version}.{kind}")
    except ModuleNotFoundError:
        return None
    found: type[Any] = getattr(module, message.name.replace("AlterIsr", "AlterPartition"))
    return found


def plain(name: str) -> str:
    """Return a field's name without what the two sides write differently."""
    return re.sub(r"[^a-z0-9]", "", name).removesuffix("ms")


def test_kio_reads_and_writes_the_same_bytes() -> None:
    from kio.serial import entity_reader, entity_writer

    compared = 0
    for api, message, version in CASES:
        entity = kio_class(api, message, version)
        if entity is None:
            continue
        ours = [
            f.name
            for f in message.fields
            if version in f.versions and (f.tag is None or f.tag < 10000)
        ]
        theirs = [f.name for f in dataclasses.fields(entity)]
        if message.name not in ("AlterIsrRequest", "AlterIsrResponse"):
            assert sorted(map(plain, ours)) == sorted(map(plain, theirs)), (message.name, version)
        read, write = entity_reader(entity), entity_writer(entity)
        for value, data in samples(api, message, version):
            made, _ = read(data, 0)
            buffer = io.BytesIO()
            write(buffer, made)
            assert buffer.getvalue() == data, (message.name, version, value)
            compared += 1
    print(f"{compared} messages compared with kio")
    assert compared > 1000


def kafka_python_class(message: Message) -> Any:
    name = message.name.replace("AlterIsr", "AlterPartition")
    for module in ("admin", "consumer", "metadata", "producer"):
        package = importlib.import_module(f"kafka.protocol.{module}")
        if hasattr(package, name):
            return getattr(package, name)
    return None


def test_kafka_python_reads_and_writes_the_same_bytes() -> None:
    compared, apis = 0, set()
    for api, message, version in CASES:
        found = kafka_python_class(message) if api.key < 10000 else None
        if found is None or version > found.max_version:
            continue
        apis.add(api.name)
        for value, data in samples(api, message, version):
            if api.name == "ApiVersions" and getattr(value, "error_code", 0) != 0:
                continue  # It reads every answer with an error as v0, on purpose.
            made = found.decode(data, version=version)
            made._header = None
            assert bytes(made.encode(version=version)) == data, (message.name, version, value)
            compared += 1
    print(f"{compared} messages of {len(apis)} APIs compared with kafka-python")
    assert compared > 1000


JAVA_VERSIONS = {
    "clients-3.9": {
        "LeaderAndIsr": range(3),
        "StopReplica": range(4),
        "UpdateMetadata": range(8),
        "AlterIsr": range(1),
        "Envelope": range(1),
        "BrokerRegistration": range(1),
        "BrokerHeartbeat": range(1),
        "AllocateProducerIds": range(1),
    },
    "kafka": {
        "InitProducerId": range(6),
        "AddPartitionsToTxn": range(5),
        "AddOffsetsToTxn": range(5),
        "EndTxn": range(5),
        "WriteTxnMarkers": range(1, 2),
        "TxnOffsetCommit": range(5),
        "DescribeProducers": range(1),
        "DescribeTransactions": range(1),
        "ListTransactions": range(3),
        "SaslHandshake": range(2),
        "DescribeAcls": range(1, 4),
        "CreateAcls": range(1, 4),
        "DeleteAcls": range(1, 4),
        "SaslAuthenticate": range(3),
        "DescribeClientQuotas": range(2),
        "AlterClientQuotas": range(2),
        "DescribeUserScramCredentials": range(1),
        "AlterUserScramCredentials": range(1),
    },
}
"""Versions of APIs by the set of jars whose classes read and write them."""


def java_writes(set_name: str, lines: list[str]) -> list[str]:
    """Return what Kafka's classes write after reading each "CLASS VERSION HEX"."""
    why = java.missing()
    if why:
        pytest.skip(why)
    source = Path(__file__).with_name("ReadAndWrite.java")
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "messages"
        given.write_text("\n".join(lines) + "\n")
        done = subprocess.run(
            ["java", *java.TOOL_FLAGS, "-cp", java.class_path(set_name), source, given],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.java
@pytest.mark.parametrize("set_name", JAVA_VERSIONS)
def test_kafkas_classes_read_and_write_the_same_bytes(set_name: str) -> None:
    lines, expected = [], []
    for api, message, version in CASES:
        if version not in JAVA_VERSIONS[set_name].get(api.name, ()):
            continue
        name = message.name.replace("AlterIsr", "AlterPartition") + "Data"
        for _, data in samples(api, message, version):
            lines.append(f"org.apache.kafka.common.message.{name} {version} {data.hex()}")
            expected.append(data.hex())
    found = java_writes(set_name, lines)
    assert len(found) == len(expected) > 100
    for line, theirs, ours in zip(lines, found, expected, strict=True):
        assert theirs == ours, line


@pytest.mark.java
def test_kafkas_classes_read_and_write_the_records_of_transactions() -> None:
    """Keys and values of ``__transaction_state`` and the values of markers, without the version
    that stands before each."""
    rng = random.Random(drawn_seed())
    log = "org.apache.kafka.coordinator.transaction.generated.TransactionLog"
    lines = []
    for number in range(200):
        value = drawn_transaction(rng)
        key, _ = encode(TransactionRecord(f"id-{number}", value))
        lines.append(f"{log}Key 0 {key[2:].hex()}")
        lines.append(f"{log}Value 1 {encode_value(value, 1)[2:].hex()}")
        lines.append(f"{log}Value 0 {encode_value(value, 0)[2:].hex()}")
        marker = encode_marker(EndMarker(bool(number % 2), rng.randrange(2**31)))
        lines.append(f"org.apache.kafka.common.message.EndTxnMarker 0 {marker[2:].hex()}")
    for line, theirs in zip(lines, java_writes("kafka", lines), strict=True):
        assert theirs == line.split()[2], line
