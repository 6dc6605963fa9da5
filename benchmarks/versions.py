"""Two versions of tidelog to be measured side by side: this checkout, and a commit of it.

Owns where a version's code comes from and that its processes run it and nothing else. Both use the
libraries of this checkout's .venv: a commit that needs others cannot be measured.
"""

from __future__ import annotations

import compileall
import contextlib
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from tests.support.cluster import TidelogCluster
from tests.support.node import Node
from tests.support.server import TidelogNode

from benchmarks.clusters import BROKERS, Cluster

ROOT = Path(__file__).parent.parent
MAIN = "tidelog.cli.main"
KNOWN_NAMES = """
try:
    from tidelog.model.configs.broker import BROKER
except ImportError:  # up to 340bf2f
    from tidelog.model.config_definitions_broker import BROKER
print(*BROKER)
"""


@dataclass(frozen=True)
class Version:
    """One version: its name in the table, its package's folder, the configurations it knows."""

    name: str
    source: Path
    known: frozenset[str]

    def _prepared(self, node: TidelogNode) -> TidelogNode:
        node.run_with(MAIN, {"PYTHONPATH": str(self.source)})
        # A version from before --new-cluster asks for no such proof.
        texts = (file.read_text() for file in (self.source / "tidelog" / "cli").glob("*.py"))
        node.ran_before = node.ran_before or not any("--new-cluster" in text for text in texts)
        # What the test support writes for this checkout may be refused by an older one.
        node.configure({name: None for name in node.config if name not in self.known})
        return node

    def node(self, folder: Path) -> Node:
        """Return one node with the defaults, not yet started."""
        return self._prepared(TidelogNode(folder))

    def cluster(self, folder: Path) -> Cluster:
        """Return a controller and three brokers with their defaults, not yet started."""
        made = TidelogCluster(folder, len(BROKERS))
        for node in (*made.controllers, *made.brokers.values()):
            self._prepared(node)
        return Cluster(made.controller, made.brokers)


@contextlib.contextmanager
def two_versions(commit: str, folder: Path) -> Iterator[list[Version]]:
    """The commit's version and this checkout's as it stands, both compiled as when installed.

    Exits with one line when there is no such commit.
    """
    shown = _git("rev-parse", "--short", "--verify", f"{commit}^{{commit}}").decode().strip()
    archive = folder / "against"
    archive.mkdir()
    with TemporaryFile() as packed:
        packed.write(_git("archive", "--format=tar", shown, "src"))
        packed.seek(0)
        with tarfile.open(fileobj=packed) as files:
            files.extractall(archive, filter="data")
    yield [
        _version(shown, archive / "src"),
        _version("this checkout", ROOT / "src"),
    ]


def _version(name: str, source: Path) -> Version:
    if not compileall.compile_dir(source / "tidelog", quiet=1):
        sys.exit(f"{name} does not compile: see above")
    environment = {**os.environ, "PYTHONPATH": str(source)}
    said = subprocess.run(
        [sys.executable, "-c", KNOWN_NAMES], env=environment, capture_output=True, text=True
    )
    if said.returncode:
        sys.exit(f"{name} does not run with this checkout's libraries:\n{said.stderr}")
    return Version(name, source, frozenset(said.stdout.split()))


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True)
    if done.returncode:
        sys.exit(f"git {' '.join(arguments)}: {done.stderr.decode().strip()}")
    return done.stdout
