"""What a controller answers to AlterIsr, for tests that play it."""

from __future__ import annotations

from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages


def altered(
    request: messages.AlterIsrRequest, code: int = ErrorCode.NONE, *, newer: bool = True
) -> messages.AlterIsrResponse:
    """Answer each partition with a code and what was proposed, in a newer version or its own."""
    response = messages.AlterIsrResponse
    return response(
        topics=[
            response.TopicData(
                topic_name=topic.topic_name,
                partitions=[
                    response.PartitionData(
                        partition_index=part.partition_index,
                        error_code=code,
                        leader_id=1,
                        leader_epoch=part.leader_epoch,
                        isr=part.new_isr,
                        isr_version=part.isr_version + newer,
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
