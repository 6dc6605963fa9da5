"""Topics that the controller refuses to create: each reason is logged once, however many ask."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from tidelog.broker.control_plane import topic_creation
from tidelog.broker.control_plane.session import ControllerSession
from tidelog.broker.control_plane.topic_creation import TopicCreation
from tidelog.broker.coordinator.group_coordinator import offsets_topic
from tidelog.broker.metadata.cache import MetadataCache
from tidelog.model.api_keys import ApiKey
from tidelog.model.configs.server import ServerConfigs, load
from tidelog.model.errors import ErrorCode
from tidelog.protocol import codec, messages

TOO_FEW = "A replication factor of 3 needs as many brokers; {} are there."


class Refusing:
    """A session whose controller refuses every topic, for ``why``; with "" it creates them."""

    why = TOO_FEW.format(1)

    async def forward(self, *_: object) -> bytes:
        code = ErrorCode.INVALID_REPLICATION_FACTOR if self.why else ErrorCode.NONE
        result = messages.CreateTopicsResponse.CreatableTopicResult(
            name="t", error_code=code, error_message=self.why or None
        )
        answer = messages.CreateTopicsResponse(topics=[result])
        version = topic_creation.CREATE_VERSION
        return b"".join(codec.encode_response(ApiKey.CREATE_TOPICS, version, 0, answer))[4:]


def made() -> tuple[Refusing, TopicCreation]:
    configs = load("node.id=1")
    assert isinstance(configs, ServerConfigs)
    session = Refusing()
    of_broker = cast("ControllerSession", session)
    return session, TopicCreation(of_broker, MetadataCache("c"), configs)


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [each.getMessage() for each in caplog.records if "was refused" in each.getMessage()]
    caplog.clear()
    return found


def test_clients_that_retry_make_one_line_in_the_log_for_each_reason(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One consumer made 39 lines in 20 s, and none named the configuration."""
    monkeypatch.setattr(topic_creation, "KNOWN_WITHIN_MS", 1)

    async def main() -> None:
        session, creation = made()
        topic = offsets_topic(cast("Any", load("node.id=1")))
        asked = (topic.name, topic.partition_count, topic.replication_factor, topic.configs)

        async def ensure(count: int) -> set[ErrorCode]:
            return {await creation.ensure(*asked, topic.advice) for _ in range(count)}

        assert await ensure(5) == {ErrorCode.INVALID_REPLICATION_FACTOR}
        (line,) = refusals(caplog)
        assert session.why in line and "offsets.topic.replication.factor" in line
        reason = creation.why_refused(topic.name)
        assert reason is not None and reason.startswith(session.why) and reason in line
        session.why = TOO_FEW.format(2)
        await ensure(2)
        assert len(refusals(caplog)) == 1, "two brokers are there now"
        session.why = ""
        await ensure(1)
        assert creation.why_refused(topic.name) is None
        session.why = TOO_FEW.format(2)
        await ensure(2)
        assert len(refusals(caplog)) == 1, "it was there meanwhile"

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())


def test_the_reasons_of_only_so_many_topics_are_kept(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_creation, "MAX_REFUSALS", 3)

    async def main() -> None:
        _, creation = made()
        for name in ("a", "b", "c", "a", "d"):
            await creation.ensure(name)
        kept = [name for name in "abcd" if creation.why_refused(name) is not None]
        assert kept == ["a", "c", "d"], "that of b is the oldest"

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
