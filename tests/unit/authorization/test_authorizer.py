"""Decisions about access: tables of Kafka's rules, and drawn rules against a scan of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.support.drawn_seed import drawn_seed
from tests.unit.authorization import scanned
from tidelog.authorization.authorizer import MOST_REMEMBERED, Authorizer, super_users
from tidelog.authorization.rules import ALL_OPERATIONS, Rules
from tidelog.broker.metadata import allowed_operations
from tidelog.model.permissions import (
    EVERYONE,
    MOST_ACLS,
    SUPPORTED,
    Acl,
    AclOperation,
    AclResourceType,
    PatternType,
    Permission,
    bits,
    normal_host,
    why_refused,
)
from tidelog.model.principals import ANONYMOUS, PROCESS, Principal

Op, Kind = AclOperation, AclResourceType
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
ALICE = Principal("User", "alice")
HOST = "10.0.0.1"
MOST_US = 20
"""Of a decision, whatever the count of rules."""


def rule(
    operation: Op = Op.READ,
    permission: Permission = ALLOW,
    pattern_type: PatternType = LITERAL,
    name: str = "t",
    principal: str = "User:alice",
    host: str = "*",
    kind: Kind = Kind.TOPIC,
) -> Acl:
    return Acl(kind, pattern_type, name, principal, host, operation, permission)


CASES: dict[str, tuple[list[Acl], Op, str, bool]] = {
    "no rule": ([], Op.READ, "t", False),
    "its own": ([rule()], Op.READ, "t", True),
    "of another name": ([rule(name="u")], Op.READ, "t", False),
    "of another operation": ([rule(Op.WRITE)], Op.READ, "t", False),
    "of another principal": ([rule(principal="User:bob")], Op.READ, "t", False),
    "of another type of principal": ([rule(principal="Group:alice")], Op.READ, "t", False),
    "in other letters": ([rule(principal="User:Alice")], Op.READ, "t", False),
    "of everyone": ([rule(principal=EVERYONE)], Op.READ, "t", True),
    "of its host": ([rule(host=HOST)], Op.READ, "t", True),
    "of another host": ([rule(host="10.0.0.2")], Op.READ, "t", False),
    "of another type": ([rule(kind=Kind.GROUP)], Op.READ, "t", False),
    "all names": ([rule(name="*")], Op.READ, "t", True),
    "all operations": ([rule(Op.ALL)], Op.ALTER_CONFIGS, "t", True),
    "a prefix": ([rule(pattern_type=PREFIXED, name="or")], Op.READ, "orders", True),
    "the whole name as a prefix": ([rule(pattern_type=PREFIXED)], Op.READ, "t", True),
    "a longer prefix": ([rule(pattern_type=PREFIXED, name="tt")], Op.READ, "t", False),
    "a star as a prefix": ([rule(pattern_type=PREFIXED, name="*")], Op.READ, "t", False),
    "a literal name is no prefix": ([rule(name="or")], Op.READ, "orders", False),
    "READ implies DESCRIBE": ([rule(Op.READ)], Op.DESCRIBE, "t", True),
    "WRITE implies DESCRIBE": ([rule(Op.WRITE)], Op.DESCRIBE, "t", True),
    "DELETE implies DESCRIBE": ([rule(Op.DELETE)], Op.DESCRIBE, "t", True),
    "ALTER implies DESCRIBE": ([rule(Op.ALTER)], Op.DESCRIBE, "t", True),
    "CREATE does not": ([rule(Op.CREATE)], Op.DESCRIBE, "t", False),
    "ALTER_CONFIGS implies DESCRIBE_CONFIGS": (
        [rule(Op.ALTER_CONFIGS)],
        Op.DESCRIBE_CONFIGS,
        "t",
        True,
    ),
    "ALTER_CONFIGS does not imply DESCRIBE": ([rule(Op.ALTER_CONFIGS)], Op.DESCRIBE, "t", False),
    "DESCRIBE implies nothing": ([rule(Op.DESCRIBE)], Op.READ, "t", False),
    "DENY goes first": ([rule(), rule(permission=DENY)], Op.READ, "t", False),
    "DENY of all operations": ([rule(), rule(Op.ALL, DENY)], Op.READ, "t", False),
    "DENY of all names": ([rule(), rule(permission=DENY, name="*")], Op.READ, "t", False),
    "DENY of everyone": ([rule(), rule(permission=DENY, principal=EVERYONE)], Op.READ, "t", False),
    "DENY of a prefix": (
        [rule(name="orders"), rule(permission=DENY, pattern_type=PREFIXED, name="or")],
        Op.READ,
        "orders",
        False,
    ),
    "DENY from another host": ([rule(), rule(permission=DENY, host="::1")], Op.READ, "t", True),
    "DENY of READ leaves DESCRIBE": (
        [rule(Op.READ), rule(Op.READ, DENY)],
        Op.DESCRIBE,
        "t",
        True,
    ),
    "DENY of DESCRIBE leaves READ": ([rule(), rule(Op.DESCRIBE, DENY)], Op.READ, "t", True),
    "DENY of DESCRIBE": ([rule(), rule(Op.DESCRIBE, DENY)], Op.DESCRIBE, "t", False),
}


@pytest.mark.parametrize("name", CASES)
def test_a_decision(name: str) -> None:
    acls, operation, resource, expected = CASES[name]
    authorizer = Authorizer(Rules(acls))
    assert authorizer.may(ALICE, HOST, operation, Kind.TOPIC, resource) is expected
    plain = scanned.may(acls, str(ALICE), HOST, operation, Kind.TOPIC, resource, False)
    assert plain is expected


def test_super_users_and_processes_may_do_all() -> None:
    rules = Rules([rule(Op.ALL, DENY, name="*", principal=EVERYONE)])
    authorizer = Authorizer(rules, frozenset({ALICE}))
    for principal, expected in ((ALICE, True), (PROCESS, True), (ANONYMOUS, False)):
        assert authorizer.may(principal, HOST, Op.WRITE, Kind.TOPIC, "t") is expected
        assert authorizer.may_any(principal, HOST, Op.WRITE, Kind.TOPIC) is expected
    assert authorizer.allowed(ALICE, HOST, Kind.TOPIC, "t") == ALL_OPERATIONS


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", frozenset()),
        ("User:alice", {ALICE}),
        (" User:alice ; User:CN=a,OU=b;", {ALICE, Principal("User", "CN=a,OU=b")}),
        ("alice", None),
        ("User:", None),
        ("User:a,User:b", {Principal("User", "a,User:b")}),
        ("User:a\0b", None),
    ],
)
def test_super_users_as_text(text: str, found: set[Principal] | None) -> None:
    answer = super_users(text)
    assert isinstance(answer, str) if found is None else answer == found


def test_without_any_rule_about_it_a_resource_may_be_open() -> None:
    acls = [rule(name="closed", principal="User:bob"), rule(pattern_type=PREFIXED, name="pre")]
    for is_open in (False, True):
        authorizer = Authorizer(Rules(acls), allows_without_rules=is_open)
        assert authorizer.may(ALICE, HOST, Op.DELETE, Kind.TOPIC, "free") is is_open
        assert authorizer.may(ALICE, HOST, Op.DELETE, Kind.GROUP, "closed") is is_open
        # A rule for another principal, or another operation, closes it.
        assert not authorizer.may(ALICE, HOST, Op.READ, Kind.TOPIC, "closed")
        assert not authorizer.may(ALICE, HOST, Op.WRITE, Kind.TOPIC, "prefix")


def test_the_bits_of_authorized_operations() -> None:
    authorizer = Authorizer(Rules([rule(Op.READ), rule(Op.ALTER_CONFIGS), rule(Op.CREATE, DENY)]))
    found = authorizer.authorized_operations(ALICE, HOST, Kind.TOPIC, "t")
    assert found == bits((Op.READ, Op.DESCRIBE, Op.ALTER_CONFIGS, Op.DESCRIBE_CONFIGS))
    for kind in SUPPORTED:
        of_all = Authorizer(Rules([rule(Op.ALL, kind=kind, name="*")]))
        found = of_all.authorized_operations(ALICE, HOST, kind, "t")
        assert found == bits(SUPPORTED[kind]) == sum(1 << int(op) for op in SUPPORTED[kind])
    # What brokers have answered until now, without an authorizer.
    assert allowed_operations.OF_TOPIC == 0b1101_1111_1000
    assert allowed_operations.OF_GROUP == 0b1101_0100_1000
    assert allowed_operations.OF_CLUSTER == 0b1_1111_1010_0000


ANY: dict[str, tuple[list[Acl], bool]] = {
    "no rule": ([], False),
    "one topic": ([rule(Op.WRITE)], True),
    "a prefix": ([rule(Op.WRITE, pattern_type=PREFIXED)], True),
    "all topics": ([rule(Op.WRITE, name="*")], True),
    "ALL": ([rule(Op.ALL)], True),
    "READ": ([rule(Op.READ)], False),
    "another host": ([rule(Op.WRITE, host="::1")], False),
    "denied itself": ([rule(Op.WRITE), rule(Op.WRITE, DENY)], False),
    "denied by a prefix": (
        [rule(Op.WRITE, name="tt"), rule(Op.WRITE, DENY, PREFIXED)],
        False,
    ),
    "a prefix denied by a shorter one": (
        [rule(Op.WRITE, pattern_type=PREFIXED, name="tt"), rule(Op.ALL, DENY, PREFIXED)],
        False,
    ),
    "a prefix, one name of it denied": (
        [rule(Op.WRITE, pattern_type=PREFIXED), rule(Op.WRITE, DENY)],
        True,
    ),
    "a prefix, a longer one denied": (
        [rule(Op.WRITE, pattern_type=PREFIXED), rule(Op.WRITE, DENY, PREFIXED, "tt")],
        True,
    ),
    "all denied": ([rule(Op.WRITE), rule(Op.WRITE, DENY, name="*")], False),
    "everyone denied": (
        [rule(Op.WRITE), rule(Op.ALL, DENY, name="*", principal=EVERYONE)],
        False,
    ),
    "another topic": ([rule(Op.WRITE), rule(Op.WRITE, DENY), rule(Op.WRITE, name="u")], True),
}


@pytest.mark.parametrize("name", ANY)
def test_write_on_any_topic(name: str) -> None:
    """KIP-679: what an idempotent producer needs."""
    acls, expected = ANY[name]
    authorizer = Authorizer(Rules(acls))
    for _ in range(2):
        assert authorizer.may_any(ALICE, HOST, Op.WRITE, Kind.TOPIC) is expected
    assert scanned.may_any(acls, str(ALICE), HOST, Op.WRITE, Kind.TOPIC, False) is expected


def drawn_rule(rng: random.Random) -> Acl:
    name = "".join(rng.choices("ab*", weights=(8, 8, 1), k=rng.randint(1, 4)))
    return Acl(
        rng.choice((Kind.TOPIC, Kind.GROUP)),
        rng.choice((LITERAL, PREFIXED)),
        rng.choice((name, name, name, "*")),
        rng.choice(("User:a", "User:b", EVERYONE)),
        rng.choice(("*", "*", "h1", "h2")),
        rng.choice((*scanned.drawn_operations(), Op.ALL, Op.ALL, Op.WRITE, Op.WRITE)),
        rng.choice((ALLOW, ALLOW, DENY)),
    )


def test_drawn_rules_decide_as_a_scan_of_them() -> None:
    rng = random.Random(drawn_seed())
    compared = 0
    for _ in range(250):
        acls = {drawn_rule(rng) for _ in range(rng.choice((0, 1, 2, 5, 20, 60)))}
        rules = Rules(acls)
        # Half of them come by changes, which make parts of the index again.
        for _ in range(rng.randrange(4)):
            added = {drawn_rule(rng) for _ in range(rng.randrange(5))}
            removed = set(rng.sample(sorted(acls), rng.randint(0, len(acls))))
            rules, acls = rules.changed(added, removed), (acls - removed) | added
        assert set(rules) == acls and len(rules) == len(acls)
        assert all(acl in rules for acl in acls)
        without = rng.random() < 0.5
        authorizer = Authorizer(rules, allows_without_rules=without)
        for _ in range(40):
            principal, host = Principal("User", rng.choice("abc")), rng.choice(("h1", "h2", "h3"))
            kind = rng.choice((Kind.TOPIC, Kind.GROUP))
            name = "".join(rng.choices("abc*", weights=(9, 9, 1, 1), k=rng.randint(1, 5)))
            for operation in scanned.drawn_operations():
                asked: Any = (str(principal), host, operation, kind)
                expected = scanned.may(acls, *asked, name, without)
                assert authorizer.may(principal, host, operation, kind, name) is expected, name
                compared += 1
            for operation in (Op.WRITE, Op.READ, Op.CREATE):
                asked = (str(principal), host, operation, kind)
                expected = scanned.may_any(acls, *asked, without)
                assert authorizer.may_any(principal, host, operation, kind) is expected
    assert compared > 100_000


def best_us(decide: Callable[[], object]) -> float:
    """The time of one decision, in the best of several tries: other programs run meanwhile."""
    rounds, best = 1_000, float("inf")
    for _ in range(15):
        begun = time.perf_counter()
        for _ in range(rounds):
            decide()
        best = min(best, (time.perf_counter() - begun) * 1e6 / rounds)
    return best


def topics_of_one() -> list[Acl]:
    return [rule(Op.WRITE, name=f"orders-{number:06}") for number in range(MOST_ACLS)]


def prefixes_of_one() -> list[Acl]:
    return [
        rule(Op.WRITE, pattern_type=PREFIXED, name=f"orders-{number:06}")
        for number in range(MOST_ACLS)
    ]


def one_each() -> list[Acl]:
    return [rule(Op.WRITE, principal=f"User:u{number}", name="*") for number in range(MOST_ACLS)]


def nested_prefixes() -> list[Acl]:
    """Each begins with the one before, as deep as names of topics are long; and 400 of these."""
    return [
        rule(Op(2 + depth % 12), pattern_type=PREFIXED, name=f"{chain:03}" + "x" * depth)
        for chain in range(400)
        for depth in range(246)
    ]


@pytest.mark.parametrize("made", [topics_of_one, prefixes_of_one, one_each, nested_prefixes])
def test_a_decision_among_a_hundred_thousand_rules_takes_no_scan(
    made: Callable[[], list[Acl]],
) -> None:
    rules = Rules(made())
    asked: Any = (ALICE, HOST, Op.WRITE, Kind.TOPIC)
    worst = 0.0
    for allows_without_rules in (False, True):
        authorizer = Authorizer(rules, frozenset({PROCESS}), allows_without_rules)
        for name in ("orders-099999", "orders-0999", "zzz", "399" + "x" * 245 + "y", "399xy", "0"):
            worst = max(worst, best_us(partial(authorizer.may, *asked, name)))
        worst = max(worst, best_us(partial(authorizer.may_any, *asked)))
    print(f"{worst:.1f} us")
    assert worst < MOST_US


def test_remembered_answers_have_a_bound() -> None:
    authorizer = Authorizer(Rules([rule(Op.WRITE)]))
    for number in range(3 * MOST_REMEMBERED):
        authorizer.may_any(ALICE, f"10.0.{number}", Op.WRITE, Kind.TOPIC)
    assert len(authorizer.remembered) <= MOST_REMEMBERED


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("2001:DB8::0001", "2001:db8::1"),
        ("*", "*"),
        ("host.example", "host.example"),
        ("", ""),
    ],
)
def test_the_form_of_a_host(host: str, expected: str) -> None:
    assert normal_host(host) == expected
    authorizer = Authorizer(Rules([rule(host=host)]))
    assert authorizer.may(ALICE, expected, Op.READ, Kind.TOPIC, "t")


BAD = {
    "any type": rule(kind=Kind.ANY),
    "an unknown type": rule(kind=Kind.UNKNOWN),
    "MATCH": rule(pattern_type=PatternType.MATCH),
    "any pattern": rule(pattern_type=PatternType.ANY),
    "any operation": rule(Op.ANY),
    "any permission": rule(permission=Permission.ANY),
    "another cluster": rule(kind=Kind.CLUSTER, name="mine"),
    "a prefix of clusters": rule(kind=Kind.CLUSTER, name="kafka-cluster", pattern_type=PREFIXED),
    "no name": rule(name=""),
    "a name of 100 kB": rule(name="x" * 100_000),
    "a name with a line break": rule(name="a\nb"),
    "a name with a zero": rule(name="a\0"),
    "a name with an escape": rule(name="a\x1b[2J"),
    "no host": rule(host=""),
    "a host of 100 kB": rule(host="1" * 100_000),
    "a host with a line break": rule(host="10.0.0.1\n"),
    "no type of principal": rule(principal="alice"),
    "a principal of 100 kB": rule(principal="User:" + "x" * 100_000),
    "a principal with a line break": rule(principal="User:a\nb"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_rule_that_is_refused(name: str) -> None:
    why = why_refused(BAD[name])
    assert why is not None and "\n" not in why and len(why) < 200


def test_rules_that_are_not_refused() -> None:
    for acl in (
        rule(),
        rule(name="*"),
        rule(pattern_type=PREFIXED, name="a b/\u00e4"),
        rule(principal=EVERYONE),
        rule(kind=Kind.CLUSTER, name="kafka-cluster"),
        rule(name="x" * 1_000, host="::1"),
    ):
        assert why_refused(acl) is None
