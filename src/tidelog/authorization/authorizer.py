"""The decision: may this principal, from this host, do this with that resource?

Owns the order of its reasons. Not how rules are found: see `rules`; not which operation a request
needs: see the handlers.

| reason, in this order | decision |
|---|---|
| the principal is a process of the cluster, or one of ``super.users`` | allowed |
| a rule denies the operation, or ALL | denied |
| a rule allows the operation, one that implies it, or ALL | allowed |
| no rule is about the resource at all, and ``allow.everyone.if.no.acl.found`` | allowed |
| any other | denied |

DENY of an operation denies no other: with DESCRIBE denied and READ allowed, READ is allowed, as in
Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tidelog.authorization.rules import ALL_OPERATIONS, DENIED, Rules, effective
from tidelog.model.permissions import SUPPORTED, AclOperation, AclResourceType, bits
from tidelog.model.principals import PROCESS, Principal, parse

MOST_REMEMBERED = 1_000
"""Answers of ``may_any`` that are kept for one revision of the rules."""


def super_users(text: str) -> frozenset[Principal] | str:
    """Return the principals of ``super.users`` (``User:a;User:b``), or why it cannot be read."""
    found = set()
    for part in filter(None, (each.strip() for each in text.split(";"))):
        principal = parse(part)
        if principal is None:
            return "a principal of super.users must be TYPE:NAME; several are separated by ';'"
        found.add(principal)
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class Authorizer:
    """The decisions of one revision of the rules. Hosts are in their normal form
    (``permissions.normal_host``)."""

    rules: Rules
    super_users: frozenset[Principal] = frozenset()
    allows_without_rules: bool = False
    """``allow.everyone.if.no.acl.found``."""

    remembered: dict[tuple[Principal, str, AclOperation, AclResourceType], bool] = field(
        default_factory=dict, compare=False
    )
    """Answers of ``may_any``, the oldest first."""

    def __post_init__(self) -> None:
        if self.allows_without_rules:
            self.rules.index_patterns()

    def may(
        self,
        principal: Principal,
        host: str,
        operation: AclOperation,
        resource_type: AclResourceType,
        name: str,
    ) -> bool:
        """Whether a principal may do one operation with one resource."""
        return bool(self.allowed(principal, host, resource_type, name) >> operation & 1)

    def allowed(
        self, principal: Principal, host: str, resource_type: AclResourceType, name: str
    ) -> int:
        """Return the bits of all operations that a principal may do with a resource; a connection
        may keep them for as long as the rules are of one revision."""
        if self.may_all(principal):
            return ALL_OPERATIONS
        mask = 0
        for group in self.rules.groups(resource_type, str(principal), host):
            mask |= group.of(name)
        if not mask and self.allows_without_rules:
            return 0 if self.rules.has_pattern(resource_type, name) else ALL_OPERATIONS
        return effective(mask)

    def authorized_operations(
        self, principal: Principal, host: str, resource_type: AclResourceType, name: str
    ) -> int:
        """Return the bit field of a response (KIP-430): the operations that the type has."""
        supported = bits(SUPPORTED[resource_type])
        return self.allowed(principal, host, resource_type, name) & supported

    def may_any(
        self,
        principal: Principal,
        host: str,
        operation: AclOperation,
        resource_type: AclResourceType,
    ) -> bool:
        """Whether there is a name with which a principal may do an operation, as far as rules name
        some: WRITE on any topic permits an idempotent producer (KIP-679)."""
        if self.may_all(principal):
            return True
        key = principal, host, operation, resource_type
        found = self.remembered.get(key)
        if found is None:
            found = self._may_any(str(principal), host, operation, resource_type)
            if len(self.remembered) >= MOST_REMEMBERED:
                del self.remembered[next(iter(self.remembered))]
            self.remembered[key] = found
        return found

    def may_all(self, principal: Principal) -> bool:
        """Whether no rule is about a principal."""
        return principal == PROCESS or principal in self.super_users

    def _may_any(
        self, principal: str, host: str, operation: AclOperation, resource_type: AclResourceType
    ) -> bool:
        groups = self.rules.groups(resource_type, principal, host)
        of_all = _union(group.wildcard for group in groups)
        if of_all >> DENIED >> operation & 1:
            return False
        if self.allows_without_rules or of_all >> operation & 1:
            return True
        for group in groups:
            for name in group.literals:
                mask = _union(each.of(name) for each in groups)
                if effective(mask) >> operation & 1:
                    return True
            for prefix in group.prefixes:
                mask = _union(each.of_prefix(prefix) for each in groups)
                if effective(mask) >> operation & 1:
                    return True
        return False


def _union(masks: Iterable[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found
