"""`tidelog` that ends as by kill -9 at the point that TIDELOG_DIES_AT names.

`cut`: what is lost is noted, and the log is about to be cut. `report`: it is cut, and the report is
about to be sent.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from tidelog.broker.data_loss.loss_reports import LossReports
from tidelog.cli.main import main
from tidelog.storage.log.partition_log import PartitionLog


def die(*_: Any) -> Any:
    """End without any further step."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


if os.environ["TIDELOG_DIES_AT"] == "cut":
    PartitionLog.truncation = die  # type: ignore[method-assign]
else:
    LossReports._ask = die  # type: ignore[method-assign]
main()
