"""Random transactions of one partition, read at read_committed by both paths of Fetch (KIP-98).

A client that applies Kafka's rule to what it gets keeps what the batches of the log say is
committed, in order and once: from memory and from files, with little room, where a response has
few aborted transactions, and after syncs have written the files of these.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.drawn_seed import drawn_seed
from tests.support.fetch_paths import Hosts
from tests.support.isolation import (
    COMMITTED,
    Transactions,
    aborted_in,
    committed_in,
    kept_by_client,
)
from tidelog.broker.fetching import aborted_reads, partition_reads
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.model.api_keys import ApiKey
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.topics import TopicPartition
from tidelog.protocol import codec, messages
from tidelog.records.batch import walk
from tidelog.storage.log.stable import last_stable_offset

KEYS = [TopicPartition("t", index) for index in range(3)]
PRODUCERS = range(20, 26)

Request = messages.FetchRequest


def fetch(hosts: Hosts, offsets: dict[int, int], most: int, *, flat: bool) -> dict[int, Any]:
    """The partitions of a response, by the fast path where it serves this, or by the handler."""
    parts = [
        Request.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=most)
        for index, offset in offsets.items()
    ]
    request = Request(
        max_wait_ms=0,
        min_bytes=1,
        isolation_level=COMMITTED,
        session_epoch=-1,
        topics=[Request.FetchTopic("t", hosts.id_of("t"), parts)],
    )
    data = (hosts.flat if flat else hosts.general)(request, 12)
    response: Any = codec.decode_response(ApiKey.FETCH, 12, memoryview(data)[4:])[1]
    return {part.partition_index: part for part in response.responses[0].partitions}


def end_of(part: Any) -> int:
    *_, (_, last) = walk(part.records)
    return last.next_offset


class Story:
    """Transactions of some producers, of which some are open, and sometimes a sync."""

    def __init__(self, hosted: HostedPartition, rng: random.Random) -> None:
        self.hosted, self.rng = hosted, rng
        self.transactions = Transactions(hosted)
        self.is_open: set[int] = set()

    def step(self, *, sizes: tuple[int, ...]) -> None:
        rng, transactions = self.rng, self.transactions
        kind = rng.choice(("plain", "data", "data", "data", "end", "end"))
        if kind == "plain":
            transactions.plain(rng.choice(sizes))
        elif kind == "data":
            producer_id = rng.choice(PRODUCERS)
            self.is_open.add(producer_id)
            transactions.data(producer_id, rng.choice(sizes))
        elif self.is_open:
            producer_id = rng.choice(sorted(self.is_open))
            self.is_open.discard(producer_id)
            (transactions.commit if rng.random() < 0.4 else transactions.abort)(producer_id)
        if rng.random() < 0.05:
            self.hosted.log.sync()


def read_through(hosts: Hosts, rng: random.Random, most_bytes: tuple[int, ...], most: int) -> int:
    """Read all partitions from some offset to the stable one; return how many were aborted."""
    logs = {key.partition: hosts.partitions[key].log for key in KEYS}
    begins = {index: rng.randrange(last_stable_offset(log) + 1) for index, log in logs.items()}
    positions, kept = dict(begins), {index: [] for index in logs}  # type: ignore[var-annotated]
    aborted = 0
    while any(positions[index] < last_stable_offset(log) for index, log in logs.items()):
        before = dict(positions)
        for index, part in fetch(
            hosts, positions, rng.choice(most_bytes), flat=rng.random() < 0.5
        ).items():
            log = logs[index]
            assert part.error_code == 0
            assert part.last_stable_offset == last_stable_offset(log)
            named = aborted_in(part)
            assert named is not None
            assert not named or len(part.records), "aborted transactions of nothing"
            aborted += len(named)
            covering = [one for one in named if one[1] <= positions[index]]
            assert len(named) <= max(most, len(covering) + 1)
            if len(part.records):
                kept[index] += [at for at in kept_by_client(part) if at >= positions[index]]
                positions[index] = end_of(part)
                assert positions[index] <= last_stable_offset(log)
        assert positions != before, "no progress"
    for index, log in logs.items():
        expected = committed_in(log, last_stable_offset(log))
        assert kept[index] == [at for at in expected if at >= begins[index]]
    return aborted


@pytest.mark.parametrize("most", [2, aborted_reads.MOST_OF_REQUEST])
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_client_keeps_what_is_committed(
    tmp_path: Path, kind: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_reads, "MOST_OF_REQUEST", most)
    rng = random.Random(drawn_seed())
    is_file = kind == "file"
    hosts = Hosts(tmp_path, KEYS, TopicConfigs(segment_bytes=400_000 if is_file else 3_000))
    for key in KEYS:
        hosts.become(key, True, 1, (1,))
    stories = [Story(hosts.partitions[key], rng) for key in KEYS]
    sizes = (20, 10_000, 30_000) if is_file else (20, 200)
    aborted = 0
    for number in range(1, 241):
        for story in stories:
            story.step(sizes=sizes)
        if not number % 40:
            aborted += read_through(hosts, rng, (1, 1_000, 200_000) if is_file else (1, 500), most)
    assert aborted > 30
