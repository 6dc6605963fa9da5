"""The helper process: used, replaced when it is killed, gone with its server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from tests.support.processes import DEADLINE_S, wait_until
from tidelog.runtime.helper_processes import HelperProcesses, OneEach

SERVER = """
import os, sys, time
from tidelog.runtime.helper_processes import HelperProcesses
if __name__ == "__main__":
    print(HelperProcesses().submit(os.getpid).result(), flush=True)
    sys.stdin.read()
"""

BORN_LATE = """
import os, sys, time
from tidelog.runtime.helper_processes import HelperProcesses
if __name__ == "__mp_main__":
    # The helper imports this before it begins: it is born when its server is dead.
    server = os.getppid()
    print(os.getpid(), flush=True)
    while os.getppid() == server:
        time.sleep(0.01)
if __name__ == "__main__":
    HelperProcesses().submit(os.getpid).result()
"""


def test_a_killed_helper_is_replaced() -> None:
    helpers = HelperProcesses()
    first = helpers.submit(os.getpid).result(DEADLINE_S)
    assert first != os.getpid()
    with pytest.raises(BrokenProcessPool):
        helpers.submit(os.kill, first, signal.SIGKILL).result(DEADLINE_S)
    assert helpers.submit(os.getpid).result(DEADLINE_S) not in (first, os.getpid())
    helpers.shutdown()
    with pytest.raises(RuntimeError):
        helpers.submit(os.getpid)


def test_a_stop_does_not_wait_for_a_task() -> None:
    helpers = HelperProcesses()
    helpers.submit(os.getpid).result(DEADLINE_S)
    running = helpers.submit(_for_ever)
    wait_until(running.running, DEADLINE_S, "the task runs")
    helpers.shutdown(cancel_futures=True)
    with pytest.raises((BrokenProcessPool, CancelledError)):
        running.result(DEADLINE_S)


def test_each_task_at_the_same_time_has_a_helper(tmp_path: Path) -> None:
    helpers = OneEach()
    first = helpers.submit(os.getpid).result(DEADLINE_S)
    held = [helpers.submit(_until_there, str(tmp_path / "go")) for _ in range(3)]
    pids = {helpers.submit(os.getpid).result(DEADLINE_S)}
    (tmp_path / "go").touch()
    pids |= {each.result(DEADLINE_S) for each in held}
    assert len(pids) == 4 and first in pids
    again = {helpers.submit(os.getpid).result(DEADLINE_S) for _ in range(3)}
    assert len(again) == 1 and again < pids, "one stays, and is used again"
    wait_until(lambda: not any(map(_lives, pids - again)), DEADLINE_S, "the others end")
    helpers.shutdown()
    wait_until(lambda: not any(map(_lives, again)), DEADLINE_S, "the last one ends")
    with pytest.raises(RuntimeError):
        helpers.submit(os.getpid)


def test_a_killed_helper_fails_its_own_task_alone(tmp_path: Path) -> None:
    helpers = OneEach()
    other = helpers.submit(_until_there, str(tmp_path / "go"))
    killed = helpers.submit(_kill_me)
    with pytest.raises(BrokenProcessPool):
        killed.result(DEADLINE_S)
    (tmp_path / "go").touch()
    assert other.result(DEADLINE_S) != helpers.submit(os.getppid).result(DEADLINE_S)
    held = [helpers.submit(_for_ever) for _ in range(2)]
    for each in held:
        wait_until(each.running, DEADLINE_S, "the task runs")
    helpers.shutdown(cancel_futures=True)
    for each in held:
        with pytest.raises((BrokenProcessPool, CancelledError)):
            each.result(DEADLINE_S)


def _until_there(path: str) -> int:
    wait_until(lambda: os.path.exists(path), DEADLINE_S, "the file is there")
    return os.getpid()


def _kill_me() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _for_ever() -> None:
    signal.pause()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
@pytest.mark.parametrize("code", [SERVER, BORN_LATE], ids=["at work", "still beginning"])
def test_the_helper_dies_with_its_server(tmp_path: Path, code: str) -> None:
    program = tmp_path / "server.py"
    program.write_text(code)
    server = subprocess.Popen(
        [sys.executable, str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Python's own tracker of semaphores complains of the kill.
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout is not None
    helper = int(server.stdout.readline())
    server.kill()
    server.wait(DEADLINE_S)
    wait_until(lambda: not _lives(helper), DEADLINE_S, "the helper ends")


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
