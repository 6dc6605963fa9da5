"""Every server configuration of Kafka works here, has no effect, or is refused with its reason."""

from __future__ import annotations

import pytest

from tests.support.repository import ROOT
from tidelog.model.configs.broker import BROKER
from tidelog.model.configs.kafka_names import IGNORED, REFUSED
from tidelog.model.configs.server import ServerConfigs, from_mapping, without_effect

NAMES = [
    line.split()[1]
    for line in (ROOT / "tests/fixtures/kafka_server_configs.txt").read_text().splitlines()
    if not line.startswith("#")
]


def sentences(**texts: str) -> list[str]:
    """The refusals of a file with these configurations."""
    named = {name.replace("__", "."): text for name, text in texts.items()}
    found = from_mapping({"node.id": "1", **named})
    return [] if isinstance(found, ServerConfigs) else [each.sentence for each in found]


def test_each_name_of_kafka_is_in_one_class() -> None:
    assert len(NAMES) == len(set(NAMES)) == 391
    classes = (set(BROKER), set(IGNORED), set(REFUSED))
    assert [name for name in NAMES if sum(name in each for each in classes) != 1] == []
    assert (set(IGNORED) | set(REFUSED)) - set(NAMES) == set()


@pytest.mark.parametrize("name", sorted(IGNORED))
def test_what_has_no_effect_is_accepted_and_named(name: str) -> None:
    assert isinstance(from_mapping({"node.id": "1", name: "7"}), ServerConfigs)
    assert without_effect({"node.id": "1", name: "7"}) == [f"{name} ({IGNORED[name]})"]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_served_is_refused_unless_it_is_off(name: str) -> None:
    for harmless in ("", *REFUSED[name].harmless):
        assert isinstance(from_mapping({"node.id": "1", name: harmless}), ServerConfigs)
    for full in (name, f"listener.name.external.{name}"):
        (refused,) = from_mapping({"node.id": "1", full: "on"})  # type: ignore[misc]
        assert refused.sentence == f"{full} is refused: {REFUSED[name].reason}."


@pytest.mark.parametrize("store", ["keystore", "truststore"])
@pytest.mark.parametrize("form", ["JKS", "PKCS12", "PEM"])
def test_the_form_of_a_store_alone_protects_nothing(store: str, form: str) -> None:
    for name in (f"ssl.{store}.type", f"listener.name.external.ssl.{store}.type"):
        assert sentences(**{name: form}) == []
    assert sentences(**{f"ssl.{store}.type": form, f"ssl.{store}.location": "/keys"}) != []


def test_the_default_is_the_default_in_capitals() -> None:
    assert sentences(**{"ssl.endpoint.identification.algorithm": "HTTPS"}) == []


def test_a_configuration_of_a_mechanism_of_a_listener_is_known() -> None:
    name = "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config"
    assert sentences(**{name: "x"}) == [f"{name} is refused: {REFUSED['sasl.jaas.config'].reason}."]


def test_voters_lead_to_the_configuration_that_works() -> None:
    (said,) = sentences(controller__quorum__voters="1@localhost:9093")
    assert "controller.quorum.bootstrap.servers=HOST:PORT, without ids" in said


def test_a_host_has_no_id_in_front() -> None:
    (said,) = sentences(controller__quorum__bootstrap__servers="1@localhost:9093")
    assert said == (
        "controller.quorum.bootstrap.servers: 1@localhost:9093 is not of the form HOST:PORT: "
        "leave out the id."
    )


def test_one_warning_names_all_with_one_reason() -> None:
    found = without_effect(
        {
            "share.coordinator.threads": "2",
            "group.coordinator.threads": "4",
            "num.network.threads": "9",
            "num.io.threads": BROKER["num.io.threads"].default or "",
            "log.dirs": "/data",
        }
    )
    assert found == [
        "share.coordinator.threads, group.coordinator.threads (a process has one event loop and a "
        "fixed number of threads)",
        "num.network.threads (this version does nothing that they set)",
    ]
