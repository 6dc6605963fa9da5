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
  of their records are misplaced, at least.
- Brokers forward it in an Envelope, so that a client may send it to any of them.
"""

from __future__ import annotations

import json

from tidelog.controller.controller import Controller
from tidelog.controller.decisions.condition import condition_steps
from tidelog.controller.decisions.losses import unclean_elections
from tidelog.controller.decisions.moves_condition import on_record
from tidelog.controller.decisions.resizes_condition import plans_on_record, unaware_on_record
from tidelog.controller.serving import served
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import RequestContext, Scope
from tidelog.protocol import messages
from tidelog.runtime.turns import in_turns
from tidelog.version import __version__

UNCLEAN = "unclean"
REASSIGNMENTS = "reassignments"
RESIZES = "resizes"
UNAWARE_WRITERS = "unaware_writers"


async def serve(
    controller: Controller, request: messages.DescribeConditionRequest, _context: RequestContext
) -> messages.DescribeConditionResponse:
    steps = condition_steps(controller.cluster)
    found = {
        "controller_id": controller.configs.node_id,
        "version": __version__,
        **await in_turns(steps, controller.seams.clock),
    }
    if UNCLEAN in request.subjects:
        found[UNCLEAN] = unclean_elections(controller.cluster)
    if REASSIGNMENTS in request.subjects:
        found[REASSIGNMENTS] = await in_turns(on_record(controller.cluster), controller.seams.clock)
    if RESIZES in request.subjects:
        found[RESIZES] = plans_on_record(controller.cluster, controller.resizes.waited_ms())
        found[UNAWARE_WRITERS] = unaware_on_record(controller.cluster)
    return messages.DescribeConditionResponse(condition=json.dumps(found))


def refuse_all(
    _request: object, error: ErrorCode, sentence: str
) -> messages.DescribeConditionResponse:
    """Respond with one error."""
    return messages.DescribeConditionResponse(error_code=error, error_message=sentence)


HANDLER = served(ApiKey.DESCRIBE_CONDITION, range(1), Scope.CLIENT, serve, refuse_all)
