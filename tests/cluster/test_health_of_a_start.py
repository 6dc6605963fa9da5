"""Health during a start: what restarts a process reads another fact than what sends clients."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.processes import DEADLINE_S, Program, free_ports, wait_until
from tests.support.server import tidelog_command


def page(port: int, path: str) -> tuple[int, str]:
    """The status and the text of a page; 0 while no process listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=DEADLINE_S) as found:
            return found.status, found.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def test_a_broker_without_a_controller_is_live_and_says_what_it_waits_for(tmp_path: Path) -> None:
    port, metrics, nothing = free_ports(3)
    config = {
        "process.roles": "broker",
        "node.id": 1,
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{nothing}",
        "log.dirs": tmp_path / "data",
        "metrics_port": metrics,
    }
    file = tmp_path / "server.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in config.items()))
    with Program(tidelog_command("server", str(file)), tmp_path / "log"):
        wait_until(lambda: page(metrics, "/health/live")[0] == 200, DEADLINE_S, "it is live")
        assert page(metrics, "/metrics")[0] == 200
        found: dict[str, Any] = {}

        def waits() -> bool:
            status, text = page(metrics, "/health")
            assert status == 503
            found.update(json.loads(text))
            return str(found["waits_for"]) == "a controller"

        wait_until(waits, DEADLINE_S, "it waits for a controller")
        assert (found["live"], found["ready"], found["healthy"]) == (True, False, False)
