"""The archive job's requests to a cluster beside the records: deadlines and pauses."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

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
