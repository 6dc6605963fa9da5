"""Arguments that all public clients share: addresses, time-outs, names that are not supported.

Owns their defaults and checks. Not those of one kind of client: see ``producer_configs``. The names
are Kafka's settings in snake case, with the names of kafka-python and aiokafka where these differ.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from tidelog.client.cluster import ClusterSettings
from tidelog.client.errors import ConfigurationRefused
from tidelog.runtime.backoff import Backoff

if TYPE_CHECKING:
    from tidelog.runtime.tls_files import TlsFiles

_numbers = itertools.count(1)

MOST_MS = 2**31 - 1
MOST = 2**63 - 1
"""Kafka's int and long."""

NOT_SUPPORTED = {
    "sasl_mechanism": "clients are not authenticated yet",
    "ssl_context": "say ssl_truststore_location and ssl_keystore_location",
    "ssl_cafile": "say ssl_truststore_location, with ssl_truststore_type='PEM'",
    "ssl_certfile": "say ssl_keystore_location, with ssl_keystore_type='PEM'",
    "ssl_keyfile": "say ssl_keystore_location: one PEM file has the key and its certificates",
}
"""Kafka's settings that must not be ignored silently."""


class ClusterConfigs(TypedDict, total=False):
    """What every client accepts. Times are in milliseconds."""

    bootstrap_servers: str | Sequence[str]
    client_id: str | None
    request_timeout_ms: int
    default_api_timeout_ms: int
    metadata_max_age_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    socket_connection_setup_timeout_ms: int
    security_protocol: str
    ssl_keystore_type: str
    ssl_keystore_location: str | None
    ssl_keystore_password: str | None
    ssl_key_password: str | None
    ssl_keystore_key: str | None
    ssl_keystore_certificate_chain: str | None
    ssl_truststore_type: str
    ssl_truststore_location: str | None
    ssl_truststore_password: str | None
    ssl_truststore_certificates: str | None
    ssl_endpoint_identification_algorithm: str
    ssl_enabled_protocols: str
    ssl_cipher_suites: str


SECURITY = tuple(
    name for name in ClusterConfigs.__annotations__ if name.startswith(("security_", "ssl_"))
)
"""The settings of TLS."""


def check_names(configs: Mapping[str, Any], kind: type[Any], names: Collection[str]) -> None:
    """Raise ConfigurationRefused for a name that is not known, with the nearest one."""
    for name in configs:
        if name in names:
            continue
        what = f"{kind.__name__} has no setting {name!r}"
        if name in NOT_SUPPORTED:
            if configs[name] is None:
                continue
            raise ConfigurationRefused(f"{name} is not supported: {NOT_SUPPORTED[name]}")
        near = difflib.get_close_matches(name, names, 1)
        raise ConfigurationRefused(f"{what}: did you mean {near[0]}?" if near else what)


def whole(configs: Mapping[str, Any], name: str, default: int, least: int = 0) -> int:
    """Return a setting that is an integer of at least ``least``. Raises ConfigurationRefused."""
    value = configs.get(name, default)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigurationRefused(f"{name} must be an integer of at least {least}, not {value!r}")
    most = MOST_MS if name.endswith("_ms") else MOST
    if value > most:
        raise ConfigurationRefused(f"{name} must be at most {most}, not {value}")
    return value


def flag(configs: Mapping[str, Any], name: str, default: bool) -> bool:
    """Return a setting that is True or False. Raises ConfigurationRefused."""
    value = configs.get(name, default)
    if not isinstance(value, bool):
        raise ConfigurationRefused(f"{name} must be True or False, not {value!r}")
    return value


def function(configs: Mapping[str, Any], name: str) -> Any:
    """Return a setting that is a function, or None. Raises ConfigurationRefused."""
    value = configs.get(name)
    if value is not None and not callable(value):
        raise ConfigurationRefused(f"{name} must be a function, not {value!r}")
    return value


def text(configs: Mapping[str, Any], name: str) -> str | None:
    """Return a setting that is a string, or None. Raises ConfigurationRefused."""
    value = configs.get(name)
    if value is not None and not isinstance(value, str):
        raise ConfigurationRefused(f"{name} must be a str, not {value!r}")
    return value


def cluster_settings(configs: ClusterConfigs, role: str) -> ClusterSettings:
    """Return the settings of a client's connections. Raises ConfigurationRefused.

    ``role`` is in the client id of a client without one: ``tidelog-producer-1``.
    """
    defaults = ClusterSettings()
    first_ms = whole(configs, "retry_backoff_ms", 100)
    most_ms = whole(configs, "retry_backoff_max_ms", 1000)
    return ClusterSettings(
        client_id=text(configs, "client_id") or f"tidelog-{role}-{next(_numbers)}",
        request_timeout_ms=whole(configs, "request_timeout_ms", defaults.request_timeout_ms, 1),
        connect_timeout_ms=whole(
            configs, "socket_connection_setup_timeout_ms", defaults.connect_timeout_ms, 1
        ),
        default_api_timeout_ms=whole(
            configs, "default_api_timeout_ms", defaults.default_api_timeout_ms, 1
        ),
        metadata_max_age_ms=whole(configs, "metadata_max_age_ms", defaults.metadata_max_age_ms),
        backoff=Backoff(min(first_ms, most_ms), most_ms),
        tls=keys(configs),
    )


def keys(configs: Mapping[str, Any]) -> TlsFiles | None:
    """Return the keys of a client's connections, None for PLAINTEXT. Raises ConfigurationRefused.

    ``configs`` may have others beside those of ``SECURITY``."""
    protocol = text(configs, "security_protocol") or "PLAINTEXT"
    if protocol == "PLAINTEXT":
        return None
    # Here: a client without TLS imports none of it.
    from tidelog.client.encrypting import NAMES, keys_of

    given = {name: text(configs, name.replace(".", "_")) for name in NAMES}
    return keys_of(protocol, {name: value for name, value in given.items() if value is not None})


def bootstrap_of(configs: ClusterConfigs) -> str | Sequence[str]:
    """Return the bootstrap addresses, ``localhost:9092`` by default; ``Cluster`` checks them."""
    return configs.get("bootstrap_servers", "localhost:9092")
