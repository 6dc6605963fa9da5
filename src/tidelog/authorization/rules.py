"""Access rules as an index: (principal, host, resource) -> allowed and denied operations.

Owns what is found without a scan: a decision takes a few look-ups, whatever the count of rules. The
index of one revision never changes; a change makes another one, which shares what it does not
touch. Not what follows from the operations: see `authorizer`; not which rules may be added: see
`model.permissions`.

| look-up | rules that it finds |
|---|---|
| LITERAL, the name of the resource | those about this resource |
| LITERAL ``*`` | those about all resources of the type |
| PREFIXED | those whose name the resource's begins with (`prefixes`) |

Each is made in up to four groups: of the principal and of ``User:*``, on the host and on ``*``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tidelog.authorization.prefixes import Prefixes
from tidelog.model.permissions import (
    ANY_HOST,
    ANY_NAME,
    EVERYONE,
    IMPLIES,
    Acl,
    AclOperation,
    AclResourceType,
    PatternType,
    Permission,
    bits,
    normal_host,
)

DENIED = 32
"""A mask has allowed operations below this bit, and denied ones from it on."""

ALL_OPERATIONS = bits(tuple(x for x in AclOperation if x > AclOperation.ALL))
ALLOWED_BITS = (1 << DENIED) - 1

_Key = tuple[AclResourceType, str, str]
"""Type, principal and host of a group."""


class PrincipalRules:
    """The rules of one principal and host for one type of resource."""

    __slots__ = ("acls", "literals", "prefixes", "wildcard")

    def __init__(self, acls: frozenset[Acl]) -> None:
        self.acls = acls
        self.literals: dict[str, int] = {}
        prefixed: dict[str, int] = {}
        for acl in acls:
            names = self.literals if acl.pattern_type is PatternType.LITERAL else prefixed
            names[acl.name] = names.get(acl.name, 0) | _mask(acl)
        self.wildcard = self.literals.pop(ANY_NAME, 0)
        self.prefixes = Prefixes(prefixed)

    def of(self, name: str) -> int:
        """Return the mask of a resource."""
        return self.wildcard | self.literals.get(name, 0) | self.prefixes.match(name)

    def of_prefix(self, prefix: str) -> int:
        """Return the mask of every resource whose name begins with a prefix."""
        return self.wildcard | self.prefixes.match(prefix)


class Rules:
    """All access rules of one revision."""

    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        by_key: dict[_Key, set[Acl]] = {}
        for acl in acls:
            by_key.setdefault(_key_of(acl), set()).add(acl)
        self._groups = {key: PrincipalRules(frozenset(group)) for key, group in by_key.items()}
        self._patterns: dict[AclResourceType, PrincipalRules] = {}

    def __len__(self) -> int:
        return sum(len(group.acls) for group in self._groups.values())

    def __iter__(self) -> Iterator[Acl]:
        for group in self._groups.values():
            yield from group.acls

    def __contains__(self, acl: Acl) -> bool:
        group = self._groups.get(_key_of(acl))
        return group is not None and acl in group.acls

    def changed(self, added: Iterable[Acl], removed: Iterable[Acl]) -> Rules:
        """Return the rules after a change: ``removed`` first. Only the groups of the principals
        and hosts that it names are made again."""
        touched: dict[_Key, set[Acl]] = {}

        def group_of(acl: Acl) -> set[Acl]:
            key = _key_of(acl)
            if key not in touched:
                former = self._groups.get(key)
                touched[key] = set() if former is None else set(former.acls)
            return touched[key]

        for acl in removed:
            group_of(acl).discard(acl)
        for acl in added:
            group_of(acl).add(acl)
        later = Rules()
        later._groups = dict(self._groups)
        for key, acls in touched.items():
            later._groups.pop(key, None)
            if acls:
                later._groups[key] = PrincipalRules(frozenset(acls))
        return later

    def groups(
        self, resource_type: AclResourceType, principal: str, host: str
    ) -> list[PrincipalRules]:
        """Return the rules of a type that are about a principal on a host."""
        found = []
        for who in (principal, EVERYONE):
            for where in (host, ANY_HOST):
                group = self._groups.get((resource_type, who, where))
                if group is not None:
                    found.append(group)
        return found

    def index_patterns(self) -> None:
        """Prepare ``has_pattern``: it needs an index of its own, over all rules."""
        found: dict[AclResourceType, set[Acl]] = {}
        for acl in self:
            pattern = acl._replace(principal=EVERYONE, host=ANY_HOST, **_SOME)
            found.setdefault(acl.resource_type, set()).add(pattern)
        self._patterns = {kind: PrincipalRules(frozenset(acls)) for kind, acls in found.items()}

    def has_pattern(self, resource_type: AclResourceType, name: str) -> bool:
        """Whether there is any rule about a resource, whatever its principal and host."""
        patterns = self._patterns.get(resource_type)
        return patterns is not None and bool(patterns.of(name))


_SOME: dict[str, Any] = {"operation": AclOperation.ALL, "permission": Permission.ALLOW}


def _key_of(acl: Acl) -> _Key:
    return acl.resource_type, acl.principal, normal_host(acl.host)


def _mask(acl: Acl) -> int:
    if acl.operation is AclOperation.ALL:
        mask = ALL_OPERATIONS
    elif acl.permission is Permission.ALLOW:
        mask = bits((acl.operation, *IMPLIES.get(acl.operation, ())))
    else:
        mask = bits((acl.operation,))
    return mask if acl.permission is Permission.ALLOW else mask << DENIED


def effective(mask: int) -> int:
    """Return the operations of a mask that are allowed and not denied."""
    return mask & ALLOWED_BITS & ~(mask >> DENIED)
