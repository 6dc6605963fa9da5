"""Commands that change nothing, while the controller is stopped (SIGSTOP), in virtual time.

Each says within a few seconds that the controller did not answer: one wait, however many things
only the controller knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.simulation.cluster.scripted_run import ScriptedRun
from tidelog.cli import autoscale, doctor, topics
from tidelog.cli.reassigning import situation
from tidelog.cli.resizing.dry_run import try_out
from tidelog.client.admin.groups import list_groups
from tidelog.client.admin.nodes import describe_unclean
from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.errors import ClientError
from tidelog.runtime.backoff import Backoff

pytestmark = pytest.mark.usefixtures("quiet")

WAIT_S = 5.5
"""``PATIENCE_S``, and what is asked besides."""

DESCRIBED = {
    "topic": "t",
    "topic_id": None,
    "exclude_internal": False,
    "topics_with_overrides": False,
    "as_json": True,
} | dict.fromkeys(map(topics.parameter_of, topics.ONLY), False)


async def dry_run(cluster: Cluster) -> None:
    topic = (await cluster.topics(["t"]))["t"]
    await try_out(cluster, topic, 2, {}, force=False)


Ask = Callable[[Cluster], Awaitable[Any]]

READS: dict[str, Ask] = {
    "doctor": doctor.check,
    "doctor unclean": describe_unclean,
    "topics --describe": lambda cluster: topics._describe(cluster, dict(DESCRIBED)),
    "topics --alter --dry-run": dry_run,
    "reassign-partitions --list, --verify, --cancel": situation.check,
    "reassign-partitions --execute, --generate, --revert": lambda cluster: situation.check(
        cluster, dirs=True, placements=True
    ),
    "autoscale --dry-run": lambda cluster: autoscale._show(cluster, None, True),
    "groups --list": lambda cluster: list_groups(cluster, unlisted=[]),
}


@pytest.mark.parametrize("name", READS)
def test_a_command_waits_once_and_says_what_did_not_answer(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ""

    async def script(run: ScriptedRun) -> None:
        nonlocal said
        rng = run.world.random("client")
        process = run.world.machine("client").process("client")
        bootstrap = ",".join(f"{node.host}:9092" for node in run.cluster.brokers)
        controller = run.cluster.active
        stopped = None if controller is None else controller.process
        assert stopped is not None

        async def client() -> None:
            nonlocal said
            settings = ClusterSettings(backoff=Backoff(random=rng))
            async with Cluster(bootstrap, settings) as cluster:
                await cluster.topics(["t"])
                stopped.pause()
                loop = asyncio.get_running_loop()
                began_s = loop.time()
                try:
                    found = await READS[name](cluster)
                except ClientError as error:
                    said = str(error)
                else:
                    said = str(getattr(found, "condition", ""))
                took_s = loop.time() - began_s
                stopped.resume()
                assert took_s < WAIT_S, f"{took_s:.1f} s"

        run.faults.unquiet_until = asyncio.get_running_loop().time() + 60
        await process.run(client())
        await run.until_isr(1, 2, 3)

    result = ScriptedRun(1, script, "replicated", {"min.insync.replicas": "2"}).run()
    assert not result.violations, result.report()
    said += capsys.readouterr().err
    if name != "groups --list":
        assert said.count("controller") == 1, said
