"""Tests of the loop that blocking clients share: one thread, its end, forks, callbacks."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading

import pytest

from tidelog.blocking.loop import ClientLoop
from tidelog.client.errors import ClientError


async def thread_name() -> str:
    return threading.current_thread().name


def threads() -> int:
    return sum(each.name == "tidelog-client" for each in threading.enumerate())


def test_all_clients_share_one_thread_which_ends_with_the_last() -> None:
    before = threads()
    first, second = ClientLoop(), ClientLoop()
    assert first.run(thread_name()) == second.run(thread_name()) == "tidelog-client"
    assert threads() == before + 1
    first.leave()
    first.leave()
    assert second.run(thread_name()) == "tidelog-client"
    with pytest.raises(ClientError, match="closed"):
        first.run(thread_name())
    second.leave()
    assert threads() == before
    third = ClientLoop()
    assert third.run(thread_name()) == "tidelog-client"
    third.leave()


def test_work_is_started_until_the_client_has_left_and_is_closed_then() -> None:
    loop, called = ClientLoop(), threading.Event()
    loop.call_soon(called.set)
    assert called.wait(30)
    assert loop.start(thread_name()).result(30) == "tidelog-client"
    loop.leave()
    with pytest.raises(ClientError, match="closed"):
        loop.call_soon(called.set)
    for use in (loop.run, loop.start):
        work = thread_name()
        with pytest.raises(ClientError, match="closed"):
            use(work)
        assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED


def test_a_callback_that_would_wait_for_its_own_loop_is_refused() -> None:
    loop = ClientLoop()

    async def callback() -> None:
        assert loop.is_current
        with pytest.raises(ClientError, match="thread of your own"):
            loop.run(thread_name())

    loop.run(callback())
    loop.leave()


def test_a_timeout_cancels_the_work() -> None:
    loop = ClientLoop()
    ended = threading.Event()

    async def long() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        loop.run(long(), timeout_s=0.01)
    assert ended.wait(30)
    loop.leave()


def test_a_client_of_the_parent_is_refused_after_a_fork_and_a_new_one_works() -> None:
    loop = ClientLoop()
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(ClientError, match="forked"):
                loop.run(thread_name())
            own = ClientLoop()
            ok = own.run(thread_name(), timeout_s=30) == "tidelog-client"
            own.leave()
            os._exit(0 if ok else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert loop.run(thread_name()) == "tidelog-client"
    loop.leave()
