"""The machines of an ISR as the controller counts them: as leaders do."""

from __future__ import annotations

import msgspec
import pytest

from tests.support.controller_world import World
from tidelog.controller.decisions.machines import missing_machines
from tidelog.model.configs.resolve import BrokerLayers


@pytest.mark.parametrize(("inter_broker", "missing"), [("INTERNAL", 0), ("EXTERNAL", 1)])
def test_hosts_are_those_of_the_listener_between_brokers(inter_broker: str, missing: int) -> None:
    """Clients may reach all brokers by one address that is translated, and leaders count by the
    other: a resize was refused for ever that would have been committed."""
    world = World(1, 2)
    for broker in (1, 2):
        world.cluster.brokers[broker] = msgspec.structs.replace(
            world.cluster.brokers[broker],
            rack="zone",
            endpoints=[f"EXTERNAL://nat:900{broker}", f"INTERNAL://10.0.0.{broker}:9094"],
        )
    world.cluster.layers = BrokerLayers(static={"inter.broker.listener.name": inter_broker})
    assert missing_machines(world.cluster, (1, 2), 2, 3) == missing
