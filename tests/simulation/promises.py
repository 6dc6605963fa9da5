"""Which promise of docs/promises.md a finding of a simulated run breaks.

Owns the table from the name that begins each finding (`acked_is_not_lost: …`) to the promises. Not
the checks: see `checkers`, `group_checkers` and the watchers in `cluster/`.
"""

from __future__ import annotations

PROMISES: dict[str, tuple[int, ...]] = {
    "acked_is_not_lost": (1,),
    "no_loss_while_clean": (1,),
    "commits_stay": (1,),
    "only_what_was_asked_goes": (1,),
    "retention_stays_below_the_watermark": (1, 4),
    "answered_commits_stay": (1, 2),
    "refused_is_not_readable": (2,),
    "idempotent_is_once": (2, 6),
    "one_offset_one_record": (3,),
    "epochs_end_where_they_did": (3, 4),
    "positions_hold": (3,),
    "read_is_not_unread": (4,),
    "producer_order_holds": (5,),
    "real_time_order_holds": (5,),
    "idempotence_survives": (6,),
    "a_group_gets_everything": (9,),
    "no_stale_metadata": (13,),
    "one_leader_per_epoch": (14,),
    "only_the_leader_changes_the_isr": (15,),
    "only_the_complete_lead": (16,),
    "only_the_complete_join": (16,),
    "unclean_is_allowed": (17,),
    "unclean_is_recorded": (17,),
    "no_late_deletion": (18,),
    "no_stale_replica": (19,),
    "no_delete_without_proof": (20,),
    "a_move_keeps_redundancy": (21,),
    "one_controller_writes": (22,),
    "no_step_back": (13, 23),
    "recovery_is_bounded": (24,),
    "failed_sync_is_final": (25,),
    "only_the_torn_tail_is_cut": (26,),
    "damage_is_never_served": (26,),
    "no_bad_crc_is_accepted": (27,),
    "a_full_disk_heals": (28,),
    "order_of_keys": (7,),
    "fences_come_first": (8,),
    "only_a_growth_makes_partitions": (11,),
    "no_move_meets_a_resize": (11,),
    "committed_is_whole": (33,),
    "aborted_is_never_visible": (33,),
    "offsets_agree": (33,),
    "committed_stays": (3, 4),
    "transactions_keep_their_order": (5, 6),
    "stable_offsets_stay": (34,),
    "the_stable_offset_follows": (34,),
}

RULES = {
    "death_takes_its_time": "docs/design/who-may-lead.md",
    "a_move_raises_the_epoch": "docs/design/moving.md",
    "a_move_keeps_its_record": "docs/design/moving.md",
    "a_move_notes_its_stops": "docs/design/moving.md",
    "a_stop_follows_the_shrink": "docs/design/moving.md",
    "a_move_ends_exactly": "docs/design/moving.md",
    "a_move_is_answered": "docs/design/moving.md",
    "no_copy_is_left_over": "docs/design/moving.md",
    "no_doubt_outlives_faults": "docs/design/elastic.md",
    "nothing_is_refused_for_good": "docs/decisions/0142-before-its-level-is-known-a-broker-refuses-"
    "nothing-for-good.md",
    "a_fence_is_written_once": "docs/design/elastic.md",
    "no_removal_during_a_resize": "docs/design/elastic.md",
    "one_owner_in_a_generation": "Kafka's group protocol",
    "generations_rise": "Kafka's group protocol",
    "old_generations_do_not_commit": "Kafka's group protocol",
    "only_owners_commit": "Kafka's group protocol",
    "members_begin_where_the_last_stopped": "Kafka's group protocol",
    "commits_go_forward": "Kafka's group protocol",
}
"""Findings against a rule that is not a promise, and where the rule stands."""


def name_of(finding: str) -> str:
    """Return the name that begins a finding; "" when it has none, as an error of the run has."""
    name = finding.partition(":")[0]
    return name if name in PROMISES or name in RULES else ""


def broken(finding: str) -> str:
    """Return what a finding breaks, in one line: the promise's number, then the checker's name."""
    name = name_of(finding)
    if name in PROMISES:
        numbers = " and ".join(map(str, PROMISES[name]))
        plural = "s" if len(PROMISES[name]) > 1 else ""
        return f"promise{plural} {numbers} of docs/promises.md: {name}"
    if name in RULES:
        return f"rule of {RULES[name]}: {name}"
    return "no promise by name: the run itself failed"


def first_of(findings: list[str]) -> str:
    """Return the finding to report first: one that names a promise or a rule, if there is one."""
    return next((each for each in findings if name_of(each)), findings[0])
