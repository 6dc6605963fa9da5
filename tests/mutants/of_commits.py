"""Broken rules of a consumer's commits, each with the tests that must find it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

COMMITS = "tests/component/client/test_reader_commits.py"
ENTERED = "tests/component/client/test_entered_generations.py"
RESETS = "tests/component/client/test_first_positions.py"
CONSUMER = "tests/component/aio/test_commits.py"
ASIDE = "tests/component/blocking/test_commits_aside.py"

MUTANTS = (
    Mutant(
        "a commit that waited for others is sent as a member of the next generation",
        "src/tidelog/client/groups/group_member.py::GroupMember.commit",
        "        if asked_as not in (None, self.membership):\n",
        "        if False:\n",
        COMMITS,
    ),
    Mutant(
        "a member that joins again says that others have its partitions",
        "src/tidelog/client/groups/membership.py::MemberStatus.refusal",
        "        is_joining = self.state is MemberState.JOINING\n",
        "        is_joining = False\n",
        COMMITS,
    ),
    Mutant(
        "the time of a commit begins when it is sent",
        "src/tidelog/client/groups/reader_commits.py::Commits._send",
        "        timeout_ms = int(terms.left_s() * 1000)\n",
        "        timeout_ms = self._timeout_ms\n",
        COMMITS,
    ),
    Mutant(
        "a commit waits for those before it beyond its own time",
        "src/tidelog/client/groups/reader_commits.py::Commits._alone",
        "                await asyncio.wait([own], timeout=terms.left_s())\n",
        "                await asyncio.wait([own])\n",
        COMMITS,
    ),
    Mutant(
        "commits wait for a response without a bound",
        "src/tidelog/client/groups/reader_commits.py::Commits._ask",
        "        if len(self._queued) >= MOST_WAITING:\n",
        "        if False:\n",
        COMMITS,
    ),
    Mutant(
        "a commit of all positions goes back before a reset",
        "src/tidelog/client/groups/reader_commits.py::Commits.returned",
        "lambda: self._counting(positions)",
        "lambda: positions",
        CONSUMER,
    ),
    Mutant(
        "a commit of some partitions postpones the automatic ones of all",
        "src/tidelog/client/groups/reader_commits.py::Commits.exactly",
        "        return self._ask(positions, lambda: positions)\n",
        "        self.note()\n        return self._ask(positions, lambda: positions)\n",
        COMMITS,
    ),
    Mutant(
        "a commit that the end calls off cancels its caller",
        "src/tidelog/client/groups/reader_commits.py::Commits._alone",
        "            if own.cancelled():\n",
        "            if False:\n",
        COMMITS,
    ),
    Mutant(
        "the commit of a reset overtakes those of the application",
        "src/tidelog/client/groups/reader_commits.py::Commits.up_to",
        "        return self._alone(partial(self._moved, positions))\n",
        "        return self._moved(positions, self._terms())\n",
        RESETS,
    ),
    Mutant(
        "the end does not wait for commits of the last callback",
        "src/tidelog/client/groups/group_reader.py::GroupReader.close",
        "            if until is not None:\n",
        "            if False:\n",
        ENTERED,
    ),
    Mutant(
        "the end does not wait for commits that were asked for",
        "src/tidelog/client/groups/group_reader.py::GroupReader.give_up",
        "            await self.commits.settle(until)\n",
        "",
        ENTERED,
    ),
    Mutant(
        "a member that ends while it joins says nothing of its partitions",
        "src/tidelog/client/groups/group_reader.py::GroupReader.give_up",
        "                await call_off([self._joining])\n",
        "                return\n",
        ENTERED,
    ),
    Mutant(
        "a member that ends while it joins gives its partitions up twice",
        "src/tidelog/client/groups/group_reader.py::GroupReader.give_up",
        "            has_called = self._has_given_up and not self.member.is_cooperative\n",
        "            has_called = False\n",
        ENTERED,
    ),
    Mutant(
        "the end does not wait for a callback of a poll",
        "src/tidelog/client/groups/group_reader.py::GroupReader.give_up",
        "        async with self._calling:\n",
        "        async with asyncio.Lock():\n",
        ENTERED,
    ),
    Mutant(
        "partitions are assigned after the end",
        "src/tidelog/client/groups/group_reader.py::GroupReader._enter",
        "            self._refuse_closed()\n",
        "",
        ENTERED,
    ),
    Mutant(
        "the end of a reader that is cancelled leaves its tasks",
        "src/tidelog/client/groups/group_reader.py::GroupReader.close",
        "            last_first.push_async_callback(self._call_off)\n",
        "",
        ENTERED,
    ),
    Mutant(
        "a reader that assigns itself waits for commits before it reads other partitions",
        "src/tidelog/client/groups/group_reader.py::GroupReader._join",
        "        if isinstance(self.member, GroupMember):\n",
        "        if True:\n",
        CONSUMER,
    ),
    Mutant(
        "a commit of nothing is refused while the member joins again",
        "src/tidelog/client/groups/reader_commits.py::Commits._ask",
        "        if given:\n",
        "        if True:\n",
        COMMITS,
    ),
    Mutant(
        "what is given up is committed in the time of any commit",
        "src/tidelog/client/groups/reader_commits.py::Commits.attempt",
        "        await self.settle_before_join()\n",
        "        await self.settle()\n",
        COMMITS,
    ),
    Mutant(
        "a commit of the application postpones the automatic ones",
        "src/tidelog/client/groups/reader_commits.py::Commits.aside",
        "        if self._automatic is None or self._automatic.done():\n",
        "        if self.running is None or self.running.done():\n",
        COMMITS,
    ),
    Mutant(
        "a commit whose time is over is sent",
        "src/tidelog/client/groups/reader_commits.py::Commits._send",
        "        if not terms.left_s():\n",
        "        if False:\n",
        COMMITS,
    ),
    Mutant(
        "a cancelled end waits for commits",
        "src/tidelog/aio/left_readers.py::LeftReaders._leave",
        "            until = None\n",
        "",
        CONSUMER,
    ),
    Mutant(
        "commits aside wait for callbacks without a bound",
        "src/tidelog/aio/commits_aside.py::CommitsAside.begin",
        "        if len(self._tasks) >= MOST_WAITING:\n",
        "        if False:\n",
        CONSUMER,
    ),
    Mutant(
        "the callback of a cancelled commit is not called",
        "src/tidelog/aio/commits_aside.py::CommitsAside.begin",
        "            if call is not None and not call.is_begun:\n",
        "            if False:\n",
        CONSUMER,
    ),
    Mutant(
        "a callback waits for the last one only",
        "src/tidelog/aio/commits_aside.py::CommitsAside._placed",
        "[*last, call.ended] if is_in_callback else",
        "",
        CONSUMER,
    ),
    Mutant(
        "the end does not wait for the callbacks of commits",
        "src/tidelog/aio/commits_aside.py::CommitsAside.all_called_back",
        "            await asyncio.wait(waiting)\n",
        "            pass\n",
        CONSUMER,
    ),
    Mutant(
        "a commit that fails without a callback leaves no trace",
        "src/tidelog/blocking/consumer.py::Consumer.commit_async",
        "            elif error is not None:\n",
        "            elif False:\n",
        ASIDE,
    ),
)
