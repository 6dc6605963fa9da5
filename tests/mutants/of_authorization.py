"""Broken rules of access and of authentication."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

TESTS = "tests/unit/authorization"
RULES = "src/tidelog/authorization/rules.py"
SCRAM = "src/tidelog/protocol/scram_exchange.py"
SCRAM_TESTS = "tests/wire/test_scram_exchange.py"
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
    Mutant(
        "a recorded SCRAM proof holds in another exchange",
        f"{SCRAM}::ServerExchange.final",
        'if nonce.partition(",")[0] != f"r={self._nonce}":',
        "if not nonce:",
        SCRAM_TESTS,
    ),
    Mutant(
        "a client of SCRAM may name another channel binding than it began with",
        f"{SCRAM}::ServerExchange.final",
        "if _bytes(binding[2:]) != self._gs2:",
        "if not _bytes(binding[2:]):",
        SCRAM_TESTS,
    ),
    Mutant(
        "after a wrong SCRAM proof another one may follow",
        f"{SCRAM}::_Side._begin",
        "step, self._step = self._step, _Step.FAILED",
        "step = self._step",
        SCRAM_TESTS,
    ),
    Mutant(
        "a SCRAM server may ask a client for as much work as it likes",
        f"{SCRAM}::ClientExchange.challenged",
        "if not MIN_ITERATIONS <= iterations <= MOST_ITERATIONS_ASKED:",
        "if iterations < MIN_ITERATIONS:",
        SCRAM_TESTS,
    ),
    Mutant(
        "a SCRAM client believes any server",
        f"{SCRAM}::ClientExchange.verify",
        'if not hmac.compare_digest(_bytes(text[2:].partition(",")[0]), self._expected):',
        'if not _bytes(text[2:].partition(",")[0]):',
        SCRAM_TESTS,
    ),
)
