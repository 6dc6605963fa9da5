"""The cluster secret of simulated machines: a file outside of what power takes, proved by all."""

from __future__ import annotations

from tests.simulation.kernel import UNLIMITED, Machine, Process, World
from tests.simulation.kernel.world import VirtualClock
from tidelog.runtime.cluster_secret import ClusterSecret
from tidelog.runtime.disk import Disk

SECRET_FILE = "/run/secrets/cluster.secret"


def put_secret(view: Disk) -> None:
    """Write the file; every machine has the same."""
    view.make_directory(SECRET_FILE.rpartition("/")[0])
    view.replace(SECRET_FILE, b"the secret of all simulated machines\n")


def secret_of(process: Process) -> ClusterSecret:
    """Return the secret as one process reads it."""
    seams = process.seams
    return ClusterSecret(seams.disk, SECRET_FILE, seams.clock, seams.random)


def secret_outside(world: World) -> ClusterSecret:
    """Return the secret for a client outside of the world: an operator, and the replay of requests
    over once more.

    Its file is on a machine of its own: what becomes of a node's disk does not concern them.
    """
    view = Machine(world, "outside-secret", UNLIMITED).disk.view("operator")
    put_secret(view)
    return ClusterSecret(view, SECRET_FILE, VirtualClock(world.loop), world.random("outside"))
