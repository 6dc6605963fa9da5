"""The archive job's requests to a cluster beside the records: deadlines and pauses."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.lakes import (
    at,
)
from tidelog.pipeline.jobs import archive_cluster
from tidelog.pipeline.jobs.archive_cluster import ArchiveCluster
from tidelog.pipeline.options import Mode, parse


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a socket that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_a_cluster_that_does_not_answer_holds_no_batch_back(
    silent: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """P8: the calls beside the records have a short deadline, and a pause after a failure."""
    monkeypatch.setattr(archive_cluster, "DEADLINE_S", 0.2)
    monkeypatch.setattr(archive_cluster, "LAST_DEADLINE_S", 0.2)
    now = [0.0]
    options = parse(
        {"kafka.bootstrap.servers": silent, "subscribe": "t", "kafka.group.id": "g"}, Mode.STREAM
    )
    cluster = ArchiveCluster(options, lambda: now[0])
    began = time.monotonic()
    cluster.commit(at(5))
    assert cluster.policies(["t"]) == {}
    cluster.commit(at(6))
    assert len(caplog.records) == 1
    now[0] += archive_cluster.PAUSE_S
    cluster.commit(at(7))
    cluster.commit_last(at(7))
    cluster.close()
    assert len(caplog.records) == 3
    assert time.monotonic() - began < 20, "none waited for the client's minute"


class Asked(ArchiveCluster):
    """A cluster that answers each call at once, and counts them."""

    def __init__(self, **more: str) -> None:
        self.now = 0.0
        self.calls = 0
        given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "kafka.group.id": "g", **more}
        super().__init__(parse(given, Mode.STREAM), lambda: self.now)

    def _ask(self, question: Any, deadline_s: float) -> Any:
        self.calls += 1
        return {}


def test_policies_hold_for_the_topics_that_were_asked_for_and_for_a_while() -> None:
    cluster = Asked()

    def calls_of(*topics: str) -> int:
        cluster.policies(topics)
        return cluster.calls

    assert [calls_of("t"), calls_of("t"), calls_of("t", "u"), calls_of("t", "u")] == [1, 1, 2, 2]
    cluster.now += archive_cluster.PAUSE_S
    assert [calls_of("t", "u"), calls_of("t", "u")] == [3, 3]


def test_the_last_commit_is_tried_again_only_where_it_has_not_succeeded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Asked()

    def succeed(*_: object) -> bool:
        cluster.calls += 1
        return True

    monkeypatch.setattr(cluster, "_ask", succeed)
    cluster.commit(at(5))
    cluster.commit_last(at(5))
    assert cluster.calls == 1
    cluster.commit_last(at(6))
    assert cluster.calls == 2
    without = Asked(commitGroupOffsets="false")
    without.commit(at(5))
    assert without.calls == 0
