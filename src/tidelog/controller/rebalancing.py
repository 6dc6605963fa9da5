"""The timer of the preferred-leader rebalance.

Owns when a controller checks the balance. Which partitions move: see ``decisions.rebalance``.
"""

from __future__ import annotations

import asyncio
import logging

from tidelog.controller.controller import Controller
from tidelog.controller.decisions.rebalance import imbalanced, rebalance
from tidelog.controller.performing import NotActive

logger = logging.getLogger(__name__)


class Rebalancing:
    """Checks every ``leader.imbalance.check.interval.seconds`` while the controller is active."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def run(self) -> None:
        """Check again and again; return at once if ``auto.leader.rebalance.enable`` is false."""
        configs = self._controller.configs
        while configs.auto_leader_rebalance_enable:
            await asyncio.sleep(configs.leader_imbalance_check_interval_seconds)
            try:
                await self._check(configs.leader_imbalance_per_broker_percentage)
            except NotActive:
                logger.debug("another controller checks the balance now")
            except Exception:
                # A bug must not end the checks.
                logger.exception("the balance of leaders could not be checked")

    async def _check(self, percentage: int) -> None:
        controller = self._controller
        if not controller.active or not imbalanced(controller.cluster, percentage):
            return
        moved, _ = await controller.perform(lambda cluster: rebalance(cluster, percentage))
        logger.info(
            "leadership of %(partitions)d partitions moves to their preferred replicas",
            {"partitions": len(moved)},
        )
