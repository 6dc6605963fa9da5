"""The place of a broker: ``broker.rack`` names its rack, or ``RACK/MACHINE``.

Owns that form. Not what follows from it: see ``planning`` for placement and
``replication.closest`` for reading. Several brokers of one machine have a machine in their rack:
``tidelog server --workers`` sets it (decision 0112). A broker without one counts as a machine of
its own.
"""

from __future__ import annotations

SEPARATOR = "/"

Machine = str | int
"""The machine of a broker: the whole ``RACK/MACHINE``, or the id of a broker that names none."""


def rack_of(text: str | None) -> str | None:
    """Return the rack in a ``broker.rack``; None for a broker without one."""
    if text is None:
        return None
    rack, separator, _ = text.rpartition(SEPARATOR)
    return rack if separator else text


def machine_of(broker: int, text: str | None) -> Machine:
    """Return the machine of a broker with this ``broker.rack``."""
    return text if text is not None and SEPARATOR in text else broker


def machine_at(broker: int, text: str | None, host: str | None) -> Machine:
    """Return the machine of a broker with this ``broker.rack`` and advertised host.

    Workers of a file without a rack have the name of their machine as their rack, which a zone of
    several machines may have, too: the host tells them apart (decisions 0121, 0131).
    """
    if text is None:
        return broker
    return text if SEPARATOR in text or host is None else within(text, host)


def is_within(text: str | None, rack: str) -> bool:
    """Whether a ``broker.rack`` is this rack or machine, or a machine of this rack."""
    return text is not None and rack in (text, rack_of(text))


def within(rack: str | None, machine: str) -> str:
    """Return the ``broker.rack`` of the brokers of a machine in a rack, or in none."""
    return machine if rack is None else f"{rack}{SEPARATOR}{machine}"
