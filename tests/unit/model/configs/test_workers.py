"""The configurations of the workers of a machine: what is derived from one file, and refusals."""

from __future__ import annotations

import re

import pytest

from tests.support.repository import ROOT
from tidelog.model.configs.properties import parse_properties
from tidelog.model.configs.server import ServerConfigs
from tidelog.model.configs.types import InvalidConfig
from tidelog.model.configs.workers import of_workers

BOTH = """
node.id=100
listeners=PLAINTEXT://:9092,CONTROLLER://:9100
log.dirs=/one,/two/
metadata.store=sqlite:/one/metadata
metrics_port=9101
"""

BROKER = """
process.roles=broker
broker.id=7
listeners=PLAINTEXT://10.0.0.1:9092,OUTSIDE://10.0.0.1:9192
advertised.listeners=PLAINTEXT://10.0.0.1:9092,OUTSIDE://example.org:19192
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,OUTSIDE:PLAINTEXT
controller.quorum.bootstrap.servers=a:1,b:2
log.dir=/data
cordoned.log.dirs=/data
"""


def made(text: str, workers: int, host_name: str = "host-7") -> list[ServerConfigs]:
    found = of_workers(parse_properties(text), workers, host_name)
    assert all(isinstance(one, ServerConfigs) for one in found), found
    return [one for one in found if isinstance(one, ServerConfigs)]


def refused(text: str, workers: int, host_name: str = "host-7") -> list[str]:
    found = of_workers(parse_properties(text), workers, host_name)
    return [one.sentence for one in found if isinstance(one, InvalidConfig)]


def addresses(listeners: object) -> str:
    assert isinstance(listeners, tuple)
    return ",".join(map(str, listeners))


def test_the_first_worker_is_the_process_of_the_file_and_the_others_are_brokers_beside_it() -> None:
    first, *others = made(BOTH, 3)
    assert (first.node_id, first.process_roles) == (100, {"broker", "controller"})
    assert addresses(first.listeners) == "PLAINTEXT://:9092,CONTROLLER://:9100"
    assert (first.log_dirs, first.metadata_store) == (("/one", "/two/"), "sqlite:/one/metadata")
    assert [one.node_id for one in others] == [101, 102]
    assert [addresses(one.listeners) for one in others] == [
        "PLAINTEXT://:9093",
        "PLAINTEXT://:9094",
    ]
    assert others[1].log_dirs == ("/one/worker.2", "/two/worker.2")
    for one in others:
        assert one.process_roles == {"broker"}
        assert one.controller_quorum_bootstrap_servers == (("127.0.0.1", 9100),)
    for one in (first, *others):
        assert (one.broker_rack, one.metrics_address) == ("host-7", ("127.0.0.1", 0))


def test_a_file_of_a_broker_has_its_controllers_and_every_listener_moves() -> None:
    second = made(BROKER, 2)[1]
    assert (second.node_id, second.broker_id) == (8, None)
    assert addresses(second.listeners) == "PLAINTEXT://10.0.0.1:9093,OUTSIDE://10.0.0.1:9193"
    outside = "PLAINTEXT://10.0.0.1:9093,OUTSIDE://example.org:19193"
    assert addresses(second.advertised_listeners) == outside
    assert second.controller_quorum_bootstrap_servers == (("a", 1), ("b", 2))
    assert second.log_dirs == second.cordoned_log_dirs == ("/data/worker.1",)


@pytest.mark.parametrize(
    ("own", "bootstrap"),
    [
        ("[fd00::7]:9100", ("fd00::7", 9100)),
        ("[::]:9100", ("::1", 9100)),
        ("0.0.0.0:9100", ("127.0.0.1", 9100)),
        ("host-7:9100", ("host-7", 9100)),
    ],
)
def test_addresses_of_ipv6_keep_their_brackets(own: str, bootstrap: tuple[str, int]) -> None:
    text = BOTH.replace("PLAINTEXT://:9092", "PLAINTEXT://[fd00::7]:9092")
    text += "advertised.listeners=PLAINTEXT://[fd00::8]:19092\n"
    first, second = made(text.replace("CONTROLLER://:9100", f"CONTROLLER://{own}"), 2)
    assert addresses(first.broker_listeners) == "PLAINTEXT://[fd00::7]:9092"
    assert addresses(second.listeners) == "PLAINTEXT://[fd00::7]:9093"
    assert second.listeners[0].host == "fd00::7"
    assert addresses(second.advertised_listeners) == "PLAINTEXT://[fd00::8]:19093"
    assert second.controller_quorum_bootstrap_servers == (bootstrap,)


@pytest.mark.parametrize(
    ("rack", "expected"), [("", "host-7"), ("a", "a/host-7"), ("a/m", "a/m"), ("dc/a/m", "dc/a/m")]
)
def test_the_machine_is_within_the_rack_of_the_operator(rack: str, expected: str) -> None:
    text = f"{BOTH}broker.rack={rack}\n" if rack else BOTH
    assert {one.broker_rack for one in made(text, 2)} == {expected}


@pytest.mark.parametrize(
    ("text", "workers", "host_name", "said"),
    [
        (
            BOTH.replace("9100", "9094"),
            3,
            "host-7",
            "listeners: PLAINTEXT takes the ports 9092 to 9094, one for each worker, and "
            "CONTROLLER 9094: move CONTROLLER out of their way.",
        ),
        (
            BOTH.replace("9101", "9093"),
            2,
            "host-7",
            "metrics_port: PLAINTEXT takes the ports 9092 to 9093, one for each worker, and "
            "metrics_port 9093: move metrics_port out of their way.",
        ),
        (
            BROKER.replace(":9192", ":9093"),
            2,
            "host-7",
            "listeners: PLAINTEXT takes the ports 9092 to 9093, one for each worker, and "
            "OUTSIDE 9093 to 9094: move OUTSIDE out of their way.",
        ),
        (
            BOTH.replace("9092", "65535"),
            2,
            "host-7",
            "listeners: PLAINTEXT takes one port for each worker, 65535 to 65536: the highest is "
            "65535.",
        ),
        (
            BROKER.replace("19192", "65535"),
            2,
            "host-7",
            "advertised.listeners: OUTSIDE takes one port for each worker, 65535 to 65536: the "
            "highest is 65535.",
        ),
        (
            BOTH.replace("9100", "0"),
            2,
            "host-7",
            "listeners: give CONTROLLER a port: the other workers must know it.",
        ),
        (
            "node.id=1\nprocess.roles=controller",
            2,
            "host-7",
            "process.roles is controller: --workers starts brokers; leave it out.",
        ),
        (
            BOTH,
            2,
            "localhost",
            "broker.rack: this machine is called localhost, as others are, too: say RACK/MACHINE.",
        ),
        (f"{BOTH}broker.rack=a/\n", 2, "x", "broker.rack: a/ is not RACK or RACK/MACHINE."),
        (
            BOTH.replace("=100", "=2147483647"),
            2,
            "host-7",
            "node.id: worker 1 would have 2147483648.",
        ),
    ],
)
def test_a_refusal_is_one_line(text: str, workers: int, host_name: str, said: str) -> None:
    assert refused(text, workers, host_name) == [said]


def test_the_file_of_the_page_is_accepted() -> None:
    text = (ROOT / "docs/operating/cores.md").read_text()
    whole, several = re.findall(r"^```properties\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (ready,) = re.findall(r"^ready workers=4 nodes=(\S+) bootstrap=(\S+) ", text, re.MULTILINE)
    workers = made(whole, 4)
    assert ",".join(str(one.node_id) for one in workers) == ready[0]
    clients = [f"{one.host}:{one.port}" for worker in workers for one in worker.broker_listeners]
    assert ",".join(clients) == ready[1]
    # Several controllers: their lines in place of those of the same keys.
    keys = {line.partition("=")[0] for line in several.splitlines()}
    kept = [line for line in whole.splitlines() if line.partition("=")[0] not in keys]
    workers = made("\n".join([*kept, several]), 4)
    assert [one.process_roles for one in workers][:2] == [{"broker", "controller"}, {"broker"}]


def test_a_file_that_is_refused_is_refused_as_for_one_process() -> None:
    assert refused("node.id=x", 2) and refused("listeners=nothing", 2)


def test_any_free_port_and_a_machine_in_the_file_are_accepted() -> None:
    text = BOTH.replace("9092", "0") + "broker.rack=a/m\n"
    assert [addresses(one.broker_listeners) for one in made(text, 2, "localhost")] == [
        "PLAINTEXT://:0"
    ] * 2
