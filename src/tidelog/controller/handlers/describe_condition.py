"""DescribeCondition v0 (ours): the problems of the cluster, as JSON, for ``tidelog doctor``.

- ``condition`` is the JSON of ``decisions.condition``: brokers, counts, and ``problems`` as
  sentences; with ``controller_id`` and the ``version`` of its code.
- ``subjects``: with "unclean", ``unclean`` has the losses of unclean elections (KIP-704); with
  "reassignments", ``reassignments`` has ``replicas``, ``original_replicas`` and ``target_replicas``
  of each partition that moves, or whose cancelled move left other replicas: then the targets are
  null. ListPartitionReassignments does not list that one, and no original replicas. With "resizes",
  ``resizes`` has the plan of each topic that is being resized, the partitions that no client has
  been shown, and the partitions and brokers that it waits for, with the time in ms (KIP-253), and
  ``unaware_writers`` has when writers without a partition count last wrote to a topic, and how many
  of their records are misplaced, at least; ``retired`` has what each retired partition holds, and
  the groups that have not committed past it, with the time at which their offsets expire. With
  "autoscaling", ``autoscaling`` has what would be
  decided now about each topic that is resized by its load, and why.
- ``subjects`` ["resize", TOPIC…]: only ``topics``, by name: what the resize of each waits for, in
  how many ms it is undone, the last undo, and writers without a count (KIP-253; null: no such
  topic). It costs little, so a command may ask for it repeatedly.
- ``subjects`` ["controller"]: this controller, also while it is not the active one, which is all
  that it says then: ``controller_id``, ``active``, and ``why`` it cannot be active, or null.
- Brokers forward it in an Envelope, so that a client may send it to any of them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from tidelog.controller.controller import Controller
from tidelog.controller.decisions.condition import condition
from tidelog.controller.decisions.losses import unclean_elections
from tidelog.controller.decisions.moves_condition import on_record
from tidelog.controller.decisions.resizes_condition import (
    plans_on_record,
    resize_of,
    unaware_on_record,
)
from tidelog.controller.decisions.retirees import retired_on_record
from tidelog.controller.serving import served_for_brokers
from tidelog.model.api_keys import ApiKey
from tidelog.model.work import Work
from tidelog.network.router import RequestContext
from tidelog.protocol import messages
from tidelog.version import __version__

CONTROLLER = "controller"
UNCLEAN = "unclean"
REASSIGNMENTS = "reassignments"
RESIZES, RESIZE = "resizes", "resize"
UNAWARE_WRITERS = "unaware_writers"
RETIRED = "retired"
AUTOSCALING = "autoscaling"


def handle(
    controller: Controller, request: messages.DescribeConditionRequest, _context: RequestContext
) -> Work[messages.DescribeConditionResponse]:
    about = {"controller_id": controller.configs.node_id, "version": __version__}
    if request.subjects[:1] == [RESIZE]:
        topics: dict[str, Any] = {}
        for name in dict.fromkeys(request.subjects[1:]):
            yield None
            topics[name] = _resize_of(controller, name)
        report = {**about, "role": "controller", "topics": topics}
        return messages.DescribeConditionResponse(condition=json.dumps(report))
    seen = yield from condition(controller.cluster, controller.resizes.silent)
    strangers, others = controller.founding.problems(), seen["problems"]
    # What follows from a lost store stands below it.
    is_lost = controller.cluster.went_back is not None
    problems = [*others, *strangers] if is_lost else [*strangers, *others]
    report = {**about, **seen, "problems": problems}
    if UNCLEAN in request.subjects:
        report[UNCLEAN] = unclean_elections(controller.cluster)
    if REASSIGNMENTS in request.subjects:
        report[REASSIGNMENTS] = yield from on_record(controller.cluster)
    if RESIZES in request.subjects:
        report[RESIZES] = plans_on_record(
            controller.cluster, controller.resizes.waited_ms(), controller.resizes.silent
        )
        report[UNAWARE_WRITERS] = unaware_on_record(controller.cluster)
        report[RETIRED] = retired_on_record(controller.cluster)
    if AUTOSCALING in request.subjects:
        report[AUTOSCALING] = yield from controller.autoscaling.on_record()
    return messages.DescribeConditionResponse(condition=json.dumps(report))


def _resize_of(controller: Controller, name: str) -> dict[str, Any] | None:
    now_ms = controller.seams.clock.wall_ms()
    resize = resize_of(controller.cluster, name, now_ms, controller.resizes.silent)
    if resize is None:
        return None
    undone = controller.resizes.last_undo(name)
    resize["undone_in_ms"] = None
    if resize["plan"] is not None and resize["plan"]["may_undo"]:
        resize["undone_in_ms"] = controller.resizes.undone_in_ms(name)
    resize["last_undo"] = None if undone is None else {"resize_epoch": undone[0], "why": undone[1]}
    return resize


IF_ACTIVE = served_for_brokers(ApiKey.DESCRIBE_CONDITION, handle)


async def _served(
    controller: Controller, request: messages.DescribeConditionRequest, context: RequestContext
) -> Any:
    if request.subjects != [CONTROLLER]:
        return await IF_ACTIVE.handle(controller, request, context)
    configs, why = controller.configs, None
    if not controller.store.reachable:
        why = f"the metadata store {configs.metadata_store} does not answer"
    report = {
        "role": "controller",
        "controller_id": configs.node_id,
        "active": controller.active,
        "why": why,
    }
    return messages.DescribeConditionResponse(condition=json.dumps(report))


HANDLER = replace(IF_ACTIVE, handle=_served)
