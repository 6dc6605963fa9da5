"""The APIs that a controller serves, one handler per file, and what its listeners allow.

Owns the two lists only; ApiVersions is derived from the first.
"""

from __future__ import annotations

from tidelog.controller.handlers import (
    allocate_producer_ids,
    alter_configs,
    alter_isr,
    broker_heartbeat,
    broker_registration,
    create_partitions,
    create_topics,
    delete_topics,
    describe_cluster,
    describe_condition,
    elect_leaders,
    envelope,
    incremental_alter_configs,
    report_truncation,
    restored_store,
)
from tidelog.model.configs.server import ServerConfigs
from tidelog.network.limits import Limits
from tidelog.network.router import Router


def make_router() -> Router:
    """Return the registry of a controller's listener."""
    return Router(
        [
            allocate_producer_ids.HANDLER,
            alter_configs.HANDLER,
            alter_isr.HANDLER,
            broker_heartbeat.HANDLER,
            broker_registration.HANDLER,
            create_partitions.HANDLER,
            create_topics.HANDLER,
            delete_topics.HANDLER,
            describe_cluster.HANDLER,
            describe_condition.HANDLER,
            elect_leaders.HANDLER,
            envelope.HANDLER,
            incremental_alter_configs.HANDLER,
            report_truncation.HANDLER,
            restored_store.HANDLER,
        ]
    )


def limits_of(configs: ServerConfigs) -> Limits:
    """Return what the listeners of a controller allow."""
    return Limits(
        max_request_bytes=configs.socket_request_max_bytes,
        queued_request_bytes=configs.queued_max_request_bytes,
        frame_s=configs.request_timeout_ms / 1000,
        max_connections=configs.max_connections,
        max_connections_per_ip=configs.max_connections_per_ip,
        # Sessions are judged by heartbeats; a standby's brokers may be silent for long.
        max_idle_s=-1,
        backlog=configs.socket_listen_backlog_size,
    )
