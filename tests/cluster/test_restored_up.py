"""The store of a whole cluster restored from a backup: every process restarts with no prior state.

`tests/cluster/test_restored_store.py` has brokers that keep running. Here none does, as with
`tidelog up` and with a single process: no process has received the metadata, and the way out must
work all the same.
"""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path

import pytest

from tests.support.processes import DEADLINE_S, wait_until
from tests.support.server import run_tidelog
from tests.support.target import TARGET
from tests.support.up import Up

pytestmark = [
    pytest.mark.kill,
    pytest.mark.long(40),
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]


@pytest.mark.parametrize("brokers", [1, 2])
def test_a_cluster_whose_store_was_put_back_says_what_to_do_and_goes_on(
    tmp_path: Path, brokers: int
) -> None:
    folder = tmp_path / "cluster"
    store, backup = folder / "metadata.sqlite", tmp_path / "backup.sqlite"
    with Up(folder, "--brokers", str(brokers)) as up:
        up.until_said("ready")
        server = ("--bootstrap-server", up.cluster()["bootstrap"])
        done = run_tidelog("doctor", "backup", str(backup), "--store", f"sqlite:{store}")
        assert done.returncode == 0, done
        assert run_tidelog("topics", *server, "--create", "--topic", "young").returncode == 0
        assert run_tidelog("produce", *server, "--topic", "young", stdin="a\nb\n").returncode == 0
        assert up.program.stop() == 0
    for path in folder.glob("metadata.sqlite*"):
        path.unlink()
    shutil.copy(backup, store)

    with Up(folder, "--brokers", str(brokers)) as up:
        said = up.until_said("sends no metadata")
        found = re.search(r"--bootstrap-server (\S+:\d+)", said)
        assert found is not None, said
        server = ("--bootstrap-server", found[1])
        assert said.endswith(f"--cluster-secret-file {folder / 'cluster.secret'}"), said
        assert not (folder / "cluster.json").exists()
        doctor = run_tidelog("doctor", *server)
        assert doctor.returncode == 1
        # A line that it waits may come first.
        line = doctor.stderr.splitlines()[-1]
        assert line.startswith("error: the brokers wait for metadata from the controller"), doctor
        assert "`tidelog doctor restored --cluster-secret-file " in line, doctor
        secret = ("--cluster-secret-file", str(folder / "cluster.secret"))

        def is_accepted() -> bool:
            # Refused while a broker with replicas has not registered yet.
            return run_tidelog("doctor", "restored", *server, *secret, "--accept").returncode == 0

        wait_until(is_accepted, DEADLINE_S, "the restored store is accepted", 0.2)
        up.until_said("ready")
        everywhere = ("--bootstrap-server", up.cluster()["bootstrap"])
        read = run_tidelog(
            "consume", *everywhere, "--topic", "young", "--from-beginning", "--max-messages", "2"
        )
        assert sorted(read.stdout.split()) == ["a", "b"], read
        assert up.program.stop() == 0


def test_a_broker_without_metadata_can_be_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    store, backup = folder / "metadata.sqlite", tmp_path / "backup.sqlite"
    with Up(folder) as up:
        up.until_said("ready")
        done = run_tidelog("doctor", "backup", str(backup), "--store", f"sqlite:{store}")
        assert done.returncode == 0, done
        server = ("--bootstrap-server", up.cluster()["bootstrap"])
        assert run_tidelog("topics", *server, "--create", "--topic", "young").returncode == 0
        assert up.program.stop() == 0
    for path in folder.glob("metadata.sqlite*"):
        path.unlink()
    shutil.copy(backup, store)
    with Up(folder) as up:
        up.until_said("sends no metadata")
        up.program.send(signal.SIGTERM)
        assert up.program.wait(DEADLINE_S) == 1, "it never served"
