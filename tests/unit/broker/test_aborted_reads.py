"""The aborted transactions of a Fetch: limits, pieces, and what the fast path leaves alone."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.fetch_paths import Hosts
from tests.support.isolation import COMMITTED, Transactions, aborted_in, kept_by_client
from tests.support.storage_logs import new_log
from tests.support.transactional_logs import end, send
from tidelog.broker.fetching import aborted_reads
from tidelog.broker.fetching.aborted_reads import (
    MOST_OF_REQUEST,
    aborted_of_read,
    end_of,
    nothing_aborted,
)
from tidelog.broker.handlers import fetch as handler
from tidelog.model.api_keys import ApiKey
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.principals import ANONYMOUS
from tidelog.model.topics import TopicPartition
from tidelog.network.router import RequestContext
from tidelog.protocol import codec, messages
from tidelog.records.batch import walk
from tidelog.storage.log import aborted_reading, cold
from tidelog.storage.log.partition_log import PartitionLog

Request = messages.FetchRequest


def led(folder: Path, partitions: int) -> tuple[Hosts, list[Transactions]]:
    keys = [TopicPartition("t", index) for index in range(partitions)]
    hosts = Hosts(folder, keys, TopicConfigs())
    for key in keys:
        hosts.become(key, True, 1, (1,))
    return hosts, [Transactions(hosts.partitions[key]) for key in keys]


def request(hosts: Hosts, *offsets: int, least: int = 1) -> Any:
    parts = [
        Request.FetchPartition(
            partition=index, fetch_offset=offset, partition_max_bytes=2**20, current_leader_epoch=-1
        )
        for index, offset in enumerate(offsets)
    ]
    return Request(
        max_wait_ms=0,
        min_bytes=least,
        isolation_level=COMMITTED,
        session_epoch=-1,
        topics=[Request.FetchTopic("t", hosts.id_of("t"), parts)],
    )


def parts_of(data: bytes) -> list[Any]:
    response: Any = codec.decode_response(ApiKey.FETCH, 12, memoryview(data)[4:])[1]
    return list(response.responses[0].partitions)


def test_a_read_of_too_many_ends_before_the_first_that_is_left_out(tmp_path: Path) -> None:
    """10,050 producers, each with one record, have aborted: 800 kB of records."""
    hosts, (transactions,) = led(tmp_path, 1)
    hosts.broker.reader = replace(hosts.broker.reader, most_bytes=2**21)
    transactions.size, more = 0, 50
    for producer_id in range(MOST_OF_REQUEST + more):
        transactions.data(producer_id)
    for producer_id in range(MOST_OF_REQUEST + more):
        transactions.abort(producer_id)
    transactions.plain()
    (part,) = parts_of(hosts.flat(request(hosts, 0), 12))
    named = aborted_in(part)
    assert named is not None and len(named) == MOST_OF_REQUEST
    # From a file it ends at an entry of the index.
    assert MOST_OF_REQUEST - 100 < end_of(part.records) <= MOST_OF_REQUEST
    assert kept_by_client(part) == []
    # From that offset more cover the first record than one response has: it gets them all.
    (part,) = parts_of(hosts.flat(request(hosts, MOST_OF_REQUEST + 20), 12))
    named = aborted_in(part)
    assert named is not None and len(named) == MOST_OF_REQUEST + 21
    assert end_of(part.records) == MOST_OF_REQUEST + 21
    assert not hosts.fast


def test_partitions_share_what_one_response_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.broker.fetching.partition_reads.MOST_OF_REQUEST", 3)
    hosts, each = led(tmp_path, 3)
    for transactions in each:
        for producer_id in (20, 21):
            transactions.data(producer_id)
            transactions.abort(producer_id)
        transactions.plain()
    first, second, third = parts_of(hosts.flat(request(hosts, 0, 0, 0, least=2**20), 12))
    assert [aborted_in(part) for part in (first, second, third)] == [
        [(20, 0), (21, 2)],
        [(20, 0)],
        [],
    ]
    assert [len(list(walk(part.records))) for part in (first, second, third)] == [5, 2, 0]
    again = parts_of(hosts.flat(request(hosts, 5, 2, 0), 12))
    assert [len(list(walk(part.records))) for part in again] == [0, 3, 5]
    assert kept_by_client(again[2]) == [4]


def test_a_request_of_many_partitions_looks_up_in_pieces(tmp_path: Path) -> None:
    """One partition in each; those in which nothing was aborted are read together."""
    hosts, each = led(tmp_path, 6)
    for number, transactions in enumerate(each):
        transactions.data(20)
        (transactions.abort if number % 2 else transactions.commit)(20)
    client: Any = hosts.client
    context = RequestContext(client, 12, 1, "c", ANONYMOUS)
    steps: Any = handler.handle(hosts.broker, request(hosts, *[0] * 6), context)
    assert inspect.isgenerator(steps)
    pieces = 1 + sum(1 for _ in steps)
    assert pieces == 3, "the last one ends with a look-up"


def test_the_fast_path_leaves_what_needs_a_file_or_a_long_look(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    records = read(log, send(log, 20, 0))
    assert nothing_aborted(log, 0, records), "nothing is aborted anywhere"
    end(log, 20, committed=False)
    assert not nothing_aborted(log, 0, read(log, 0))
    after = send(log, 21, 0)
    assert nothing_aborted(log, after, read(log, after)), "a look at what is in memory"
    for sequence in range(1, 1 + aborted_reads.MOST_AT_ONCE):
        send(log, 20, sequence)
        end(log, 20, committed=False)
    last = send(log, 21, 1)
    assert not nothing_aborted(log, last, read(log, last)), "too long a look"
    end(log, 21)
    log.roll(0)
    first = send(log, 22, 0)
    assert nothing_aborted(log, first, read(log, first)), "no segment from here on has any"
    log.sync()
    assert not nothing_aborted(log, last, read(log, last)), "a file"


def test_a_transaction_that_began_in_what_compaction_took_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batches from the offset that is asked for up to the first one that is left are gone."""
    log = new_log(tmp_path)
    for producer_id in (20, 21, 22):
        send(log, producer_id, 0)
    rest = send(log, 20, 1)
    for producer_id in (20, 21, 22):
        end(log, producer_id, committed=False)
    records = read(log, rest)
    header = log.segments.header_at(rest)
    # As after a compaction: the batch that holds offset 0, or comes after it, is the fourth one.
    monkeypatch.setattr(type(log.segments), "header_at", lambda *_: header)
    found = aborted_of_read(log, 0, records, 1)
    assert [one.producer_id for one in found.transactions] == [20, 21, 22]
    assert found.end is None


def read(log: PartitionLog, offset: int) -> Any:
    return log.read(offset, 2**20)


def test_the_limit_of_a_response_is_that_of_a_look_up() -> None:
    assert MOST_OF_REQUEST == aborted_reading.MOST_OF_READ
    assert cold.WARMED_BYTES >= 2 * 34 * 100_000, "the files of a whole segment are read at once"
