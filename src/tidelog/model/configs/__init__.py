"""Configurations of processes and topics: definitions, resolution, typed values.

- A configuration is one row: a field of a dataclass that gives its name, text, type, default, check
  and typed value (`rows`). The rows of a topic are ``TopicConfigs`` in `topic`, those of a server
  in `broker`, `broker_log` and `broker_replication`; ``TOPIC`` and ``BROKER`` have them by name.
- `types` has what a definition consists of, and ``parse``, which returns a value or a refusal.
- `resolve` says which value is in effect, and checks changes (``resolve_topic``,
  ``describe_broker``, ``check_topic_configs``).
- `server` has the typed values of a process (``ServerConfigs``).
"""
