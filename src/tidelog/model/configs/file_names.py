"""The names in a process's file: which of them end the start, and which have no effect.

Owns the sentences about names, and what a name of Kafka's gets because of the others in its file.
Not the classes of Kafka's names: see `kafka_names`; not the values of ours: see `server`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from tidelog.model.configs import kafka_names, tls
from tidelog.model.configs.broker import BROKER
from tidelog.model.configs.types import InvalidConfig, nearest, shown, unknown

VOTERS = "controller.quorum.voters"
BOOTSTRAP = "controller.quorum.bootstrap.servers"

_SUGGESTED = (*BROKER, *kafka_names.IGNORED)
"""The names of which another one may be a misspelling: a refused one would help no user."""

_SAID_BY = {
    "host.name": "listeners",
    "port": "listeners",
    "advertised.host.name": "advertised.listeners",
    "advertised.port": "advertised.listeners",
}
"""Old names, and the one that Kafka reads instead of them where a file has both."""


def refused_names(texts: Mapping[str, str]) -> Iterator[InvalidConfig]:
    """Yield a refusal for the names that neither this version nor Kafka has, and for those of
    Kafka's whose values this version cannot serve: one for each reason."""
    reasons: dict[str, list[str]] = {}
    strangers: dict[str, list[str]] = {}
    for name, text in texts.items():
        if name in BROKER or _needless(name, texts) is not None:
            continue
        if (reason := _voters(text) if name == VOTERS else kafka_names.refusal(name, text)) is None:
            if kafka_names.is_known(name):
                continue
            if nearest(name, _SUGGESTED) is not None:
                yield unknown(name, _SUGGESTED, "server")
            else:
                strangers.setdefault(name.partition(".")[0], []).append(name)
        else:
            reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        verb = "is" if len(names) == 1 else "are"
        yield InvalidConfig(names[0], f"{', '.join(names)} {verb} refused: {reason}.")
    for names in strangers.values():
        all_names = ", ".join(shown(name) for name in names)
        one, it, of = ("", "it", "this name") if len(names) == 1 else ("s", "them", "these names")
        clause = f"neither this version nor Kafka has {of}; leave {it} out"
        yield InvalidConfig(names[0], f"Unknown server configuration{one} {all_names}: {clause}.")


def without_effect(texts: Mapping[str, str]) -> list[str]:
    """Return a clause for each reason why configurations of a file have no effect, with them.

    Several names of one plug-in, which has dozens, are named by their prefix.
    """
    plug_ins = Counter(kafka_names.plug_in(name) for name in texts)
    reasons: dict[str, list[str]] = {}
    for name, text in texts.items():
        if (definition := BROKER.get(name)) is None or name in tls.NAMES:
            reason = _needless(name, texts) or kafka_names.idle(name, text)
        elif definition.without_effect and text != definition.default:
            reason = "this version does nothing that they set"
        else:
            reason = None
        if reason is not None:
            prefix = kafka_names.plug_in(name)
            named = name if prefix is None or plug_ins[prefix] == 1 else f"{prefix}*"
            names = reasons.setdefault(reason, [])
            names.extend([named] if named not in names else [])
    return [f"{', '.join(names)} ({reason})" for reason, names in reasons.items()]


def _needless(name: str, texts: Mapping[str, str]) -> str | None:
    """Return why a name says nothing beside the others of its file; None where it may."""
    instead = _SAID_BY.get(name)
    if instead is not None and texts.get(instead, "").strip() and texts[name].strip():
        return f"{instead} is set"
    if name == VOTERS and _is_the_voter(texts):
        return kafka_names.NO_QUORUM
    return _without_tls(name, texts)


def _without_tls(name: str, texts: Mapping[str, str]) -> str | None:
    """Return why a configuration of TLS says nothing; None where a listener may use it."""
    listener, own = tls.override_of(name) or ("", name)
    if own not in (*tls.NAMES, *tls.CLASSES):
        return None
    with_tls = tls.listeners_with_tls(texts)
    if listener in with_tls or (with_tls and not listener):
        return None
    default = BROKER[own].default if own in BROKER else ""
    if texts[name].strip() in ("", default):
        return None
    return f"no listener {listener} uses SSL" if listener and with_tls else "no listener uses SSL"


def _is_the_voter(texts: Mapping[str, str]) -> bool:
    """Whether the one voter that a file names is the controller in its own process."""
    roles = texts.get("process.roles", BROKER["process.roles"].default or "")
    node = texts.get("node.id", texts.get("broker.id", "")).strip()
    voter, at, _ = texts[VOTERS].strip().partition("@")
    is_controller = "controller" in (role.strip() for role in roles.split(","))
    return bool(at) and "," not in texts[VOTERS] and voter.strip() == node and is_controller


def _voters(text: str) -> str | None:
    """Return why voters are refused, with the configuration that has their addresses."""
    if not text.strip():
        return None
    named = [voter.strip().partition("@")[2] for voter in text.split(",")]
    addresses = ",".join(named) if all(named) else "HOST:PORT"
    return f"there is no quorum of voters: say {BOOTSTRAP}={addresses}, without ids"
