"""The moves of a plan that another program wrote to ``/admin/reassign_partitions``.

Owns when its rows begin: in slices, when the node appears and at the start of this controller. What
its content means: see ``decisions.reassignment_node``. The node is removed with the change that
ends its work: see ``controller``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tidelog.controller.decisions import reassignment_node, soft_state
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.decision import Decision
from tidelog.controller.decisions.reassignment_node import PATH
from tidelog.controller.decisions.reassignments import Answered, Asked, cost_of_moves
from tidelog.controller.performing import Performer
from tidelog.controller.slices import perform_in_slices

logger = logging.getLogger(__name__)

MOST_NAMED = 100
"""The most invalid rows of a plan that are logged one by one: a node may have some 10,000."""


async def begin_plan(performer: Performer) -> None:
    """Begin the rows that are due, log the invalid ones, and remove a node without work.

    Raises NotActive.
    """
    plan = performer.cluster.plan
    if performer.cluster.went_back is not None:
        return
    _name(plan.problems)
    plan.problems.clear()
    if plan.due:
        asked = list(reassignment_node.due(performer.cluster))

        def decide(
            cluster: ClusterState, part: Sequence[Sequence[Asked]]
        ) -> Decision[list[Answered]]:
            return reassignment_node.begin(cluster, part)

        def applied(answers: Sequence[Answered]) -> None:
            soft_state.note_begun(performer.cluster, answers)

        answers, _ = await perform_in_slices(
            performer,
            asked,
            lambda element: cost_of_moves(performer.cluster, element),
            decide,
            applied,
        )
        refused = [f"{tp}: {refusal.sentence}" for tp, refusal in answers if refusal]
        _name(refused)
        logger.info(
            "the plan in %(node)s has begun: %(begun)d partitions, %(refused)d refused",
            {"node": PATH, "begun": len(answers) - len(refused), "refused": len(refused)},
        )
    if reassignment_node.is_outdated(performer.cluster):
        # The change itself does nothing: the node is brought up to date after every change.
        await performer.perform(lambda _: Decision(None))


def _name(sentences: Sequence[str]) -> None:
    for sentence in sentences[:MOST_NAMED]:
        logger.error("a row of %(node)s is ignored: %(why)s", {"node": PATH, "why": sentence})
    if len(sentences) > MOST_NAMED:
        others = len(sentences) - MOST_NAMED
        logger.error("%(others)d other rows of %(node)s too", {"node": PATH, "others": others})
