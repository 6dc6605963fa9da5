"""JAAS strings as Kafka's files have them, and what is refused."""

from __future__ import annotations

import pytest

from tidelog.model.configs.jaas import MOST_CHARACTERS, PLAIN, SCRAM, JaasEntry, parse

OF_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
OF_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"

GOOD = {
    f'{OF_PLAIN} required username="alice" password="secret";': (
        PLAIN,
        {"username": "alice", "password": "secret"},
    ),
    f"{OF_SCRAM} required username='a' password='b c';": (
        SCRAM,
        {"username": "a", "password": "b c"},
    ),
    f"{OF_SCRAM} required username=a password=b;": (SCRAM, {"username": "a", "password": "b"}),
    f'  {OF_SCRAM}\n  REQUIRED\n  username = "a"\n  password = "b" ;\n': (
        SCRAM,
        {"username": "a", "password": "b"},
    ),
    f'{OF_PLAIN} required user_admin="1" user_bob="2" username="admin" password="1";': (
        PLAIN,
        {"user_admin": "1", "user_bob": "2", "username": "admin", "password": "1"},
    ),
    f'{OF_PLAIN} required password="a\\"b\\\\c;d=e//f#g\'h";': (
        PLAIN,
        {"password": "a\"b\\c;d=e//f#g'h"},
    ),
    f'{OF_PLAIN} required "quoted name"="x" empty="";': (PLAIN, {"quoted name": "x", "empty": ""}),
    f'{OF_PLAIN} required // a note\n username="a" /* two\nlines */ password="\u00e4";': (
        PLAIN,
        {"username": "a", "password": "\u00e4"},
    ),
    f"{OF_SCRAM} optional;": (SCRAM, {}),
    f'{OF_SCRAM} sufficient "="=";";': (SCRAM, {"=": ";"}),
}


@pytest.mark.parametrize("text", GOOD)
def test_a_string_that_is_read(text: str) -> None:
    entry = parse(text)
    assert isinstance(entry, JaasEntry), entry
    assert (entry.kind, entry.options) == GOOD[text]


BAD = {
    "nothing": "",
    "spaces": "  \n",
    "no end": f'{OF_PLAIN} required username="a"',
    "an end in a quote": f'{OF_PLAIN} required username="a;"',
    "no flag": f'{OF_PLAIN} username="a";',
    "another flag": f'{OF_PLAIN} needed username="a";',
    "no module": ";",
    "only a module": f"{OF_PLAIN};",
    "GSSAPI": "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true;",
    "OAUTHBEARER": (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required x=SECRET;"
    ),
    "two modules": f"{OF_PLAIN} required; {OF_SCRAM} required;",
    "no value": f"{OF_PLAIN} required username=;",
    "no name": f'{OF_PLAIN} required ="SECRET";',
    "no equals sign": f'{OF_PLAIN} required username "SECRET";',
    "two equals signs": f'{OF_PLAIN} required username=="SECRET";',
    "a quoted equals sign": f'{OF_PLAIN} required username "=" "SECRET";',
    "twice": f'{OF_PLAIN} required password="SECRET" password="SECRET";',
    "an open quote": f'{OF_PLAIN} required password="SECRET;',
    "a quote over two lines": f'{OF_PLAIN} required password="SEC\nRET";',
    "a comment without its end": f"{OF_PLAIN} required username=a /* password=SECRET;",
    "many of them": f"{OF_PLAIN} required " + "/* " * 200_000 + ";",
    "a mark that is no comment": f"{OF_PLAIN} required # SECRET\n username=a;",
    "a value and more": f'{OF_PLAIN} required password="SECRET" more;',
    "text after the end": f'{OF_PLAIN} required password="SECRET"; more',
    "a file with a section": f'KafkaClient {{ {OF_PLAIN} required password="SECRET"; }};',
    "very long": f'{OF_PLAIN} required password="{"SECRET" * MOST_CHARACTERS}";',
}


@pytest.mark.parametrize("name", BAD)
def test_a_string_that_is_refused_in_one_line_without_its_values(name: str) -> None:
    why = parse(BAD[name])
    assert isinstance(why, str)
    assert "SECRET" not in why and "\n" not in why and len(why) < 250


def test_users_and_the_login_of_an_entry() -> None:
    entry = parse(f'{OF_PLAIN} required user_a="1" user_="2" user_b_c="3" username="a";')
    assert isinstance(entry, JaasEntry)
    assert entry.users == {"a": "1", "b_c": "3"}
    assert entry.login is None
    assert "1" not in repr(entry) and "user_a" in repr(entry)
    client = parse(f'{OF_SCRAM} required username="a" password="";')
    assert isinstance(client, JaasEntry)
    assert client.login == ("a", "")
