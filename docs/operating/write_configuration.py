"""The page of configurations, `configuration.md`, written from the tables in `tidelog.model`.

Run it after a change of the tables: `make docs`. A tidy test
compares the page with the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tidelog.model.configs.broker import SECTIONS
from tidelog.model.configs.kafka_names import IGNORED, PLUG_INS, REFUSED, UNUSED, NotServed
from tidelog.model.configs.topic import TOPIC
from tidelog.model.configs.types import ConfigDefinition, Update

PAGE = Path(__file__).with_name("configuration.md")

HEAD = """# Configuration

Written by `write_configuration.py` from the tables of the code; do not edit.

A process reads one file in the syntax of Kafka's `server.properties` (`tidelog server FILE`).
Names and defaults are Kafka's. A start refuses an unknown name, an impossible value and an
impossible combination (for instance a controller without a listener of its own) with a line that
names it. The smallest file is `node.id=1`: one process that is broker and controller. For groups on
one broker add `offsets.topic.replication.factor=1` and `transaction.state.log.replication.factor=1`
([start.md](start.md)).

These defaults differ from Kafka's: `broker.session.timeout.ms` and `broker.heartbeat.interval.ms`
(a dead leader is replaced sooner), `queued.max.request.bytes` (memory has a limit), `log.dir`,
`process.roles` and `controller.listener.names` (a one-line file starts a whole node).

*Without effect* marks a configuration that Kafka's files and tools use and that tidelog accepts and
ignores.

## Which value applies

A topic uses its own value first. Otherwise it uses the broker's configurations in the column "asked
next" in turn. For each of them the first of these counts:

1. the broker's dynamic value (`tidelog configs --entity-type brokers --entity-name N`);
2. the dynamic default of all brokers (`--entity-default`);
3. the file;
4. the default.

`tidelog configs --describe --all` shows each value with its source.

A broker's configuration is *dynamic* if the last column says so: per broker, or for all of them.
The others need a restart. A change of a topic's configuration is in effect when the response
arrives.
"""

KAFKAS = """
## Kafka's other configurations

Each server configuration of Kafka 4.3, and of 3.9 with ZooKeeper, is above or in one of these
lists. Those of the first have no effect here: a start names them in one warning, with the reason.
A configuration of a topic that is not above is refused.

"""

UNUSED_HEAD = """
Those of this one belong to SASL or an authorizer: what would use them is refused. So they have no
effect: the same warning names them, unless the value is empty or Kafka's default.

"""

PLUG_INS_HEAD = """
Plug-ins of Kafka read names of their own from its file. Those that begin so have no effect; any
other name that Kafka has not is refused, because it may be a misspelled one.

"""

REFUSED_HEAD = """
Those of this one would give a user something else than the file says. A start refuses a value
other than Kafka's default, with the reason. Two depend on the rest of the file:
`controller.quorum.voters` is accepted where the only voter is the controller of the same process,
and the old names of addresses where the configuration that replaced them is set, too.

"""


def page() -> str:
    """Return the whole page."""
    parts = [HEAD, "\n## Topics\n\n", _topics()]
    for title, rows in SECTIONS.items():
        parts += [f"\n## Server: {title.lower()}\n\n", _section(rows)]
    prefixes = {f"{prefix}*": reason for prefix, reason in PLUG_INS.items()}
    parts += [KAFKAS, *_by_reason(IGNORED), UNUSED_HEAD, *_by_reason(_reasons(UNUSED))]
    parts += [PLUG_INS_HEAD, *_by_reason(prefixes)]
    return "".join([*parts, REFUSED_HEAD, *_by_reason(_reasons(REFUSED))])


def _reasons(rows: Mapping[str, NotServed]) -> dict[str, str]:
    return {name: each.reason for name, each in rows.items()}


def _by_reason(reasons: Mapping[str, str]) -> list[str]:
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(f"`{name}`")
    return [f"- {reason}: {', '.join(found)}\n" for reason, found in names.items()]


def _topics() -> str:
    lines = ["| name | type | default | allowed | asked next | what it is |", "|---|" + "---|" * 5]
    for row in TOPIC.values():
        asked = ", ".join(f"`{synonym.name}`" for synonym in row.synonyms)
        lines.append(f"| {_cells(row)} | {asked} | {_text(row)} |")
    return "\n".join(lines) + "\n"


def _section(rows: tuple[ConfigDefinition, ...]) -> str:
    lines = ["| name | type | default | allowed | what it is | dynamic |", "|---|" + "---|" * 5]
    dynamic = {Update.READ_ONLY: "", Update.PER_BROKER: "per broker", Update.CLUSTER_WIDE: "yes"}
    for row in rows:
        lines.append(f"| {_cells(row)} | {_text(row)} | {dynamic[row.update]} |")  # noqa: PERF401
    return "\n".join(lines) + "\n"


def _cells(row: ConfigDefinition) -> str:
    default = "" if row.default is None else f"`{row.default}`" if row.default else "empty"
    allowed = "" if row.check is None else str(row.check)
    return f"`{row.name}` | {row.type.name.lower()} | {default} | {allowed}"


def _text(row: ConfigDefinition) -> str:
    mark = " *Without effect.*" if row.without_effect else ""
    return row.documentation.replace("|", "\\|") + mark


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
