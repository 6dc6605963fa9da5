"""What a name that does not exist may mean: a similar name, or a pattern of another kind.

Owns these sentences and how the cluster is asked for its names. Not the other advice: see
`failures`.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Awaitable, Callable, Iterable
from difflib import get_close_matches

from tidelog.cli.failures import explain
from tidelog.cli.refusal import Failed
from tidelog.client.admin.groups import list_groups
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, GaveUp, Refused
from tidelog.model.errors import ErrorCode

ALIKE = 0.8
"""How alike a name has to be: billing and mailing, or orders and readers, are less than that."""

SHOWN = 3
"""The most names that a sentence has."""

_SUBJECT = re.compile(r"(?:topic|group) '(.+)'")
"""The subject of a refusal that concerns one name."""


async def topic_names(cluster: Cluster) -> list[str]:
    """Return the names of all topics. Raises ClientError."""
    return sorted((await cluster.all_topics()).topics)


async def group_names(cluster: Cluster) -> list[str]:
    """Return the ids of all groups. Raises ClientError."""
    return [group.group_id for group in await list_groups(cluster)]


_NAMES: dict[ErrorCode, Callable[[Cluster], Awaitable[list[str]]]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: topic_names,
    ErrorCode.GROUP_ID_NOT_FOUND: group_names,
}


async def with_suggestion(cluster: Cluster, error: ClientError) -> ClientError | Failed:
    """Return an error that names the topic or group that was probably meant, or ``error`` itself.

    The cluster is asked for its names only for an error that says that a name does not exist.
    """
    refused = error.__cause__ if isinstance(error, GaveUp) else error
    if not isinstance(refused, Refused) or refused.code not in _NAMES:
        return error
    subject = _SUBJECT.fullmatch(refused.subject)
    if subject is None:
        return error
    try:
        meant = did_you_mean(subject[1], await _NAMES[refused.code](cluster))
    except ClientError:
        # It was asked for a better sentence only.
        return error
    return Failed(explain(refused, instead=meant)) if meant else error


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a question with the name most like ``name``, which is none of them; "" if none is."""
    others = [other for other in names if other != name]
    near = get_close_matches(name, others, 1, cutoff=ALIKE)
    return f"did you mean {near[0]!r}?" if near else ""


def why_no_match(pattern: str, names: Iterable[str]) -> str:
    """Return what to do about a regular expression that matches no name."""
    matching = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
    if not matching:
        return "it is a regular expression, and has to match the whole name"
    shown = ", ".join(matching[:SHOWN]) + (" …" if len(matching) > SHOWN else "")
    meant = pattern.replace(".", r"\.").replace("*", ".*").replace("?", ".")
    return f"patterns are regular expressions: {meant!r} matches {shown}"
