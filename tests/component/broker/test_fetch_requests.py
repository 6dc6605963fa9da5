"""What a follower says with each fetch: only what the leader does not know."""

from __future__ import annotations

from pathlib import Path

from tests.support.broker_pair import append, run, running
from tidelog.broker.following.fetch_requests import FollowedPartitions
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.client.fetching.fetch_sessions import SessionRequest

MAX_BYTES = 1000


def ask(questions: FollowedPartitions) -> SessionRequest:
    question = questions.ask(MAX_BYTES, with_ids=True)
    questions.sent()
    return question


def named(question: SessionRequest) -> list[int]:
    return sorted(key.partition for key in question.wanted)


def take(questions: FollowedPartitions, hosted: HostedPartition) -> None:
    followed = questions.asked(hosted.key)
    assert followed is not None
    questions.taken(followed)


def test_a_request_names_what_changed(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as pair:
            hosted = [pair.lead(index, isr=(1,), replicas=(1,)) for index in range(4)]
            questions = FollowedPartitions()
            for each in hosted:
                questions.follow(each)
            first = ask(questions)
            assert (first.session_id, first.epoch, named(first)) == (0, 0, [0, 1, 2, 3])
            questions.answered(9)
            assert ask(questions) == SessionRequest(9, 1, {}, [])
            append(hosted[2], "a")
            take(questions, hosted[2])
            take(questions, hosted[3])
            changed = ask(questions)
            assert (changed.epoch, named(changed)) == (2, [2]), "the other one's end is the same"
            assert changed.wanted[hosted[2].key].offset == 1
            questions.leave(hosted[0].key)
            assert ask(questions) == SessionRequest(9, 3, {}, [hosted[0].key])

    run(main())


def test_a_setback_is_forgotten_until_its_rest_is_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as pair:
            hosted = pair.lead(isr=(1,), replicas=(1,))
            questions = FollowedPartitions()
            questions.follow(hosted)
            ask(questions)
            questions.answered(9)
            followed = questions.asked(hosted.key)
            assert followed is not None
            questions.rest(followed, 100)
            assert questions.asked(hosted.key) is None, "a late answer does not count"
            assert questions.wake(99) == 100
            assert ask(questions).forgotten == [hosted.key]
            assert questions.nothing_to_ask
            assert questions.wake(100) is None
            again = ask(questions)
            assert (named(again), again.forgotten) == ([0], [])

    run(main())


def test_a_lost_session_says_everything_but_what_rests(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as pair:
            hosted = [pair.lead(index, isr=(1,), replicas=(1,)) for index in range(3)]
            questions = FollowedPartitions()
            for each in hosted:
                questions.follow(each)
            ask(questions)
            questions.answered(9)
            resting = questions.asked(hosted[1].key)
            assert resting is not None
            questions.rest(resting, 100)
            questions.begin_again()
            assert not questions.has_session
            question = ask(questions)
            assert (question.session_id, question.epoch, named(question)) == (0, 0, [0, 2])
            questions.answered(0)
            assert named(ask(questions)) == [0, 2], "the leader keeps no session"

    run(main())


def test_a_partition_that_is_followed_again_takes_no_response_to_its_former_request(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with running(tmp_path) as pair:
            hosted = pair.lead(isr=(1,), replicas=(1,))
            questions = FollowedPartitions()
            questions.follow(hosted)
            ask(questions)
            questions.answered(9)
            questions.follow(hosted)
            assert questions.asked(hosted.key) is None
            assert named(ask(questions)) == [0]
            assert questions.asked(hosted.key) is not None

    run(main())
