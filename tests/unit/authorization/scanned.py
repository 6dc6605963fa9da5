"""Access rules by a scan of all of them: the rules of Kafka's documentation, as plainly as can be.

Owns the second opinion on `tidelog.authorization`; they share no index, mask or table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidelog.model.permissions import Acl, AclOperation, AclResourceType, PatternType, Permission

Op = AclOperation

IMPLIED_BY = {
    Op.DESCRIBE: {Op.DESCRIBE, Op.READ, Op.WRITE, Op.DELETE, Op.ALTER},
    Op.DESCRIBE_CONFIGS: {Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS},
}


def is_about(acl: Acl, resource_type: AclResourceType, name: str) -> bool:
    if acl.resource_type != resource_type:
        return False
    if acl.pattern_type is PatternType.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in (name, "*")


def is_of(acl: Acl, principal: str, host: str) -> bool:
    return acl.principal in (principal, "User:*") and acl.host in (host, "*")


def may(
    acls: Iterable[Acl],
    principal: str,
    host: str,
    operation: AclOperation,
    resource_type: AclResourceType,
    name: str,
    without_rules: bool,
) -> bool:
    """The decision for a principal that is no super user."""
    found = [acl for acl in acls if is_about(acl, resource_type, name)]
    if not found:
        return without_rules
    own = [acl for acl in found if is_of(acl, principal, host)]
    if any(x.permission is Permission.DENY and x.operation in (operation, Op.ALL) for x in own):
        return False
    enough = {Op.ALL, *IMPLIED_BY.get(operation, {operation})}
    return any(x.permission is Permission.ALLOW and x.operation in enough for x in own)


def may_any(
    acls: Iterable[Acl],
    principal: str,
    host: str,
    operation: AclOperation,
    resource_type: AclResourceType,
    without_rules: bool,
) -> bool:
    """KIP-679 as its text has it: an allowed pattern that no denied one dominates. For operations
    that no other implies."""
    own = [
        acl
        for acl in acls
        if acl.resource_type == resource_type
        and is_of(acl, principal, host)
        and acl.operation in (operation, Op.ALL)
    ]
    denied = [acl for acl in own if acl.permission is Permission.DENY]
    allowed = [acl for acl in own if acl.permission is Permission.ALLOW]
    if any(x.pattern_type is PatternType.LITERAL and x.name == "*" for x in denied):
        return False
    if without_rules:
        return True
    return any(not any(_dominates(deny, allow) for deny in denied) for allow in allowed)


def _dominates(deny: Acl, allow: Acl) -> bool:
    if allow.pattern_type is PatternType.LITERAL and allow.name == "*":
        return False
    if deny.pattern_type is PatternType.PREFIXED:
        return allow.name.startswith(deny.name)
    return allow.pattern_type is PatternType.LITERAL and allow.name == deny.name


def drawn_operations() -> Iterator[AclOperation]:
    """The operations that a request may need."""
    return (each for each in Op if each > Op.ALL)
