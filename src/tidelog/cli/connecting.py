"""The options that name a command's cluster, and the run of a command against it.

Owns ``--bootstrap-server``, ``--command-config``, ``--json`` and the notice on stderr that a call
takes long. Not the requests: see the commands.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tidelog.cli.client_names import check_unused
from tidelog.cli.refusal import WrongUsage
from tidelog.cli.suggestions import with_suggestion
from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.errors import ClientError, ClusterUnreachable, ConfigurationRefused
from tidelog.client.metadata import parse_bootstrap
from tidelog.model.configs.properties import parse_properties
from tidelog.runtime.cluster_secret import ClusterSecret, SecretRefused
from tidelog.runtime.seams import Seams

if TYPE_CHECKING:
    from tidelog.runtime.tls_files import TlsFiles

Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])

OPEN_TIMEOUT_MS = 3_000
"""How long a command tries to reach a cluster before it fails."""

CONNECT_TIMEOUT_MS = 5_000
API_TIMEOUT_MS = 30_000
NOTICE_AFTER_S = 2.0
SHOWN_EVERY_S = 1.0

_TIMES = {
    "request.timeout.ms": "request_timeout_ms",
    "default.api.timeout.ms": "default_api_timeout_ms",
    "socket.connection.setup.timeout.ms": "connect_timeout_ms",
    "metadata.max.age.ms": "metadata_max_age_ms",
}

SECRET_FILE = "cluster.secret.file"
"""The file of the cluster secret, needed by requests that only operators may send."""

SERVERS = "bootstrap.servers"
SERVER_VARIABLE = "TIDELOG_BOOTSTRAP_SERVER"
"""The environment variable that names the cluster when no option does."""

CONTROLLER, BROKERS = "the controller", "the brokers"
"""What a command that changes the cluster waits for, and one that reads, as ``awaited`` of
``run``."""

DEFAULT_SERVERS = "localhost:9092"
"""The cluster when nothing names one."""
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
"""The type of an option that names a file to read."""

PROTOCOL, SSL_PREFIX = "security.protocol", "ssl."

CLIENT_PROPERTIES = ("client.id", *_TIMES, PROTOCOL, SERVERS, SECRET_FILE)
"""The client configurations that every command takes, beside those of TLS."""


def cluster_options(function: Function) -> Callable[..., Any]:
    """Add ``--bootstrap-server`` and ``--command-config``; the command gets CommonOptions."""
    return _cluster_options(function)


def client_options(kind: str) -> Callable[[Function], Callable[..., Any]]:
    """As ``cluster_options``, plus the older names of Kafka's console clients, and properties.

    For ``kind`` "consumer": ``--consumer.config`` is ``--command-config``; ``--command-property``
    and ``--consumer-property`` are one (the parameter ``client_property``).
    """

    def add(function: Function) -> Callable[..., Any]:
        function = click.option(
            "--command-property",
            f"--{kind}-property",
            "client_property",
            multiple=True,
            metavar="NAME=VALUE",
            help=f"A configuration of the {kind}; overrides --command-config.",
        )(function)
        return _cluster_options(function, f"--{kind}.config")

    return add


def _cluster_options(function: Callable[..., Any], *older_names: str) -> Callable[..., Any]:
    @wraps(function)
    def with_options(
        *given: Any, bootstrap_server: str | None, command_config: Path | None, **flags: Any
    ) -> Any:
        return function(*given, CommonOptions.of(click.get_current_context()), **flags)

    configured = click.option(
        "--command-config",
        *older_names,
        "command_config",
        type=EXISTING_FILE,
        help="Properties file for the client (client.id, request.timeout.ms …).",
    )(with_options)
    return click.option(
        "-b",
        "--bootstrap-server",
        metavar="HOST:PORT,...",
        help=f"Some brokers of the cluster. Default: bootstrap.servers of --command-config, then "
        f"the environment variable {SERVER_VARIABLE}, then {DEFAULT_SERVERS}.",
    )(configured)


def json_option(function: Function) -> Function:
    """Add ``--json`` to a command."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(
        function
    )


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """The common options of a command: its cluster, and the format of its output."""

    bootstrap_server: str | None
    command_config: Path | None
    as_json: bool

    @staticmethod
    def of(context: click.Context) -> CommonOptions:
        """Return the options given to a command, or before its name to its parent command."""
        given: dict[str, Any] = {}
        for level in (context, context.parent):
            if level is not None:
                given = {**level.params, **{name: v for name, v in given.items() if v}}
        return CommonOptions(
            given.get("bootstrap_server"),
            given.get("command_config"),
            bool(given.get("as_json")),
        )


def subcommand_options(function: Function) -> Callable[..., Any]:
    """Add ``--bootstrap-server``, ``--command-config`` and ``--json`` to a command and its parent.

    `tidelog doctor --json replicas` means the same as `tidelog doctor replicas --json`.
    """
    return _cluster_options(json_option(function))


def client_properties(
    file: Path | None, pairs: tuple[str, ...]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the properties of a file and of ``--command-property``: the common ones, and the rest.

    The option overrides the file. Raises WrongUsage.
    """
    given = parse_properties(text_of(file)) if file else {}
    given.update(key_values(pairs, "--command-property"))
    names = [x for x in given if x in CLIENT_PROPERTIES or x.startswith(SSL_PREFIX)]
    common = {name: given.pop(name) for name in names}
    return common, given


def settings_from(properties: Mapping[str, str]) -> ClusterSettings:
    """Return client settings from Kafka's names. Raises WrongUsage for one that is unknown."""
    settings: dict[str, Any] = {
        "connect_timeout_ms": CONNECT_TIMEOUT_MS,
        "default_api_timeout_ms": API_TIMEOUT_MS,
    }
    for name, value in properties.items():
        if name == "client.id":
            settings["client_id"] = value
        elif name in _TIMES:
            if not value.isdecimal():
                raise WrongUsage(f"{name} must be a number of milliseconds, not {value!r}")
            settings[_TIMES[name]] = int(value)
        elif name == PROTOCOL:
            settings["tls"] = _keys(value, properties)
        elif name == SECRET_FILE:
            settings["secret"] = _secret_in(value)
        elif name != SERVERS:
            check_unused(name, value, "client", CLIENT_PROPERTIES)
    return ClusterSettings(**settings)


def _keys(protocol: str, properties: Mapping[str, str]) -> TlsFiles | None:
    """Return the keys of connections with this security protocol. Raises WrongUsage."""
    # Here: a command without TLS imports none of it.
    from tidelog.client.encrypting import keys_of

    given = {name: text for name, text in properties.items() if name.startswith(SSL_PREFIX)}
    try:
        return keys_of(protocol, given)
    except ConfigurationRefused as error:
        raise WrongUsage(str(error)) from None


def _secret_in(path: str) -> ClusterSecret:
    """Return the secret of a file. Raises WrongUsage."""
    # Only servers write an audit log: a command prints the reason in its error line.
    logging.getLogger("tidelog.audit").addHandler(logging.NullHandler())
    seams = Seams()
    try:
        return ClusterSecret(seams.disk, path, seams.clock, seams.random)
    except SecretRefused as error:
        raise WrongUsage(str(error)) from None


def run(
    asked: CommonOptions,
    work: Callable[[Cluster], Awaitable[Result]],
    *,
    properties: Mapping[str, str] | None = None,
    progress: Callable[[], str] | None = None,
    says_once: Callable[[], bool] | None = None,
    knowing: bool = True,
    awaited: str = BROKERS,
    at_most_s: float | None = None,
) -> Result:
    """Open the cluster, run ``work`` with it, close it; return the result of ``work``.

    ``knowing=False``: do not fetch metadata first. ``work`` fetches them itself, or needs none:
    starting brokers have none until their controller sends them.

    After two seconds a line on stderr says that the command waits: for ``bootstrap`` until a broker
    has answered; then for ``awaited``, and ``at_most_s`` for how long (default: the time of a
    call), or the text of ``progress`` (no line for ""). On a terminal the line counts and ends with
    the command. Elsewhere each is one line, that of ``progress`` once ``says_once`` holds, if ever.
    ``properties`` override those of ``--command-config``.
    """
    file = asked.command_config
    given = parse_properties(text_of(file)) if file else {}
    given.update(properties or {})
    settings = settings_from(given)
    named = _servers(asked.bootstrap_server, given)
    bootstrap = named or DEFAULT_SERVERS

    async def whole() -> Result:
        cluster = Cluster(bootstrap, settings)

        def waits() -> str:
            limit_s = at_most_s or settings.default_api_timeout_ms / 1000
            return f"waiting for {awaited}, through {bootstrap}, at most {limit_s:g} s"

        shown = _Notice(f"waiting for {bootstrap}, which does not respond")
        try:
            if knowing:
                await cluster.open(OPEN_TIMEOUT_MS)
            if progress is None:
                shown.say_instead(waits, lambda: True)
            else:
                shown.say_instead(progress, says_once or (lambda: False))
            return await work(cluster)
        except ClientError as error:
            raise await with_suggestion(cluster, error) from error.__cause__
        finally:
            shown.end()
            await cluster.close()

    try:
        return asyncio.run(whole())
    except ClusterUnreachable as error:
        if named:
            raise
        raise ClusterUnreachable(
            f"{error}; {bootstrap} is the default, for neither --bootstrap-server nor "
            f"{SERVER_VARIABLE} is set"
        ) from error


def _servers(flag: str | None, properties: Mapping[str, str]) -> str | None:
    """Return the addresses of the option, the properties or the environment, in this order; None
    when no one names any."""
    sources = {
        "--bootstrap-server": flag,
        SERVERS: properties.get(SERVERS),
        SERVER_VARIABLE: os.environ.get(SERVER_VARIABLE),
    }
    for source, servers in sources.items():
        if servers:
            try:
                parse_bootstrap(servers)
            except ClientError as error:
                raise WrongUsage(f"{source}: {error}") from None
            return servers
    return None


class _Notice:
    """What a command waits for, said after two seconds: see ``run``. It begins with one text and
    goes on with another, whose seconds begin with the command, too."""

    def __init__(self, text: str) -> None:
        self._text: Callable[[], str] = lambda: text
        self._says_once: Callable[[], bool] = lambda: True
        self._is_said = False
        """Whether the line of this text is printed where stderr is no terminal."""
        self._shown = False
        self._is_terminal = sys.stderr.isatty()
        self._loop = asyncio.get_running_loop()
        self._begun = self._loop.time()
        self._timer = self._loop.call_later(NOTICE_AFTER_S, self._show)

    def say_instead(self, text: Callable[[], str], says_once: Callable[[], bool]) -> None:
        """Go on with another text."""
        self._text, self._says_once, self._is_said = text, says_once, False

    def _show(self) -> None:
        text = self._text()
        if self._is_terminal:
            if text or self._shown:
                self._shown = bool(text)
                passed = self._loop.time() - self._begun
                line = f"{text} … {passed:.0f} s" if text else ""
                print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
        elif text and not self._is_said and self._says_once():
            self._is_said = True
            print(f"{text} …", file=sys.stderr, flush=True)
        self._timer = self._loop.call_later(SHOWN_EVERY_S, self._show)

    def end(self) -> None:
        self._timer.cancel()
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def text_of(file: Path) -> str:
    """Return the text of a file that an option names. Raises WrongUsage when it is not UTF-8."""
    try:
        # With or without a byte order mark, which some editors write.
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise WrongUsage(f"{file} is not valid UTF-8: {error.reason}") from None


def key_values(pairs: tuple[str, ...], option: str) -> dict[str, str]:
    """Parse repeated ``key=value`` arguments. Raises WrongUsage."""
    values: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise WrongUsage(f"{option} takes key=value, not {pair!r}")
        values[key.strip()] = value
    return values


def exactly_one(chosen: Mapping[str, bool]) -> str:
    """Return the one flag that is set. Raises WrongUsage when none or several are."""
    given = [flag for flag, is_set in chosen.items() if is_set]
    if len(given) != 1:
        what = f"not {' and '.join(given)} together" if given else "none was given"
        raise WrongUsage(f"give exactly one of {', '.join(chosen)}: {what}")
    return given[0]


def exactly_one_of(flags: Mapping[str, Any], *options: str) -> str:
    """As ``exactly_one``, of options by their names: one is set if it is a flag or has a value."""
    values = {option: flags[parameter_of(option)] for option in options}
    return exactly_one({x: y is not None and y is not False for x, y in values.items()})


def check_goes_with(
    flags: Mapping[str, Any], action: str, goes_with: Mapping[str, Collection[str]]
) -> None:
    """Raise WrongUsage for an option that is given and does not go with the action.

    ``goes_with``: the actions with which an option goes.
    """
    for option, actions in goes_with.items():
        if flags[parameter_of(option)] and action not in actions:
            raise WrongUsage(f"{option} goes with {' or '.join(actions)}, not with {action}")


def parameter_of(option: str) -> str:
    """Return the name under which click passes the value of a long option."""
    return option.removeprefix("--").replace("-", "_")
