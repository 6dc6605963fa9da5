"""Configurations of processes and topics: definitions, resolution, typed values.

- `broker` has the table of a server's definitions (``BROKER``, ``SECTIONS``), `topic` that of a
  topic's (``TOPIC``).
- `types` has what a definition consists of, and ``parse``, which returns a value or a refusal.
- `resolve` says which value is in effect, and checks changes (``resolve_topic``,
  ``describe_broker``, ``check_topic_configs``).
- `server` has the typed values of a process (``ServerConfigs``), `topic_values` those of a topic
  (``TopicConfigs``).
"""
