"""The pytest plugin: fixtures ``tidelog_cluster`` and ``tidelog_topic``, and their options.

Owns the fixtures. Not the cluster: see ``cluster``. Imports only pytest, because pytest loads this
module in every project of the environment; the cluster is imported when a fixture is used.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tidelog.testing.cluster import Cluster

LOG_LINES_SHOWN = 20
"""How many lines of each broker's log are shown with a test that failed."""

LOG_BYTES_READ = 16_384

SCOPES = ("session", "package", "module", "class", "function")
NAME_LENGTH = 100
"""How much of a test's name is in a topic's name, of whose 249 characters the id needs nine."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options and their ini names."""
    group = parser.getgroup("tidelog", "tidelog: a real broker for tests")
    group.addoption(
        "--tidelog-brokers",
        type=int,
        metavar="N",
        help="brokers of tidelog_cluster (ini: tidelog_brokers; default 1)",
    )
    group.addoption(
        "--tidelog-scope",
        choices=SCOPES,
        help="scope of tidelog_cluster (ini: tidelog_scope; default session)",
    )
    parser.addini("tidelog_brokers", "brokers of tidelog_cluster", default="1")
    parser.addini("tidelog_scope", "scope of tidelog_cluster", default="session")
    parser.addini("tidelog_config", "NAME=VALUE per line: server configurations", type="linelist")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "tidelog_topic(partitions=1, replication_factor=None, config=None): "
        "how the fixture tidelog_topic creates the test's topic",
    )


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Keep the logs of a cluster whose test has failed, and say where they are."""
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        cluster = getattr(item, "funcargs", {}).get("tidelog_cluster")
        if cluster is not None:
            cluster.keep_logs = True
            report.sections.append(("tidelog", f"logs of the brokers: {cluster.folder}"))
            for log in sorted(cluster.folder.glob("node-*.log")):
                report.sections.append((f"the end of {log.name}", _end_of(log)))


def _end_of(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES_READ))
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-LOG_LINES_SHOWN:])


def _scope(fixture_name: str, config: pytest.Config) -> Any:
    chosen = config.getoption("--tidelog-scope") or config.getini("tidelog_scope")
    if chosen not in SCOPES:
        raise pytest.UsageError(f"tidelog_scope={chosen}: use one of {', '.join(SCOPES)}")
    return chosen


@pytest.fixture(scope=_scope)
def tidelog_cluster(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A running ``tidelog.testing.Cluster``; ended at the end of its scope (``tidelog_scope``)."""
    from tidelog.testing.cluster import Cluster

    brokers = pytestconfig.getoption("--tidelog-brokers") or pytestconfig.getini("tidelog_brokers")
    if not str(brokers).isdecimal() or int(brokers) < 1:
        raise pytest.UsageError(f"tidelog_brokers={brokers}: give a number of at least 1")
    pairs = [line.partition("=") for line in pytestconfig.getini("tidelog_config")]
    config = {name.strip(): value.strip() for name, _, value in pairs}
    folder = tmp_path_factory.mktemp("tidelog")
    with Cluster(int(brokers), config=config, parent_folder=folder) as cluster:
        yield cluster


@pytest.fixture
def tidelog_topic(request: pytest.FixtureRequest, tidelog_cluster: Cluster) -> str:
    """The name of a new topic for one test; the marker ``tidelog_topic`` has its settings."""
    marker = request.node.get_closest_marker("tidelog_topic")
    words = "".join(c if c.isascii() and c.isalnum() else "-" for c in request.node.name)
    name = f"{words[:NAME_LENGTH].strip('-')}-{uuid.uuid4().hex[:8]}"
    tidelog_cluster.create_topic(name, **(marker.kwargs if marker is not None else {}))
    return name
