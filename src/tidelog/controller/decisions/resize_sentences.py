"""What a resize waits for, or why it was undone: the words for operators. Pure.

Not when it waits or is undone: see ``resizing``; nor the words of one obstacle: see ``obstacles``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.controller.decisions.decision import RequestRefusal
from tidelog.controller.decisions.problems import names_of_brokers
from tidelog.controller.decisions.resizing import Advanced
from tidelog.metadata.records import ResizePlan, ResizeStep
from tidelog.model.errors import ErrorCode
from tidelog.model.wording import named


def why_waiting(plan: ResizePlan, missing: Sequence[int]) -> str:
    """Return a clause that says what a plan waits for, or waited for."""
    what = "seal" if plan.step is ResizeStep.SEAL else "fence"
    plural = "s" if len(missing) > 1 else ""
    return f"no leader has reported a committed {what} of partition{plural} {named(missing)}"


def why_undone(name: str, plan: ResizePlan, undone: Advanced, limit_ms: int) -> RequestRefusal:
    """Return the refusal of a resize that was undone: the cause, and the remedy of that cause.

    ``limit_ms`` is ``resize.timeout.ms``.
    """
    began = f"The resize of the topic {name} to {plan.to_count} partitions was undone"
    kept = f"It has {plan.from_count} partitions as before"
    obstacle = undone.obstacle
    if obstacle is not None:
        sentence = f"{began}, because {obstacle.what}. {kept}: {obstacle.remedy}."
        return RequestRefusal(obstacle.error, sentence)
    brokers = names_of_brokers(undone.brokers)
    sentence = (
        f"{began}: {why_waiting(plan, undone.missing)} within resize.timeout.ms ({limit_ms}). "
        f"{kept}: see why {brokers} did not (its log, tidelog doctor), then send the request again."
    )
    return RequestRefusal(ErrorCode.NOT_ENOUGH_REPLICAS, sentence)
