"""Rules that make principals of the names in certificates, and what is refused."""

from __future__ import annotations

import pytest

from tidelog.model.configs.principal_mapping import (
    MOST_CHARACTERS,
    MOST_NAME_CHARACTERS,
    MOST_RULES,
    mapped,
    parse,
)

NAME = "CN=Duke, OU=ServiceUsers, O=Org, C=US"
OF_KAFKA = (
    "RULE:^CN=(.*?), OU=ServiceUsers.*$/$1/,"
    "RULE:^CN=(.*?), OU=(.*?), O=(.*?), L=(.*?), ST=(.*?), C=(.*?)$/$1@$2/L,"
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,"
    "DEFAULT"
)
"""The example of Kafka's documentation."""

CASES = [
    ("", NAME, NAME),
    ("DEFAULT", NAME, NAME),
    (" DEFAULT ", NAME, NAME),
    (OF_KAFKA, NAME, "Duke"),
    (OF_KAFKA, "CN=Duke, OU=SME, O=mycp, L=Fulton, ST=MD, C=US", "duke@sme"),
    (OF_KAFKA, "OU=x,cn=Kafka1.Host,O=Org", "kafka1.host"),
    (OF_KAFKA, "OU=JavaSoft, O=Org", "OU=JavaSoft, O=Org"),
    ("RULE:CN=(.*?),.*/$1/U", NAME, "DUKE"),
    ("RULE:CN=(.*?),.*/User-$1-$2/", NAME, None),
    ("RULE:CN=(.*?),.*/$0/", "CN=a,O=b", "CN=a,O=b"),
    ("RULE:CN=(.*?),.*/x/,DEFAULT", "O=b", "O=b"),
    ("RULE:CN=(.*?),.*/x/", "O=b", None),
    # The whole name, not a part of it: CN=admin could stand in another field.
    ("RULE:CN=admin/admin/", "O=x, CN=admin", None),
    ("RULE:CN=admin/admin/", "CN=admin, O=x", None),
    ("RULE:CN=(a)?(b)/$1$2/", "CN=b", "b"),
    ("RULE:CN=(.*)/$1/", "CN=", None),
    (r"RULE:CN=a\/b/a\/b/", "CN=a/b", "a/b"),
    (r"RULE:CN=(\w+), O=\d{1,3}/$1/", "CN=x, O=12", "x"),
    ("RULE:CN=(.*), O=.*/$1/L, RULE:O=(.*)/$1/", "O=z", "z"),
    ("DEFAULT", "x" * MOST_NAME_CHARACTERS, "x" * MOST_NAME_CHARACTERS),
    ("DEFAULT", "x" * (MOST_NAME_CHARACTERS + 1), None),
]


@pytest.mark.parametrize(("text", "name", "expected"), CASES)
def test_what_a_name_becomes(text: str, name: str, expected: str | None) -> None:
    rules = parse(text)
    if isinstance(rules, str):
        assert expected is None and "$" not in rules
        return
    assert mapped(rules, name) == expected


BAD = {
    "another word": "NONE",
    "no pattern": "RULE:",
    "no replacement": "RULE:CN=(.*)",
    "no end of the replacement": "RULE:CN=(.*)/$1",
    "another letter": "RULE:CN=(.*)/$1/X",
    "two letters": "RULE:CN=(.*)/$1/LU",
    "no comma": "RULE:a/b/ RULE:c/d/",
    "a pattern that is none": "RULE:CN=(/x/",
    "a group that is not there": "RULE:CN=(.*)/$2/",
    "an empty rule": "DEFAULT,,DEFAULT",
    "too many": ",".join(["DEFAULT"] * (MOST_RULES + 1)),
    "very long": "RULE:" + "x" * MOST_CHARACTERS + "/y/",
}


@pytest.mark.parametrize("name", BAD)
def test_rules_that_are_refused(name: str) -> None:
    why = parse(BAD[name])
    assert isinstance(why, str) and "\n" not in why and len(why) < 200


def test_as_many_rules_as_there_may_be() -> None:
    rules = parse(",".join(["DEFAULT"] * MOST_RULES))
    assert len(rules) == MOST_RULES
