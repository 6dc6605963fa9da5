"""Fixtures that several test folders share.

`TIDELOG_TEST_TARGET=kafka` runs the cluster tests against Apache Kafka instead of tidelog: the
positive control, which shows that a test asks for what Kafka does.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support import loop_guard
from tests.support.java import ToolRunner, missing
from tests.support.node import Node
from tests.support.target import new_node

# Hypothesis judges results, never how long a machine takes for them.
settings.register_profile("results", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("results")

LONG_S = 30
"""How many seconds a file with the mark `long` takes, if that does not say more."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin the files that take longest before the others: the last one to end decides."""
    seconds: dict[Path, int] = {}
    for item in items:
        if mark := item.get_closest_marker("long"):
            told = mark.args[0] if mark.args else LONG_S
            seconds[item.path] = max(told, seconds.get(item.path, 0))
    items.sort(key=lambda item: -seconds.get(item.path, 0))


def pytest_configure() -> None:
    """Have a file for what the guard of event loops finds, in this process and those it starts."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # By nohup. A server that inherits this would ignore the signal; a handler is not inherited.
        signal.signal(signal.SIGHUP, lambda number, frame: None)
    handle, path = tempfile.mkstemp(prefix="tidelog-loop-guard-")
    os.close(handle)
    os.environ[loop_guard.FILE] = path
    above = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if loop_guard.ON_START not in above:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [loop_guard.ON_START, *above]))
    loop_guard.install()


def pytest_collection_finish() -> None:
    """Keep what was imported and collected, hundreds of thousands of objects that stay to the end,
    out of every full collection of garbage."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    Path(os.environ.pop(loop_guard.FILE)).unlink(missing_ok=True)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Suppress log lines: simulated servers log their own deaths and planted faults."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(autouse=True)
def loops_wait_for_no_disk() -> Iterator[None]:
    """Fail the test during which a running server has waited for the disk on its event loop.

    A server that several tests share may be found at it by any of them.
    """
    yield
    found = Path(os.environ[loop_guard.FILE])
    if found.stat().st_size:
        said = found.read_text()
        found.write_text("")
        pytest.fail(said, pytrace=False)


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One node for all tests that leave it as they found it: take topics of your own."""
    with new_node(tmp_path_factory.mktemp("node")) as started:
        yield started


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """`make_node(config)` starts a node for this test alone; all are killed at its end."""
    made: list[Node] = []

    def make(config: Mapping[str, object] | None = None) -> Node:
        fresh = new_node(tmp_path / f"node-{len(made)}", config)
        made.append(fresh)
        fresh.start()
        return fresh

    yield make
    for each in made:
        each.__exit__()


@pytest.fixture
def bootstrap(node: Node) -> str:
    """The address of the shared node."""
    return node.bootstrap


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A name no other test has; the topic does not exist yet."""
    words = "".join(c if c.isalnum() else "-" for c in request.node.name)
    return f"{words[:60].strip('-')}-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def _tool_runner() -> Iterator[ToolRunner]:
    runner = ToolRunner()
    yield runner
    runner.close()


@pytest.fixture
def tools(_tool_runner: ToolRunner) -> ToolRunner:
    """Kafka's Java tools in one JVM; skips, in one line, only where Java or Maven is missing."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    return _tool_runner
