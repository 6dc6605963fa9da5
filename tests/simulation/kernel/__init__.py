"""The simulation kernel: virtual time, network and disk from one seed.

Knows nothing of the product but its seams (``tidelog.runtime``). Scenarios that run the product on
it are one folder up.
"""

from tests.simulation.kernel.disk import UNLIMITED, DiskView, SimulatedDisk, SimulatedFile
from tests.simulation.kernel.faults import (
    Crash,
    DiskOperation,
    Fail,
    Plan,
    ProcessKilled,
    crash_at,
    fail_once,
)
from tests.simulation.kernel.loop import Deadlock, SimulatedLoop, SimulationError
from tests.simulation.kernel.network import Network, NetworkProfile
from tests.simulation.kernel.trace import Trace, fingerprint
from tests.simulation.kernel.world import Machine, Process, VirtualClock, World

__all__ = [
    "UNLIMITED",
    "Crash",
    "Deadlock",
    "DiskOperation",
    "DiskView",
    "Fail",
    "Machine",
    "Network",
    "NetworkProfile",
    "Plan",
    "Process",
    "ProcessKilled",
    "SimulatedDisk",
    "SimulatedFile",
    "SimulatedLoop",
    "SimulationError",
    "Trace",
    "VirtualClock",
    "World",
    "crash_at",
    "fail_once",
    "fingerprint",
]
