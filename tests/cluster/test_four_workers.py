"""Four workers of one machine share its partitions; the one disk of two workers is full."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.processes import DEADLINE_S, Program, free_pair, free_ports, wait_until
from tests.support.server import run_tidelog
from tests.support.up import Up

pytestmark = pytest.mark.long(60)


def test_four_workers_share_the_partitions(tmp_path: Path) -> None:
    with Up(tmp_path / "cluster", "--brokers", "1", "--workers", "4") as up:
        up.until_said("ready")
        server = ("--bootstrap-server", up.cluster()["bootstrap"])
        create = ("topics", *server, "--create", "--topic", "t", "--partitions", "12")
        assert run_tidelog(*create, "--replication-factor", "1").returncode == 0
        described = run_tidelog("topics", *server, "--describe", "--topic", "t", "--json")
        (topic,) = json.loads(described.stdout)
        leaders = [each["leader"] for each in topic["partitions"]]
        assert {broker: leaders.count(broker) for broker in {*leaders}} == dict.fromkeys(
            (1, 2, 3, 4), 3
        )
        values = [str(number) for number in range(200)]
        sent = run_tidelog(
            "produce", *server, "--topic", "t", stdin="".join(f"{each}\n" for each in values)
        )
        assert sent.returncode == 0, sent.stderr
        read = run_tidelog(
            "consume", *server, "--topic", "t", "--from-beginning", "--max-messages", "200",
        )  # fmt: skip
        assert sorted(read.stdout.split()) == sorted(values), read


def test_the_full_disk_of_two_workers_stops_appends_of_both_and_no_reads(tmp_path: Path) -> None:
    flag, port, (controller,) = tmp_path / "full", free_pair(), free_ports(1)
    file = tmp_path / "server.properties"
    file.write_text(
        f"node.id=100\nbroker.rack=a/m\nlog.dirs={tmp_path / 'data'}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n"
        "offsets.topic.num.partitions=1\noffsets.topic.replication.factor=1\n"
    )
    programs = []
    try:
        for worker in range(2):
            words = ["server", str(file), "--workers", "2", "--worker", str(worker)]
            words += ["--new-cluster"] if worker == 0 else []
            program = Program(
                [sys.executable, "-m", "tests.support.disk_full_server", *words],
                tmp_path / f"log-{worker}",
                env={"TIDELOG_DISK_IS_FULL": str(flag)},
            )
            programs.append(program)
            wait_until(
                lambda program=program: "ready" in program.output(),
                DEADLINE_S,
                lambda program=program: f"the worker is ready: {program.output()}",
            )
        server = ("--bootstrap-server", f"127.0.0.1:{port},127.0.0.1:{port + 1}")
        soon = ("--producer-property", "delivery.timeout.ms=3000")
        for name, broker in (("first", 100), ("second", 101)):
            create = ("topics", *server, "--create", "--topic", name)
            assert run_tidelog(*create, "--replica-assignment", str(broker)).returncode == 0
            sent = run_tidelog("produce", *server, "--topic", name, stdin="before\n")
            assert sent.returncode == 0, sent.stderr
        flag.touch()
        for name in ("first", "second"):
            refused = run_tidelog("produce", *server, "--topic", name, *soon, stdin="lost\n")
            assert refused.returncode == 1, refused
            read = run_tidelog(
                "consume", *server, "--topic", name, "--from-beginning", "--max-messages", "1",
            )  # fmt: skip
            assert read.stdout.split() == ["before"], read
        flag.unlink()
        for name in ("first", "second"):
            sent = run_tidelog("produce", *server, "--topic", name, stdin="after\n")
            assert sent.returncode == 0, sent.stderr
            read = run_tidelog(
                "consume", *server, "--topic", name, "--from-beginning", "--max-messages", "2",
            )  # fmt: skip
            assert read.stdout.split() == ["before", "after"], read
    finally:
        for program in programs:
            if program.exit_status() is None:
                program.stop()
