"""The cordon of a broker that leaves: closed to new replicas, and opened again (KIP-1066).

Owns the requests that set and clear ``cordoned.log.dirs`` of one broker, and what is printed. The
cordon is that broker's configuration, so it holds until it is cleared, whether the broker is alive
or not.
"""

from __future__ import annotations

from tidelog.cli.output import note, print_json, say
from tidelog.cli.reassigning.situation import check
from tidelog.cli.refusal import Failed
from tidelog.client.admin.configs import alter_configs
from tidelog.client.admin.nodes import describe_placements
from tidelog.client.cluster import Cluster
from tidelog.model.admin_requests import ResourceType
from tidelog.model.configs.cordoned import ALL, CORDONED_LOG_DIRS


async def close(cluster: Cluster, broker: int) -> None:
    """Close a broker to new replicas; in effect when this returns. Raises Refused."""
    await alter_configs(
        cluster,
        ResourceType.BROKER,
        str(broker),
        set_values={CORDONED_LOG_DIRS: ALL},
        may_be_away=True,
    )
    note(
        f"broker {broker} is closed to new replicas from now on "
        f"(`tidelog topics --decommission {broker} --undo` opens it)"
    )


async def open_again(cluster: Cluster, broker: int, as_json: bool) -> None:
    """Clear the cordon of a broker. Raises Failed when its own file still closes it, or when no
    broker has this id."""
    now = await check(cluster, placements=True)
    if broker not in now.known_brokers() | now.placements.closed:
        raise Failed(f"there is no broker {broker}, alive, in any assignment or closed")
    await alter_configs(
        cluster, ResourceType.BROKER, str(broker), delete=[CORDONED_LOG_DIRS], may_be_away=True
    )
    if broker in (await describe_placements(cluster)).closed:
        raise Failed(
            f"broker {broker} stays closed to new replicas: {CORDONED_LOG_DIRS} is set in its own "
            "properties file; remove it there, or override it by `tidelog configs --alter --broker "
            f"{broker} --add-config {CORDONED_LOG_DIRS}=`"
        )
    if as_json:
        print_json({"broker": broker, "takes_new_replicas": True})
    else:
        say(f"Broker {broker} is open to new replicas.")
