"""The security protocol of a client: its settings -> the keys of its connections, or None.

Owns what a client accepts of Kafka's ``security.protocol`` and ``ssl.*``. Not which names go
together: see `model.configs.tls`; not the files: see `runtime.tls_files`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.client.errors import ConfigurationRefused
from tidelog.model.configs import kafka_names, tls
from tidelog.runtime.tls_files import TlsFiles, TlsRefused

PLAINTEXT = "PLAINTEXT"

OF_SERVERS = ("ssl.client.auth", "ssl.principal.mapping.rules")
"""Names that say something about a listener alone."""

NAMES = tuple(name for name in tls.NAMES if name not in OF_SERVERS)
"""Kafka's names of TLS that a client takes."""


def keys_of(protocol: str, texts: Mapping[str, str]) -> TlsFiles | None:
    """Return the keys of a client with this protocol; ``texts`` has its ``ssl.*`` by Kafka's names.

    None for PLAINTEXT, with which they have no effect, as in Kafka. Raises ConfigurationRefused.
    """
    if protocol == PLAINTEXT:
        return None
    if protocol != tls.SSL:
        raise ConfigurationRefused(
            f"security.protocol {protocol!r} is not supported: use PLAINTEXT or SSL"
        )
    accepted = (*NAMES, *OF_SERVERS, *tls.CLASSES)
    for name in texts:
        if name not in accepted and name not in kafka_names.IGNORED:
            raise ConfigurationRefused(f"{name} is unknown: those of TLS are {', '.join(NAMES)}")
    parsed = tls.parse({name: texts[name] for name in accepted if name in texts})
    if isinstance(parsed, str):
        raise ConfigurationRefused(parsed)
    try:
        return TlsFiles(parsed)
    except TlsRefused as error:
        raise ConfigurationRefused(str(error)) from error
