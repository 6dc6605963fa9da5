"""The APIs that a controller serves: one handler per file, all of them in this list.

Owns the list only; the router derives the ApiVersions response from it. Handlers import
``controller.controller``, never ``controller.process``.
"""

from __future__ import annotations

from tidelog.controller.handlers import (
    allocate_producer_ids,
    alter_configs,
    alter_isr,
    alter_partition_reassignments,
    broker_heartbeat,
    broker_registration,
    create_partitions,
    create_topics,
    delete_topics,
    describe_cluster,
    describe_condition,
    describe_fences,
    describe_quorum,
    describe_topic_partitions,
    elect_leaders,
    envelope,
    incremental_alter_configs,
    list_partition_reassignments,
    report_fences,
    report_truncation,
    restored_store,
)
from tidelog.network.router import Handler

HANDLERS: tuple[Handler, ...] = (
    allocate_producer_ids.HANDLER,
    alter_configs.HANDLER,
    alter_isr.HANDLER,
    alter_partition_reassignments.HANDLER,
    broker_heartbeat.HANDLER,
    broker_registration.HANDLER,
    create_partitions.HANDLER,
    create_topics.HANDLER,
    delete_topics.HANDLER,
    describe_cluster.HANDLER,
    describe_condition.HANDLER,
    describe_fences.HANDLER,
    describe_quorum.HANDLER,
    describe_topic_partitions.HANDLER,
    elect_leaders.HANDLER,
    envelope.HANDLER,
    incremental_alter_configs.HANDLER,
    list_partition_reassignments.HANDLER,
    report_fences.HANDLER,
    report_truncation.HANDLER,
    restored_store.HANDLER,
)
