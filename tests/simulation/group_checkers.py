"""What a group must never do, as pure functions on its history.

Owns the checks of one group whose ``__consumer_offsets`` partition was clean: then its log is
the truth of what was committed, in which order, and answers are held against it. Source: KIP-62 and
the promises on commits (1), one coordinator at a time (15) and delivery (9).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from tests.simulation.group_history import (
    GroupCommit,
    GroupHistory,
    Jump,
    Look,
    StoredGeneration,
    StoredOffset,
)
from tests.simulation.history import History, Outcome

GroupChecker = Callable[[GroupHistory], list[str]]


def one_owner_in_a_generation(group: GroupHistory) -> list[str]:
    """No two members of one generation have the same partition."""
    owners: dict[tuple[int, str], str] = {}
    found = []
    for share in group.shares:
        for partition in share.partitions:
            owner = owners.setdefault((share.generation, partition), share.member)
            if owner != share.member:
                found.append(
                    f"{partition} belongs to {owner} and to {share.member} in generation "
                    f"{share.generation}"
                )
    return found


def generations_rise(group: GroupHistory) -> list[str]:
    """No coordinator begins below a generation that is on record."""
    found = []
    newest = -1
    for record in group.log:
        if isinstance(record, StoredGeneration):
            generation = -1 if record.generation is None else record.generation
            if 0 <= generation < newest:
                found.append(f"generation {generation} began after generation {newest}")
            newest = generation
    return found


def old_generations_do_not_commit(group: GroupHistory) -> list[str]:
    """A commit counts only in its own generation: where it stands, and when it is answered."""
    commits = {commit.mark: commit for commit in group.commits}
    found = []
    present = -1
    for record in group.log:
        if isinstance(record, StoredGeneration):
            present = -1 if record.generation is None else record.generation
        elif record.offset is not None:
            commit = commits.get(record.mark)
            if commit is None:
                found.append(f"{record.partition} at {record.offset}: no member committed this")
            elif commit.generation != present:
                found.append(
                    f"{record.partition} at {record.offset} was committed in generation "
                    f"{commit.generation}, which stands in generation {present}"
                )
    for commit in group.commits:
        if commit.outcome is Outcome.ACKED:
            newer = [s for s in group.shares if s.at < commit.sent_at]
            newest = max((share.generation for share in newer), default=-1)
            if newest > commit.generation:
                found.append(
                    f"a commit of generation {commit.generation} was answered, sent when "
                    f"{newest} was known to members"
                )
    return found


def only_owners_commit(group: GroupHistory) -> list[str]:
    """A member commits for its share in its generation only, and never without a member id."""
    shares: dict[tuple[str, int], set[str]] = {}
    for share in group.shares:
        shares.setdefault((share.member, share.generation), set()).update(share.partitions)
    return [
        f"{commit.member!r} committed {partition} in generation {commit.generation}, not its own"
        for commit in group.commits
        for partition in commit.positions
        if partition not in shares.get((commit.member, commit.generation), ())
    ]


def answered_commits_stay(group: GroupHistory) -> list[str]:
    """Promises 1 and 2: what was answered stands in the log, what was refused does not."""
    stored = {
        (record.mark, record.partition)
        for record in group.log
        if isinstance(record, StoredOffset) and record.offset is not None
    }
    found = []
    for commit in group.commits:
        for partition, offset in commit.positions.items():
            stands = (commit.mark, partition) in stored
            if commit.outcome is Outcome.ACKED and not stands:
                found.append(f"{partition} at {offset} was committed and is gone")
            elif commit.outcome is Outcome.REFUSED and stands:
                found.append(f"{partition} at {offset} was refused and is committed")
    return found


def members_begin_where_the_last_stopped(group: GroupHistory) -> list[str]:
    """A member gets, from the coordinator that gave it its share, all positions committed before.

    Another broker may be a deposed coordinator that does not know it yet: its positions are older.
    """
    before = _committed_before(group)
    shared_by = {(share.member, share.generation, share.broker) for share in group.shares}
    ever = {
        (record.partition, record.offset, record.mark)
        for record in group.log
        if isinstance(record, StoredOffset)
    }
    found = []
    for look in group.looks:
        if look.generation not in before:
            found.append(f"{look.member} was let into generation {look.generation}, not on record")
            continue
        for partition, (offset, mark) in look.found.items():
            if (look.member, look.generation, look.broker) in shared_by:
                expected = before[look.generation].get(partition, (-1, ""))
                allowed = [
                    *_or_its_own(group, look, partition, expected),
                    *_or_later(group, look, partition, ever),
                ]
                if (offset, mark) not in allowed:
                    found.append(
                        f"{look.broker} gave {look.member} in generation {look.generation} "
                        f"{offset} for {partition}, {expected[0]} was committed before it"
                    )
            elif offset >= 0 and (partition, offset, mark) not in ever:
                found.append(f"{look.broker} says {offset} for {partition}: no member committed it")
    return found


def _or_its_own(
    group: GroupHistory, look: Look, partition: str, expected: tuple[int, str]
) -> list[tuple[int, str]]:
    """Return what may be found: a member that joins again in its generation has committed in it."""
    allowed = [expected]
    for commit in group.commits:
        if (commit.member, commit.generation) != (look.member, look.generation):
            continue
        if partition in commit.positions and commit.sent_at < look.at:
            if commit.outcome is Outcome.ACKED and commit.done_at < look.at:
                allowed.clear()
            if commit.outcome is not Outcome.REFUSED:
                allowed.append((commit.positions[partition], commit.mark))
    return allowed


def _or_later(
    group: GroupHistory, look: Look, partition: str, ever: Collection[tuple[str, int | None, str]]
) -> list[tuple[int, str]]:
    """Return what may be found by a member whose share came late: what later generations stored.

    It stops committing, and nothing that it finds is older than its own generation.
    """
    return [
        (commit.positions[partition], commit.mark)
        for commit in group.commits
        if commit.generation > look.generation
        and commit.sent_at < look.at
        and partition in commit.positions
        and (partition, commit.positions[partition], commit.mark) in ever
    ]


def _committed_before(group: GroupHistory) -> dict[int, dict[str, tuple[int, str]]]:
    """Return for each generation what was committed in all before it."""
    found: dict[int, dict[str, tuple[int, str]]] = {}
    known: dict[str, tuple[int, str]] = {}
    for record in group.log:
        if isinstance(record, StoredOffset):
            if record.offset is None:
                known.pop(record.partition, None)
            else:
                known[record.partition] = (record.offset, record.mark)
        elif record.generation is not None:
            found.setdefault(record.generation, dict(known))
    return found


def commits_go_forward(group: GroupHistory) -> list[str]:
    """Committed positions fall only where a member got an older one or was out of range.

    After a commit of its own it must have got it since: an earlier position is no excuse. One
    without a response may be stored late, after a later one; for it only the first check holds.
    """
    commits = {commit.mark: commit for commit in group.commits}
    found = []
    known: dict[str, StoredOffset] = {}
    for record in group.log:
        if not isinstance(record, StoredOffset):
            continue
        if record.offset is None:
            known.pop(record.partition, None)
            continue
        former = known.get(record.partition)
        known[record.partition] = record
        commit = commits.get(record.mark)
        if former is None or former.offset is None or commit is None:
            continue
        if record.offset >= former.offset:
            continue
        own = commits.get(former.mark)
        if own is not None and (own.member, own.generation) != (commit.member, commit.generation):
            own = None
        since = own if commit.outcome is Outcome.ACKED else None
        if not any(
            position < former.offset for position in _told(group, commit, record.partition, since)
        ):
            found.append(
                f"{record.partition} went back from {former.offset} to {record.offset} in "
                f"generation {commit.generation}"
            )
    return found


def _told(
    group: GroupHistory, commit: GroupCommit, partition: str, since: GroupCommit | None
) -> Iterator[int]:
    """Yield the positions that a member got before a commit, after another one of its own."""
    owner = (commit.member, commit.generation)
    for look in group.looks:
        is_in_time = look.at < commit.sent_at and (since is None or look.at > since.sent_at)
        if (look.member, look.generation) == owner and partition in look.found and is_in_time:
            yield look.found[partition][0]
    for jump in group.jumps:
        # One may be noted later than the commit of where it led to is sent.
        if (jump.member, jump.generation, jump.partition) == (*owner, partition):
            yield jump.target


ALL: tuple[GroupChecker, ...] = (
    one_owner_in_a_generation,
    generations_rise,
    old_generations_do_not_commit,
    only_owners_commit,
    answered_commits_stay,
    members_begin_where_the_last_stopped,
    commits_go_forward,
)


def violations(group: GroupHistory, checkers: Iterable[GroupChecker] = ALL) -> list[str]:
    """Return what all checkers find, each line with the checker's name."""
    return [f"{check.__name__}: {line}" for check in checkers for line in check(group)]


def a_group_gets_everything(
    history: History, reader: str, starts: Mapping[str, int], passed: Iterable[Jump] = ()
) -> list[str]:
    """Promise 9: each acked record that is still there was delivered to some member.

    ``reader`` begins the names of the members' reads; ``starts``: where each partition that the
    group reads begins now. ``passed``: members that a deletion sent on. The next leader may have
    missed it, as Kafka's may, and what was to be deleted is there again.
    """
    reads = (read for read in history.reads if read.reader.startswith(reader))
    got = {(read.partition, read.offset) for read in reads}
    for jump in passed:
        got |= {(jump.partition, offset) for offset in range(jump.source, jump.target)}
    return [
        f"{write.partition} {write.offset} was acked and no member of the group got it"
        for write in history.writes
        if write.outcome is Outcome.ACKED
        and write.offset >= starts.get(write.partition, write.offset + 1)
        and (write.partition, write.offset) not in got
    ]


def positions_hold(group: GroupHistory, not_clean: Collection[str]) -> list[str]:
    """Promise 3: what a member stands at does not fall out of a clean partition.

    Its start may pass a member, its end never goes back below one: offsets are not rewound, and
    nothing was read above the high watermark.
    """
    return [
        f"{jump.member} stood at {jump.source} of {jump.partition} and was sent back to "
        f"{jump.target}"
        for jump in group.jumps
        if jump.target < jump.source and jump.partition not in not_clean
    ]
