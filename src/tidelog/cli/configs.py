"""The ``tidelog configs`` command: shows and changes dynamic configurations, as kafka-configs does.

Owns the options, the parsing of --add-config and the output. Not the requests: see
``client.admin.configs``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import click

from tidelog.cli.connecting import (
    CONTROLLER,
    EXISTING_FILE,
    CommonOptions,
    cluster_options,
    exactly_one_of,
    json_option,
    run,
    text_of,
)
from tidelog.cli.name_options import topic_option
from tidelog.cli.output import print_json, print_table, say
from tidelog.cli.refusal import Failed, WrongUsage
from tidelog.client.admin.configs import (
    DYNAMIC,
    DescribedConfig,
    Source,
    alter_configs,
    describe_configs,
)
from tidelog.client.cluster import Cluster
from tidelog.model.admin_requests import ResourceType
from tidelog.model.configs.properties import parse_properties

_KINDS = {"topics": ResourceType.TOPIC, "brokers": ResourceType.BROKER}


@click.command("configs")
@cluster_options
@click.option("--describe", is_flag=True, help="Show configurations.")
@click.option("--alter", is_flag=True, help="Change configurations.")
@click.option("--all", is_flag=True, help="With --describe: also defaults and static values.")
@click.option("--entity-type", type=click.Choice(list(_KINDS)), help="Topics or brokers.")
@click.option("--entity-name", help="A topic's name or a broker's id.")
@click.option("--entity-default", is_flag=True, help="The default of all brokers.")
@topic_option(help="Short for --entity-type topics --entity-name TOPIC.")
@click.option("--broker", help="Short for --entity-type brokers --entity-name ID.")
@click.option("--broker-defaults", is_flag=True, help="Short for the default of all brokers.")
@click.option(
    "--add-config", metavar="NAME=VALUE,...", help="Set; write [a,b] for values with commas."
)
@click.option(
    "--add-config-file",
    type=EXISTING_FILE,
    help="Set the configurations of this properties file.",
)
@click.option("--delete-config", metavar="NAME,...", help="Return to the default.")
@json_option
def command(asked: CommonOptions, **flags: Any) -> None:
    """Show and change dynamic configurations."""
    action = exactly_one_of(flags, "--describe", "--alter")
    kind, names = _entities(flags)
    if action == "--describe":
        run(
            asked,
            lambda cluster: _describe(cluster, kind, names, flags),
        )
        return
    if len(names) != 1:
        raise WrongUsage("--alter needs --entity-name")
    added = parse_add_config(flags["add_config"])
    if flags["add_config_file"] is not None:
        added = {**parse_properties(text_of(flags["add_config_file"])), **added}
    deleted = [name.strip() for name in (flags["delete_config"] or "").split(",") if name.strip()]
    if not added and not deleted:
        raise WrongUsage("--alter needs --add-config, --add-config-file or --delete-config")
    both = sorted(set(added) & set(deleted))
    if both:
        raise WrongUsage(f"{', '.join(both)} cannot be both set and deleted")
    run(
        asked,
        lambda cluster: _alter(cluster, kind, names[0], added, deleted, flags["as_json"]),
        awaited=CONTROLLER,
    )


def _entities(flags: dict[str, Any]) -> tuple[ResourceType, list[str]]:
    """Return the resource type and the names that the options select; no name selects all."""
    given = [
        (ResourceType.TOPIC, flags["topic"]),
        (ResourceType.BROKER, flags["broker"]),
        (ResourceType.BROKER, "" if flags["broker_defaults"] else None),
    ]
    short = [(kind, name) for kind, name in given if name is not None]
    if short and (flags["entity_type"] or len(short) > 1):
        raise WrongUsage("name one entity: --entity-type, --topic, --broker or --broker-defaults")
    if short:
        return short[0][0], [short[0][1]]
    if not flags["entity_type"]:
        raise WrongUsage("name an entity: --entity-type, --topic or --broker")
    kind = _KINDS[flags["entity_type"]]
    if flags["entity_default"]:
        if kind is not ResourceType.BROKER:
            raise WrongUsage("--entity-default goes with --entity-type brokers")
        return kind, [""]
    return kind, [flags["entity_name"]] if flags["entity_name"] is not None else []


async def _describe(
    cluster: Cluster, kind: ResourceType, names: list[str], flags: dict[str, Any]
) -> None:
    if not names:
        if kind is ResourceType.TOPIC:
            names = sorted((await cluster.all_topics()).topics)
        else:
            names = [str(node_id) for node_id in sorted(cluster.view.brokers)]
    shown = {}
    for name in names:
        entries = await describe_configs(cluster, kind, name)
        if not flags["all"]:
            entries = [entry for entry in entries if _is_own(entry, kind, name)]
        shown[name] = sorted(entries, key=lambda entry: entry.name)
    if flags["as_json"]:
        print_json(
            [
                {
                    "entity_type": kind.name.lower(),
                    "entity_name": name,
                    "configs": [_as_json(entry) for entry in entries],
                }
                for name, entries in shown.items()
            ]
        )
        return
    for number, (name, entries) in enumerate(shown.items()):
        what = f"{kind.name.lower()} {name}" if name else "all brokers (default)"
        scope = "All" if flags["all"] else "Dynamic"
        if number:
            say("")
        say(f"{scope} configs for {what}:" if entries else f"No dynamic configs for {what}.")
        if entries:
            print_entries(
                [
                    entry.name,
                    "(hidden)" if entry.sensitive else entry.value,
                    entry.source.name,
                    ", ".join(f"{s.name}:{n}={v}" for s, n, v in entry.synonyms),
                ]
                for entry in entries
            )


def print_entries(rows: Iterable[Sequence[str | None]]) -> None:
    """Print configurations: name, value, source and synonyms of each."""
    columns = ["Name", "Value", "Source", "Synonyms"]
    print_table(columns, rows, spare=["Synonyms", "Source"], folds=["Value", "Synonyms"])


def _is_own(entry: DescribedConfig, kind: ResourceType, name: str) -> bool:
    """Whether this configuration was set for this resource itself."""
    if kind is ResourceType.TOPIC:
        return entry.source.name == "DYNAMIC_TOPIC_CONFIG"
    return entry.source in DYNAMIC


def _source_of(kind: ResourceType, name: str) -> Source:
    """Return the source of a value that was set for this resource itself."""
    if kind is ResourceType.TOPIC:
        return Source.DYNAMIC_TOPIC_CONFIG
    return Source.DYNAMIC_BROKER_CONFIG if name else Source.DYNAMIC_DEFAULT_BROKER_CONFIG


def _as_json(entry: DescribedConfig) -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": entry.value,
        "source": entry.source.name,
        "read_only": entry.read_only,
        "sensitive": entry.sensitive,
        "synonyms": [
            {"source": source.name, "name": name, "value": value}
            for source, name, value in entry.synonyms
        ],
    }


async def _alter(
    cluster: Cluster,
    kind: ResourceType,
    name: str,
    added: dict[str, str],
    deleted: list[str],
    as_json: bool,
) -> None:
    what = f"{kind.name.lower()} {name}" if name else "all brokers (default)"
    if deleted:
        # As Kafka's tool does: brokers accept the deletion of a name that is not set.
        entries = await describe_configs(cluster, kind, name)
        own = {entry.name for entry in entries if entry.source is _source_of(kind, name)}
        missing = [name for name in deleted if name not in own]
        if missing:
            raise Failed(
                f"{', '.join(missing)} cannot be deleted: not set for {what}; "
                "nothing was changed; `tidelog configs --describe` shows what is set"
            )
    await alter_configs(cluster, kind, name, set_values=added, delete=deleted)
    if as_json:
        print_json({"entity_name": name, "set": added, "deleted": deleted})
    else:
        say(f"Completed updating config for {what}.")


def parse_add_config(text: str | None) -> dict[str, str]:
    """Parse ``a=1,b=[x,y],c=`` into names and values. Raises WrongUsage."""
    configs: dict[str, str] = {}
    for piece in _split_outside_brackets(text or ""):
        name, equals, value = piece.partition("=")
        if not equals or not name.strip():
            raise WrongUsage(f"--add-config takes name=value,..., not {piece!r}")
        value = value.strip()
        if value.startswith("[") and value.endswith("]"):
            value = value[1:-1]
        configs[name.strip()] = value
    return configs


def _split_outside_brackets(text: str) -> list[str]:
    pieces = [""]
    depth = 0
    for character in text:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and depth <= 0:
            pieces.append("")
        else:
            pieces[-1] += character
    if depth > 0:
        raise WrongUsage("--add-config: a [ is not closed")
    return [piece.strip() for piece in pieces if piece.strip()]
