"""Tasks that are called off: all of them, and nothing is left when the call returns."""

from __future__ import annotations

import asyncio

from tidelog.runtime.tasks import call_off


def test_all_have_ended_whatever_they_do_about_it() -> None:
    ended: list[str] = []

    async def waits(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    async def fails() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("failed")
            raise ZeroDivisionError

    async def main() -> None:
        done = asyncio.create_task(asyncio.sleep(0))
        await done
        tasks = {asyncio.create_task(waits("a")), asyncio.create_task(waits("b"))}
        tasks |= {asyncio.create_task(fails()), done}
        for task in tasks:
            # As their owners do: the set becomes smaller while they end.
            task.add_done_callback(tasks.discard)
        await asyncio.sleep(0)
        await call_off(tasks)
        assert sorted(ended) == ["a", "b", "failed"]
        assert not tasks

    asyncio.run(main())


def test_all_are_cancelled_before_one_is_waited_for() -> None:
    """Two that wait for each other's end would else never end."""

    async def main() -> None:
        others: list[asyncio.Task[None]] = []

        async def waits(number: int) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                assert others[1 - number].cancelling() or others[1 - number].done()

        others += [asyncio.create_task(waits(number)) for number in range(2)]
        await asyncio.sleep(0)
        await call_off(others)
        assert all(task.cancelled() for task in others)

    asyncio.run(main())
