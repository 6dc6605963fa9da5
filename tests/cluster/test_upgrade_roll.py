"""Three processes of 02f3bcb on loopback are rolled to this code under load, and then get a secret.

As `docs/operating/upgrade.md` says: the new code, the secret beside those without one, the secret
asked for. One process has both roles and the store, as `tidelog up` makes them. A producer, an
idempotent one and a group work on meanwhile, and nothing is lost.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.acked_stream import GroupReader, Writer, settled
from tests.support.cluster import create_replicated, until_in_sync
from tests.support.log_files import batches_by_partition
from tests.support.lone_broker import Peer
from tests.support.old_release import MAIN, ROOT, unpack_source
from tests.support.proofs import write_secret
from tests.support.server import TidelogNode
from tests.support.target import TARGET
from tidelog.model.api_keys import ApiKey
from tidelog.protocol import messages

pytestmark = [
    pytest.mark.kill,
    pytest.mark.long,
    pytest.mark.skipif(TARGET != "tidelog", reason="its own processes of tidelog"),
]

TOPIC, PARTITIONS = "rolled", 3


@pytest.fixture(scope="module")
def old_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the old version's package."""
    return unpack_source(tmp_path_factory.mktemp("old"))


@pytest.fixture
def nodes(tmp_path: Path, old_source: Path) -> Iterator[list[TidelogNode]]:
    """Process 1 is the controller, too; all run the old version."""
    shared = {"default.replication.factor": 3, "offsets.topic.replication.factor": 3}
    first = TidelogNode(tmp_path / "node-1", shared)
    found = [first]
    for node_id in (2, 3):
        node = TidelogNode(tmp_path / f"node-{node_id}", shared)
        node.configure(
            {
                "process.roles": "broker",
                "node.id": node_id,
                "listeners": f"PLAINTEXT://127.0.0.1:{node.port}",
                "controller.quorum.bootstrap.servers": first.config[
                    "controller.quorum.bootstrap.servers"
                ],
                "metadata.store": None,
            }
        )
        found.append(node)
    with ExitStack() as started:
        for node in found:
            node.run_with(MAIN, {"PYTHONPATH": str(old_source)})
            # The old version asks for no proof that its cluster is new, and knows no such flag.
            node.ran_before = True
            started.callback(node.__exit__)
            node.start()
        yield found


def rolled(nodes: list[TidelogNode], bootstrap: str, *changes: dict[str, object]) -> None:
    """Restart each with this checkout's code and its changes, when all are in sync again."""
    for node, change in zip(nodes, changes, strict=True):
        node.run_with(MAIN, {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path])})
        node.configure(change)
        assert node.program.stop() == 0, node.said("stopped cleanly")
        node.start()
        until_in_sync(bootstrap, TOPIC, 3)


def shown(node: TidelogNode) -> set[int]:
    """The APIs that a client is shown."""

    async def ask() -> set[int]:
        peer = await Peer.connect(node.port)
        answer = await peer.ask(messages.ApiVersionsRequest("test", "1"), 3)
        return {entry.api_key for entry in answer.api_keys}

    return asyncio.run(ask())


def test_three_processes_are_rolled_to_this_code_and_get_a_secret(
    nodes: list[TidelogNode], tmp_path: Path
) -> None:
    bootstrap = ",".join(node.bootstrap for node in nodes)
    create_replicated(bootstrap, TOPIC, PARTITIONS, 3, min_insync_replicas=2)
    writers = [
        Writer(bootstrap, TOPIC, name, PARTITIONS, idempotent=name == "once", per_s=60)
        for name in ("plain", "once")
    ]
    reader = GroupReader(bootstrap, TOPIC, "group")
    for each in (*writers, reader):
        each.start()
    assert ApiKey.SASL_HANDSHAKE not in shown(nodes[0])

    # The new code has the level that the cluster has.
    level = {"inter.broker.protocol.version": "1.4"}
    rolled(nodes, bootstrap, level, level, level)
    # A secret of its own would have shut the others out.
    assert "creates no cluster secret" in nodes[0].log.read_text()
    assert ApiKey.OPEN_CONTROL_CHANNEL in shown(nodes[1])

    secret = write_secret(tmp_path)
    both = {"cluster.secret.file": secret, "cluster.secret.optional": "true"}
    rolled(nodes, bootstrap, both, both, both)

    rolled(nodes, bootstrap, *[{"cluster.secret.optional": None}] * 3)
    for node in nodes:
        assert ApiKey.SASL_HANDSHAKE in shown(node)
        assert ApiKey.OPEN_CONTROL_CHANNEL not in shown(node)

    batches_of = batches_by_partition((node.log_folder() for node in nodes), TOPIC)
    settled(bootstrap, TOPIC, PARTITIONS, writers, reader, batches_of)
    for writer in writers:
        print(writer.state())
    for node in nodes:
        assert "Traceback" not in node.log.read_text(), node.said("had no error")
