"""`tidelog up` as a real process, and what it says of its children."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from tests.support.processes import DEADLINE_S, Program, wait_until
from tests.support.server import tidelog_command


class Up:
    """A running `tidelog up` on a folder."""

    def __init__(self, folder: Path, *arguments: str, port: int = 0) -> None:
        self.folder = folder
        self.log = folder.parent / f"out-{len(list(folder.parent.glob('out-*')))}"
        self.program = Program(
            tidelog_command("up", "--data", str(folder), "--port", str(port), *arguments), self.log
        )

    def __enter__(self) -> Up:
        return self

    def __exit__(self, *_: object) -> None:
        if self.program.exit_status() is None:
            self.program.stop()

    def lines(self, word: str) -> list[str]:
        return [line for line in self.program.output().splitlines() if word in line]

    def until_said(self, word: str) -> str:
        wait_until(
            lambda: self.lines(word) or self.program.exit_status() is not None,
            DEADLINE_S,
            f"`tidelog up` says {word!r}",
        )
        found = self.lines(word)
        assert found, self.program.output()
        return found[-1]

    def cluster(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "cluster.json").read_text())
        return found


def is_alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        # A zombie is dead: whoever adopted it has not looked yet.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
