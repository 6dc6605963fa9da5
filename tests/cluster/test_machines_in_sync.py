"""Two machines of two workers and ``min.insync.machines=2``: one machine dies."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.support.processes import DEADLINE_S, wait_until
from tests.support.server import run_tidelog
from tests.support.up import Up, is_alive

pytestmark = pytest.mark.long(60)

RECORDS = 40


def test_without_the_other_machine_writes_are_refused_and_none_is_lost(tmp_path: Path) -> None:
    # One replica in sync would do: only the count of machines refuses.
    configs = ("min.insync.replicas=1", "min.insync.machines=2", "default.replication.factor=3")
    words = [word for each in configs for word in ("--config", each)]
    folder = tmp_path / "cluster"
    arguments = ("--brokers", "2", "--workers", "2", *words)
    acked: list[str] = []
    with Up(folder, *arguments) as up:
        up.until_said("ready")
        cluster = up.cluster()
        server = ("--bootstrap-server", cluster["bootstrap"])
        create = ("topics", *server, "--create", "--topic", "t", "--partitions", "4")
        assert run_tidelog(*create, "--replication-factor", "3").returncode == 0
        produce = ("produce", *server, "--topic", "t")
        acked += [f"before-{number}" for number in range(RECORDS)]
        sent = run_tidelog(*produce, stdin="".join(f"{each}\n" for each in acked))
        assert sent.returncode == 0, sent.stderr

        # Broker 1 is the controller; the machines have the brokers 1 and 3, 2 and 4.
        killed = [each["pid"] for each in cluster["brokers"] if each["id"] % 2 == 0]
        assert len(killed) == 2
        for pid in killed:
            os.kill(pid, signal.SIGKILL)

        def isrs() -> list[set[int]]:
            described = run_tidelog("topics", *server, "--describe", "--topic", "t", "--json")
            (topic,) = json.loads(described.stdout)
            assert all(each["leader"] in (1, 3) for each in topic["partitions"])
            return [set(each["isr"]) for each in topic["partitions"]]

        def are_left() -> bool:
            described = run_tidelog("topics", *server, "--describe", "--topic", "t", "--json")
            (topic,) = json.loads(described.stdout)
            return all(set(each["isr"]) <= {1, 3} for each in topic["partitions"])

        wait_until(are_left, DEADLINE_S, "the dead machine is in no ISR")
        assert any(len(isr) == 2 for isr in isrs()), "two replicas in sync are one machine"
        refused = run_tidelog(
            *produce, "--producer-property", "delivery.timeout.ms=3000", stdin="refused\n"
        )
        assert refused.returncode == 1, refused
        assert "min.insync.machines asks for" in refused.stderr, refused.stderr
        report = run_tidelog("doctor", *server)
        assert "min.insync.machines" in report.stdout, report.stdout

    # All come back: what was acknowledged is there, and writes are taken again.
    with Up(folder, *arguments) as up:
        up.until_said("ready")
        assert not any(map(is_alive, killed))
        server = ("--bootstrap-server", up.cluster()["bootstrap"])
        sent = run_tidelog("produce", *server, "--topic", "t", stdin="after\n")
        assert sent.returncode == 0, sent.stderr
        acked.append("after")
        read = run_tidelog(
            "consume", *server, "--topic", "t", "--from-beginning",
            "--max-messages", str(len(acked)),
        )  # fmt: skip
        assert sorted(read.stdout.split()) == sorted(acked), read
