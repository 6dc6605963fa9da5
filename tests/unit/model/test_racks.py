"""The place of a broker: its rack, and its machine within the rack."""

from __future__ import annotations

import pytest

from tidelog.model.racks import is_within, machine_at, machine_of, rack_of, within


@pytest.mark.parametrize(
    ("text", "rack", "machine"),
    [
        (None, None, 7),
        ("a", "a", 7),
        ("a/m", "a", "a/m"),
        ("dc/a/m", "dc/a", "dc/a/m"),
        ("/m", "", "/m"),
    ],
)
def test_a_broker_is_in_a_rack_and_on_a_machine(
    text: str | None, rack: str | None, machine: str | int
) -> None:
    assert rack_of(text) == rack
    assert machine_of(7, text) == machine


def test_brokers_of_a_machine_name_it_within_their_rack() -> None:
    assert within(None, "m") == "m"
    assert within("a", "m") == "a/m"
    assert (rack_of("a/m"), machine_of(7, "a/m")) == ("a", "a/m")


def test_a_consumer_names_a_rack_or_a_machine_of_it() -> None:
    assert is_within("a/m", "a") and is_within("a/m", "a/m") and is_within("a", "a")
    assert not is_within("a/m", "m") and not is_within("a", "a/m") and not is_within(None, "a")


def test_brokers_of_one_text_and_one_host_are_one_machine() -> None:
    """A file without a rack gives its workers the machine's name as their rack."""
    assert machine_at(1, "host-7", "10.0.0.7") == machine_at(2, "host-7", "10.0.0.7")
    assert machine_at(1, "zone-a", "10.0.0.7") != machine_at(2, "zone-a", "10.0.0.8")
    # The machine in the text counts, whatever its addresses.
    assert machine_at(1, "a/m", "10.0.0.7") == machine_at(2, "a/m", "10.0.0.8") == "a/m"
    assert machine_at(1, "a/m", "10.0.0.7") != machine_at(2, "a/n", "10.0.0.7")
    # Without a text each broker is its own, also on one host; without a host the text counts.
    assert machine_at(1, None, "10.0.0.7") != machine_at(2, None, "10.0.0.7")
    assert machine_at(1, "a", None) == machine_at(2, "a", None)
