"""DescribeFences v0 (ours): what removed partitions left; a broker forwards this part of a request.

- With ``include_former`` each topic has ``former``, from ``/tidelog/topics/T``: of each index the
  newest incarnation that was removed. Without it, and of an unknown topic, nothing.
- ``partitions`` is empty: fences and seals are in the logs of leaders, and the broker that forwards
  has asked them.
"""

from __future__ import annotations

from tidelog.controller.controller import Controller
from tidelog.controller.decisions.removal import former_partitions
from tidelog.controller.serving import served_for_brokers
from tidelog.model.api_keys import ApiKey
from tidelog.network.router import RequestContext
from tidelog.protocol import messages


async def handle(
    controller: Controller, request: messages.DescribeFencesRequest, context: RequestContext
) -> messages.DescribeFencesResponse:
    response = messages.DescribeFencesResponse
    topics = []
    for name in dict.fromkeys(topic.topic for topic in request.topics):
        removed = former_partitions(controller.cluster, name) if request.include_former else {}
        former = [
            response.Former(
                index, one.partition_epoch, one.data_end, one.end_offset, one.resize_epoch
            )
            for index, one in sorted(removed.items())
        ]
        topics.append(response.Topic(name, [], former))
    return response(topics=topics)


HANDLER = served_for_brokers(ApiKey.DESCRIBE_FENCES, handle)
