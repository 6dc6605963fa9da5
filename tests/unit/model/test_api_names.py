"""One spelling of an API in sentences, log lines and metrics: Kafka's."""

from __future__ import annotations

import re
from pathlib import Path

from tidelog.model.api_keys import ApiKey, spoken

SOURCES = Path(__file__).parents[3] / "src" / "tidelog"


def test_the_name_is_that_of_the_documentation() -> None:
    assert spoken(ApiKey.JOIN_GROUP) == "JoinGroup"
    assert spoken(ApiKey.SASL_HANDSHAKE) == "SaslHandshake"
    assert spoken(0) == "Produce"


def test_no_sentence_takes_the_name_of_a_constant() -> None:
    """The audit log and the network's warnings had JOIN_GROUP, refusals and metrics JoinGroup."""
    constant = re.compile(r"(?:api_key|ApiKey\(\w+\)|\bkey)\.name\b")
    found = {
        f"{path.relative_to(SOURCES)}: {line.strip()}"
        for path in SOURCES.rglob("*.py")
        for line in path.read_text().splitlines()
        if constant.search(line)
    }
    assert found == {
        'model/api_keys.py: return "".join(word.capitalize() for word in'
        ' ApiKey(api_key).name.split("_"))',
        'protocol/codec.py: return {int(key): key.name.lower() + ".txt" for key in ApiKey}',
    }
