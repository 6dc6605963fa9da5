"""Access rules (ACLs): their parts with Kafka's numbers, and which rules may be added.

Owns the vocabulary of requests, of the store and of the authorizer. Not what the rules permit: see
`authorization`; not the messages: see `protocol.schemas`.
"""

from __future__ import annotations

from enum import IntEnum
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple

from tidelog.model import principals

EVERYONE = "User:*"
"""The principal of a rule that is about all principals, as in Kafka."""

ANY_HOST = "*"
ANY_NAME = "*"
"""As the name of a LITERAL rule: all resources of its type."""

CLUSTER_NAME = "kafka-cluster"
"""The only name of a CLUSTER."""

MOST_NAME_CHARACTERS = 1_000
"""Of a resource in a rule. Topics have 249; group ids and transactional ids of clients that use
rules are as short. A decision about a prefix takes time by its length."""

MOST_HOST_CHARACTERS = 100
MOST_ACLS = 100_000
"""Of a cluster: each broker has all in memory, about 700 bytes each, and gets them in pages of
UpdateAccess."""


class AclResourceType(IntEnum):
    """The types of resources (KIP-140)."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """Which resources the name of a rule is about (KIP-290). ANY and MATCH are for filters."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """What a principal does with a resource. ANY is for filters, ALL for rules."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """What a rule says. ANY is for filters."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


Op = AclOperation

IMPLIES: dict[AclOperation, tuple[AclOperation, ...]] = {
    Op.READ: (Op.DESCRIBE,),
    Op.WRITE: (Op.DESCRIBE,),
    Op.DELETE: (Op.DESCRIBE,),
    Op.ALTER: (Op.DESCRIBE,),
    Op.ALTER_CONFIGS: (Op.DESCRIBE_CONFIGS,),
}
"""What ALLOW of an operation allows beside it. DENY denies its own operation alone."""

SUPPORTED: dict[AclResourceType, tuple[AclOperation, ...]] = {
    AclResourceType.TOPIC: (
        Op.READ,
        Op.WRITE,
        Op.CREATE,
        Op.DELETE,
        Op.ALTER,
        Op.DESCRIBE,
        Op.DESCRIBE_CONFIGS,
        Op.ALTER_CONFIGS,
    ),
    AclResourceType.GROUP: (
        Op.READ,
        Op.DELETE,
        Op.DESCRIBE,
        Op.DESCRIBE_CONFIGS,
        Op.ALTER_CONFIGS,
    ),
    AclResourceType.CLUSTER: (
        Op.CREATE,
        Op.ALTER,
        Op.DESCRIBE,
        Op.CLUSTER_ACTION,
        Op.DESCRIBE_CONFIGS,
        Op.ALTER_CONFIGS,
        Op.IDEMPOTENT_WRITE,
    ),
    AclResourceType.TRANSACTIONAL_ID: (Op.WRITE, Op.DESCRIBE),
    AclResourceType.DELEGATION_TOKEN: (Op.DESCRIBE,),
    AclResourceType.USER: (Op.CREATE_TOKENS, Op.DESCRIBE_TOKENS),
}
"""The operations that a resource of a type has: those of a response with authorized operations
(KIP-430)."""


def bits(operations: tuple[AclOperation, ...]) -> int:
    """Return operations as the bit field of responses (KIP-430): bit n is operation n."""
    return sum(1 << operation for operation in operations)


class Acl(NamedTuple):
    """One access rule."""

    resource_type: AclResourceType
    pattern_type: PatternType
    name: str
    principal: str
    """``TYPE:NAME``, or ``EVERYONE``."""

    host: str
    """An address, or ``ANY_HOST``."""

    operation: AclOperation
    permission: Permission


def normal_host(host: str) -> str:
    """Return an address in the one form in which hosts are compared: ``::ffff:10.0.0.1`` is
    ``10.0.0.1``, and ``0:0:0:0:0:0:0:1`` (Java's form) is ``::1``. Any other text is itself."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


def why_refused(acl: Acl) -> str | None:
    """Return why a rule may not be added, or None. The sentence repeats no long name."""
    if acl.resource_type <= AclResourceType.ANY:
        return "the resource type of a rule must be one, not ANY or UNKNOWN"
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return "the pattern type of a rule must be LITERAL or PREFIXED"
    if acl.operation <= AclOperation.ANY:
        return "the operation of a rule must be one or ALL, not ANY or UNKNOWN"
    if acl.permission not in (Permission.ALLOW, Permission.DENY):
        return "the permission of a rule must be ALLOW or DENY"
    if acl.resource_type is AclResourceType.CLUSTER and (
        acl.name != CLUSTER_NAME or acl.pattern_type is not PatternType.LITERAL
    ):
        return f"the only resource of type CLUSTER is {CLUSTER_NAME}, as LITERAL"
    if not _is_text(acl.name, MOST_NAME_CHARACTERS):
        return (
            f"the resource name of a rule must have 1 to {MOST_NAME_CHARACTERS} characters, none "
            "of them a control character"
        )
    if not _is_text(acl.host, MOST_HOST_CHARACTERS):
        return (
            f"the host of a rule must be {ANY_HOST} or an address of at most "
            f"{MOST_HOST_CHARACTERS} characters"
        )
    if principals.parse(acl.principal) is None:
        return (
            "the principal of a rule must be TYPE:NAME, with at most "
            f"{principals.MOST_NAME_CHARACTERS} characters each, none of them a control character"
        )
    return None


def _is_text(text: str, most: int) -> bool:
    return 0 < len(text) <= most and text.isprintable()
