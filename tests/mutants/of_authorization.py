"""Broken rules of access."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

TESTS = "tests/unit/authorization"
RULES = "src/tidelog/authorization/rules.py"
AUTHORIZER = "src/tidelog/authorization/authorizer.py"

MUTANTS = (
    Mutant(
        "ALLOW goes before DENY",
        f"{RULES}::effective",
        " & ~(mask >> DENIED)",
        "",
        TESTS,
    ),
    Mutant(
        "DENY of READ denies DESCRIBE, too",
        f"{RULES}::_mask",
        "mask = bits((acl.operation,))",
        "mask = bits((acl.operation, *IMPLIES.get(acl.operation, ())))",
        TESTS,
    ),
    Mutant(
        "rules for all hosts are not found",
        f"{RULES}::Rules.groups",
        "for where in (host, ANY_HOST):",
        "for where in (host,):",
        TESTS,
    ),
    Mutant(
        "a resource with rules for others only is open where resources without rules are",
        f"{AUTHORIZER}::Authorizer.allowed",
        "return 0 if self.rules.has_pattern(resource_type, name) else ALL_OPERATIONS",
        "return ALL_OPERATIONS",
        TESTS,
    ),
    Mutant(
        "a shorter prefix is not found from a neighbour of the name",
        "src/tidelog/authorization/prefixes.py::Prefixes.match",
        "index = jump if is_far else self._parent[index]",
        "index = NONE",
        TESTS,
    ),
)
