"""Which versions of an API are served, and listed for new connections, by what the cluster offers.

Owns the rule for versions that only transactions need. Pure. Not routes: see ``router``.

| transactions are | such versions are served | and listed |
|---|---|---|
| offered | yes | yes |
| not offered | no | no |
| not known to be: None | yes: handlers answer with errors that clients retry | where the API has \
no others: the connection lasts longer than that, and clients end without an API that they need |
"""

from __future__ import annotations


def served(versions: range, with_transactions: range, offered: bool | None) -> range:
    """Return the versions of an API that are served now."""
    if offered is False:
        return _without(versions, with_transactions)
    return versions


def listed(versions: range, with_transactions: range, offered: bool | None) -> range:
    """Return the versions of an API that a new connection may use."""
    if offered:
        return versions
    others = _without(versions, with_transactions)
    return versions if offered is None and not others else others


def _without(versions: range, held: range) -> range:
    if not held:
        return versions
    if held.start == versions.start:
        return range(held.stop, versions.stop)
    return range(versions.start, held.start)
