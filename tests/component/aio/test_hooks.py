"""The callbacks of a consumer: which method is called with what, one at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.processes import DEADLINE_S
from tidelog.aio.consumer_hooks import ConsumerHooks, call_here
from tidelog.client.errors import WrongState
from tidelog.client.fetching.record_queue import RecordQueue
from tidelog.client.groups.committed_offsets import Membership
from tidelog.model.topics import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
MEMBERSHIP = Membership(4, "m-1")


class Noting:
    """Notes each call of a method that it has."""

    def __init__(self, *methods: str) -> None:
        self.calls: list[tuple[Any, ...]] = []
        for name in methods:
            setattr(self, name, lambda *args, name=name: self.calls.append((name, *args)))


def hooks_of(listener: Any = None, keys: Any = None) -> ConsumerHooks:
    return ConsumerHooks(RecordQueue(lambda _: iter(())), call_here, listener, keys)


GROUP = ("on_partitions_revoked", "on_partitions_assigned")
KEYS = ("on_partition_key_maybe_revoked", "on_partition_key_assigned")


@pytest.mark.parametrize("has_lost", [True, False])
def test_each_callback_of_a_listener_gets_its_partitions(has_lost: bool) -> None:
    """A listener without ``on_partitions_lost`` gets a revocation, as in Kafka."""

    async def main() -> None:
        listener = Noting(*GROUP, *(["on_partitions_lost"] if has_lost else []))
        hooks = hooks_of(listener)
        await hooks.assigned([A, B])
        await hooks.revoked([A])
        await hooks.lost([B])
        assert listener.calls == [
            ("on_partitions_assigned", {A, B}),
            ("on_partitions_revoked", {A}),
            ("on_partitions_lost" if has_lost else "on_partitions_revoked", {B}),
        ]
        assert hooks.rebalances == 1 and not hooks.follows_keys

    asyncio.run(main())


@pytest.mark.parametrize("has_lost", [True, False])
def test_callbacks_for_keys_get_the_generation_and_the_member(has_lost: bool) -> None:
    async def main() -> None:
        keys = Noting(*KEYS, *(["on_partition_key_lost"] if has_lost else []))
        hooks = hooks_of(None, keys)
        assert hooks.follows_keys
        await hooks.keys_assigned([A], MEMBERSHIP)
        await hooks.keys_maybe_revoked([A, B], MEMBERSHIP)
        await hooks.keys_lost([B])
        lost = [("on_partition_key_lost", {B})] if has_lost else []
        assert keys.calls == [
            ("on_partition_key_assigned", {A}, 4, "m-1"),
            ("on_partition_key_maybe_revoked", {A, B}, 4, "m-1"),
            *lost,
        ]

    asyncio.run(main())


def test_without_listeners_nothing_is_called() -> None:
    async def main() -> None:
        hooks = hooks_of()
        await hooks.assigned([A])
        await hooks.revoked([A])
        await hooks.lost([A])
        await hooks.keys_assigned([A], MEMBERSHIP)
        await hooks.keys_maybe_revoked([A], MEMBERSHIP)
        await hooks.keys_lost([A])
        assert hooks.rebalances == 1

    asyncio.run(main())


def test_listeners_are_known_by_both() -> None:
    listener, keys = Noting(), Noting()
    hooks = hooks_of(listener, keys)
    assert hooks.has(listener, keys)  # type: ignore[arg-type]
    assert not hooks.has(listener, None) and not hooks.has(None, keys)  # type: ignore[arg-type]


def test_a_second_callback_waits_for_the_first() -> None:
    async def main() -> None:
        order: list[str] = []
        may_end = asyncio.Event()

        class Slow:
            async def on_partitions_revoked(self, _: Any) -> None:
                order.append("begin")
                await may_end.wait()
                order.append("end")

            def on_partitions_assigned(self, _: Any) -> None:
                order.append("assigned")

        hooks = hooks_of(Slow())
        first = asyncio.ensure_future(hooks.revoked([A]))
        second = asyncio.ensure_future(hooks.assigned([A]))
        for _ in range(10):
            await asyncio.sleep(0)
        assert order == ["begin"]
        # Another task may: it waits.
        hooks.refuse_in_callback("close")
        may_end.set()
        await asyncio.gather(first, second)
        assert order == ["begin", "end", "assigned"]

    asyncio.run(main())


def test_what_must_not_be_called_in_a_callback_is_refused_there_and_only_there() -> None:
    """In each of them; also where it is of the subscription before the present one."""

    async def main() -> None:
        class Calling:
            def __getattr__(self, name: str) -> Any:
                if not name.startswith("on_partition"):
                    raise AttributeError(name)
                return lambda *_: (hooks.refuse_in_callback("close"), calls.append(name))

        calls: list[str] = []
        former = hooks_of(Calling(), Calling())
        for hooks in (former, former.followed_by(None, None)):
            for calling in (
                former.revoked([A]),
                former.assigned([A]),
                former.lost([A]),
                former.keys_maybe_revoked([A], MEMBERSHIP),
                former.keys_assigned([A], MEMBERSHIP),
                former.keys_lost([A]),
            ):
                with pytest.raises(WrongState, match="close was called in a callback"):
                    await calling
                hooks.refuse_in_callback("close")
        assert calls == []

    asyncio.run(main())


def test_outside_of_a_task_no_callback_is_assumed() -> None:
    """A consumer may subscribe before its loop runs, and in a function that the loop calls."""
    hooks_of().refuse_in_callback("subscribe")

    async def main() -> None:
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def call() -> None:
            hooks_of().refuse_in_callback("subscribe")
            called.set_result(None)

        asyncio.get_running_loop().call_soon(call)
        async with asyncio.timeout(DEADLINE_S):
            await called

    asyncio.run(main())


def test_the_hooks_of_the_next_subscription_go_on_counting() -> None:
    async def main() -> None:
        former = hooks_of()
        await former.assigned([A])
        keys = Noting(*KEYS)
        hooks = former.followed_by(None, keys)  # type: ignore[arg-type]
        await hooks.assigned([A])
        assert hooks.rebalances == 2
        assert hooks.follows_keys and hooks.has(None, keys)  # type: ignore[arg-type]

    asyncio.run(main())
