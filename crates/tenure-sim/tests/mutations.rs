//! Breaks each rule of the protocols on purpose: the checks must notice. A rule whose removal goes unnoticed is not
//! tested. Only the copy of the source that `scripts/mutants` makes has the switches for it.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails where it cannot go on, and uses the part of the cluster's world that it needs"
)]

#[path = "../../tenure-core/tests/cluster/simulation.rs"]
mod cluster;
#[path = "../../tenure-core/tests/cluster/world.rs"]
mod world;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tenure_core::mutation::{Mutation, with};
use tenure_sim::{Options, callers, run, stack};

/// The number of seeds within which a broken rule must be noticed.
const SEEDS: u64 = 300;

/// How many seeds are run with no rule broken.
const SEEDS_UNBROKEN: u64 = 5;

/// Some seed must show that a rule is broken, by the property that the rule protects; other seeds may fail by its
/// consequences.
fn noticed(mutation: Mutation, seeds: u64, expected: &[&str], run: impl Fn(u64) -> Option<String>) {
    let mut seen = BTreeSet::new();
    for seed in 0..seeds {
        let Some(told) = with(Some(mutation), || run(seed)) else {
            continue;
        };
        if expected.iter().any(|words| told.contains(words)) {
            return;
        }
        seen.insert(told);
    }
    panic!("nothing notices {mutation:?} in {seeds} seeds as it should, only: {seen:?}");
}

/// The property that a simulation of sessions and elections finds broken.
fn in_elections(seed: u64) -> Option<String> {
    let verdict = run(seed, &Options::default());
    verdict
        .err()
        .map(|failure| failure.violation.property.to_owned())
}

/// The message with which a simulation of the cluster panics.
fn in_cluster(seed: u64) -> Option<String> {
    let verdict = catch_unwind(AssertUnwindSafe(|| cluster::run(seed)));
    verdict.err().map(|panic| words_of(&*panic))
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
        .unwrap_or_default()
}

/// The switches themselves must change nothing. Otherwise every rule would seem to be noticed.
#[test]
fn nothing_is_noticed_while_no_rule_is_broken() {
    for seed in 0..SEEDS_UNBROKEN {
        assert_eq!(in_elections(seed), None, "elections, seed {seed}");
        assert_eq!(in_cluster(seed), None, "cluster, seed {seed}");
        assert_eq!(in_callers(seed), None, "callers, seed {seed}");
        for files in [false, true] {
            assert_eq!(
                in_stack(seed, Some(files)),
                None,
                "files {files}, seed {seed}"
            );
        }
    }
}

/// A test per rule: its name, the rule, and the property or message that shows it.
macro_rules! rules {
    ($($name:ident: $mutation:ident => $($property:literal)|+;)*) => {$(
        #[test]
        fn $name() {
            noticed(Mutation::$mutation, SEEDS, &[$($property),+], in_elections);
        }
    )*
        const ELECTION_RULES: &[Mutation] = &[$(Mutation::$mutation),*];
    };
}

macro_rules! cluster_rules {
    ($($name:ident: $mutation:ident => $($words:literal)|+;)*) => {$(
        #[test]
        fn $name() {
            noticed(Mutation::$mutation, SEEDS, &[$($words),+], in_cluster);
        }
    )*
        const CLUSTER_RULES: &[Mutation] = &[$(Mutation::$mutation),*];
    };
}

rules! {
    trust_counts_from_the_start_of_a_heartbeat: TrustFromAnswer
        => "trust is backed by what the store did";
    trust_counts_from_the_start_of_a_look: TrustFromLookAnswer
        => "trust is backed by what the store did";
    trust_ends_a_margin_before_the_ttl: NoMargin => "trust is backed by what the store did";
    a_lease_is_trusted_while_it_is_seen: TrustUnseenLease
        => "trust is backed by what the store did";
    eviction_waits_a_whole_ttl: EvictEarly => "evicted after a whole ttl";
    an_age_is_of_one_clock: AgeByAnyClock => "evicted after a whole ttl";
    the_ttl_of_the_record_rules: ObserverTtl => "evicted after a whole ttl";
    a_lease_is_taken_after_eviction_only: TakeWithoutEviction
        => "a lease is taken from ended sessions only";
    a_missing_session_is_waited_for: MissingSessionIsDead
        => "a lease is taken from ended sessions only";
    an_evicted_session_is_over: IgnoreEviction => "a session that has ended stays so";
    a_session_is_never_made_again: RecreateSession => "a session is made once";
    a_lost_heartbeat_is_read_back: UnknownHeartbeatFailed => "nothing healthy is given up";
    a_lost_lease_is_read_back: UnknownLeaseApplied => "trust is backed by what the store did";
    a_page_serves_only_who_asked_before_it: PageServesLater
        => "trust is backed by what the store did";
    who_waits_for_a_page_in_vain_reads: PageForgets => "what should happen does";
    the_fence_is_raised_first: LeadBeforeFence => "the fence is raised first";
    after_damage_a_ttl_is_waited: NoWaitAfterDamage => "at most one trusted leader";
    the_next_term_is_higher: SameTerm
        => "what should happen does" | "elected terms only grow" | "no machine panics"
        | "one leader when all is well";
    the_fence_remembers_the_highest_term: ForgetFence => "a fence only grows";
    ownership_is_the_incarnation: OwnByName
        => "a lease is vacated by its holder after its work" | "at most one trusted leader"
        | "trust is backed by what the store did";
    a_lease_is_given_back_after_the_work: ReleaseWhileWorking
        => "a lease is vacated by its holder after its work";
    a_session_is_gone_after_the_work: LeaveWhileWorking => "a session is gone after its work";
    a_session_that_cannot_read_ends: KeepUnreadable => "what should happen does";
    every_term_ends_once: EndUntold => "every elected has one ended";
    what_failed_is_not_sent_again_at_once: RetryAtOnce => "no hot loop";
}

cluster_rules! {
    a_shard_is_drained_before_it_moves: NoDrain => "both trust";
    generations_grow: SameGeneration => "starts in";
    a_new_leader_installs_its_term_first: DecideBeforeInstalled => "never stood on the assignments";
    a_shard_is_trusted_while_it_is_seen: TrustUnseenAssignment => "both trust";
    a_silent_node_keeps_its_shards: SilenceIsDeath => "both trust";
    a_node_has_all_its_time_to_end_a_shard: ForceEarly => "both trust";
    a_revoke_is_confirmed_by_words: SilenceConfirms => "both trust" | "starts in";
    a_shard_is_trusted_while_the_session_is: TrustWithoutSession => "both trust";
    trust_in_an_assignment_counts_from_the_start_of_a_look: TrustAssignmentFromAnswer => "starts in";
    a_generation_starts_once: StartAgain => "starts in";
    an_older_generation_ends_first: StartBesideOlder => "two generations on";
}

/// The failure where assignments are lost.
fn in_losses(seed: u64) -> Option<String> {
    let verdict = catch_unwind(AssertUnwindSafe(|| cluster::lose(seed)));
    verdict.err().map(|panic| words_of(&*panic))
}

#[test]
fn who_comes_after_a_loss_waits_too() {
    noticed(Mutation::LossForgotten, SEEDS, &["both trust"], in_losses);
}

#[test]
fn a_leader_says_so_before_it_assigns() {
    noticed(Mutation::AssignUnsaid, SEEDS, &["both trust"], in_losses);
}

#[test]
fn terms_are_compared_within_their_row() {
    assert_eq!(cluster::start_over(0), Ok(()));
    noticed(Mutation::RowIgnored, 20, &["runs on None"], |seed| {
        cluster::start_over(seed).err()
    });
}

/// The number of seeds of the whole stack within which a broken rule must be noticed, and how long chaos lasts in
/// each.
const STACK_SEEDS: u64 = 100;
const STACK_CHAOS: Duration = Duration::from_secs(150);

/// The failure in a simulation of the whole stack, in one form of the log or in both.
fn in_stack(seed: u64, files: Option<bool>) -> Option<String> {
    let options = stack::Options {
        chaos: STACK_CHAOS,
        files,
        ..stack::Options::default()
    };
    let verdict = stack::run(seed, &options);
    verdict
        .err()
        .map(|failure| failure.violation.property.to_owned())
}

/// Brokers on a server whose clocks may be wrong by any amount, and which trust these clocks.
#[test]
fn the_whole_stack_believes_no_clock_of_a_server() {
    let expected = [
        "at most one trusted leader",
        "a shard is active on one trusted node",
    ];
    noticed(Mutation::AgeByAnyClock, STACK_SEEDS, &expected, |seed| {
        in_stack(seed, Some(false))
    });
}

/// Rules that other simulations notice, here in the whole stack: its invariants about trust notice them too.
#[test]
fn the_whole_stack_has_one_trusted_leader() {
    let expected = ["at most one trusted leader"];
    noticed(Mutation::EvictEarly, STACK_SEEDS, &expected, |seed| {
        in_stack(seed, None)
    });
}

#[test]
fn the_whole_stack_has_one_active_shard() {
    let expected = ["a shard is active on one trusted node"];
    noticed(Mutation::NoDrain, STACK_SEEDS, &expected, |seed| {
        in_stack(seed, None)
    });
}

/// Only a leader that was frozen commits while its successor reads: so all hosts freeze at times.
#[test]
fn a_new_leader_raises_the_fence_before_it_reads() {
    let options = stack::Options {
        chaos: STACK_CHAOS,
        files: Some(true),
        freezes: Some(true),
        ..stack::Options::default()
    };
    let expected = [
        "what is committed stays in the log",
        "what is applied is committed",
        "what is acknowledged is committed",
        "what is noted is in the log",
    ];
    noticed(Mutation::ReadBeforeFence, STACK_SEEDS, &expected, |seed| {
        let verdict = stack::run(seed, &options);
        let failure = verdict.err();
        failure.map(|failure| failure.violation.property.to_owned())
    });
}

macro_rules! stack_rules {
    ($list:ident, $files:expr; $($name:ident: $mutation:ident => $($property:literal)|+;)*) => {$(
        #[test]
        fn $name() {
            let in_stack = |seed| in_stack(seed, $files);
            noticed(Mutation::$mutation, STACK_SEEDS, &[$($property),+], in_stack);
        }
    )*
        const $list: &[Mutation] = &[$(Mutation::$mutation),*];
    };
}

stack_rules! {
    QUEUE_RULES, None;
    a_unique_key_keeps_others_out: UniqueKeyIgnored => "a unique key is held by one unfinished job";
    a_unique_key_is_free_when_its_job_ends: UniqueKeyKept
        => "a unique key is held by one unfinished job";
    a_group_runs_in_order: GroupNotHeld => "a group runs one at a time, in order";
    a_claim_is_ended_by_its_token: StaleTokenAccepted
        => "a claim is ended once, by whoever holds it" | "an end that is told again is answered as before";
    a_lease_runs_out: LeaseNeverExpires => "what should happen does";
    a_lease_lasts_its_time: LeaseExpiresEarly
        => "a claim stands as long as its lease" | "a job is with one worker at a time";
    what_runs_has_a_lease_after_a_takeover: LeasesNotResumed
        => "what should happen does" | "a claim stands as long as its lease";
    missed_slots_are_caught_up_with: MissedSlotsForgotten => "schedules keep their slots";
    a_paused_schedule_fires_nothing: PauseIgnored => "schedules keep their slots";
    a_queue_runs_no_more_than_it_may: ConcurrencyIgnored => "a queue's limits are kept";
    a_queue_gives_no_more_than_its_rate: RateIgnored => "a queue's limits are kept";
    a_queue_that_opens_wakes_who_waits: OpeningUnnoted => "a claim that waits is served";
    what_is_due_at_once_is_cut_by_bytes: CutByNumberOnly => "what should happen does";
    a_finished_job_is_kept_for_its_time: ForgottenEarly => "a job is forgotten in its time";
    a_delayed_job_waits: DelayIgnored => "a job waits for its time";
    a_failed_job_waits: BackoffHalved => "a job waits for its time";
    the_highest_priority_is_first: PriorityIgnored => "the highest priority comes first";
    a_job_has_no_attempt_too_many: AttemptTooMany => "a job has the attempts that it may have";
    a_release_costs_nothing: ReleaseCosts => "a release costs no attempt";
    a_result_is_kept: ResultDropped => "a result is what was reported";
    a_job_is_enqueued_once: SubmittedTwice => "a job is held once";
    a_read_is_of_what_is_committed: ShownAhead => "a read shows what is committed";
    a_claim_asked_for_again_gets_the_same: AskedAgainTakesNew
        => "a claim that is asked for again is the same";
    what_was_asked_for_again_is_not_handed_back: AbandonedAnyway
        => "a claim that is asked for again is the same";
    an_end_told_again_is_answered_as_before: EndForgotten
        => "an end that is told again is answered as before";
    another_end_of_a_claim_is_told_apart: OtherEndDropped
        => "an end that is told again is answered as before";
    a_time_that_was_given_stays: GivenTimeMoves => "a job waits for its time";
    a_snapshot_says_what_it_contains: SnapshotOneAhead
        => "nothing is damaged" | "what is recovered is committed";
}

stack_rules! {
    OBJECT_RULES, Some(false);
    a_lost_commit_is_not_taken_for_done: UnknownCommitDone
        => "what is applied is committed" | "what is acknowledged is committed"
        | "a place of the log is taken once" | "nothing is damaged" | "what is noted is in the log";
    a_lost_commit_is_not_taken_for_failed: UnknownCommitFailed
        => "acknowledged jobs are kept, refused ones are not" | "what is applied is committed"
        | "records are numbered without a gap" | "a place of the log is taken once"
        | "a claim stands as long as its lease";
    a_taken_place_ends_a_leader: TakenPlaceIgnored
        => "what is applied is committed" | "what is acknowledged is committed";
    a_new_leader_takes_a_place_first: NoTermRecord => "a term has one writer";
    clean_up_leaves_what_is_needed: CleanUpTooFar
        => "nothing is damaged" | "a place of the log is taken once";
}

stack_rules! {
    FILE_RULES, Some(true);
    a_commit_is_synced_first: CommitBeforeSync
        => "what is applied is committed" | "what is acknowledged is committed"
        | "what is noted is in the log";
    a_commit_looks_at_the_fence: FenceUnchecked
        => "what is applied is committed" | "what is acknowledged is committed"
        | "what is noted is in the log";
    what_a_new_leader_builds_on_is_durable: BuildOnUnsynced
        => "what is committed stays in the log" | "nothing is damaged";
    what_a_failed_sync_left_is_written_again: TrustFailedSync
        => "what is committed stays in the log" | "nothing is damaged";
    a_new_file_has_a_durable_name: FolderUnsynced
        => "what is applied is committed" | "what is acknowledged is committed"
        | "what is noted is in the log";
}

/// The failure in the whole stack with an outbox beside the queue.
fn in_outbox(seed: u64) -> Option<String> {
    let options = stack::Options {
        chaos: STACK_CHAOS,
        outbox: Some(true),
        ..stack::Options::default()
    };
    let failure = stack::run(seed, &options).err();
    failure.map(|failure| failure.violation.property.to_owned())
}

macro_rules! outbox_rules {
    ($($name:ident: $mutation:ident => $($property:literal)|+;)*) => {$(
        #[test]
        fn $name() {
            noticed(Mutation::$mutation, STACK_SEEDS, &[$($property),+], in_outbox);
        }
    )*
        const OUTBOX_RULES: &[Mutation] = &[$(Mutation::$mutation),*];
    };
}

outbox_rules! {
    a_row_waits_for_those_before_it: GapIgnored
        => "a group leaves the outbox in the order of its commits";
    a_group_is_delivered_once_at_a_time: GroupBesideItself
        => "a group leaves the outbox in the order of its commits";
    what_commits_late_is_found: LateCommitMissed => "what should happen does";
    a_row_is_deleted_after_it_is_enqueued: UnansweredDeleted
        => "what is deleted from the outbox was enqueued";
    an_end_is_deleted_after_it_is_told: EndUnanswered
        => "an end that is deleted from the outbox was told";
    nothing_overtakes_a_row_that_failed: FailureOvertaken
        => "a group leaves the outbox in the order of its commits";
    nothing_overtakes_a_row_that_was_not_taken: RefusalOvertaken
        => "a group leaves the outbox in the order of its commits";
    a_row_that_is_no_job_is_put_aside: PoisonHoldsItsGroup => "what should happen does";
    what_was_delivered_is_written_down: TroubleDropsOutcomes => "what a relay has delivered it does not deliver again";
}

/// The failure in a simulation of one-shot callers.
fn in_callers(seed: u64) -> Option<String> {
    let failure = callers::run(seed, &callers::Options::default()).err();
    failure.map(|failure| failure.violation.property.to_owned())
}

macro_rules! caller_rules {
    ($($name:ident: $mutation:ident => $($property:literal)|+;)*) => {$(
        #[test]
        fn $name() {
            noticed(Mutation::$mutation, STACK_SEEDS, &[$($property),+], in_callers);
        }
    )*
        const CALLER_RULES: &[Mutation] = &[$(Mutation::$mutation),*];
    };
}

caller_rules! {
    a_lease_lapses_when_what_was_told_is_over: LapsesEarly => "at most one trusted leader";
    a_lease_lapses_though_the_session_lives: NeverLapses
        => "a request to a caller takes effect in time";
    a_caller_that_is_asked_to_go_is_told_so: LedOnWhenAsked => "at most one trusted leader";
    a_caller_is_told_what_its_lease_says: ToldForTheLongerTtl => "at most one trusted leader";
    a_request_counts_from_when_it_was_seen: LapsesByAge => "at most one trusted leader";
}

/// Rules that the simulations cannot break, or notice only by chance, but the models find: see
/// `tests/model_mutations.rs`, and `make model` for the last one, which takes three faults to show.
const MODEL_RULES: &[Mutation] = &[
    Mutation::RecogniseByCounter,
    Mutation::GiveBackOutrun,
    Mutation::NeverForce,
    Mutation::WholeDrainTrust,
    Mutation::NoWaitAfterLoss,
];

#[test]
fn every_rule_has_its_test() {
    let mut tested: Vec<Mutation> = [
        ELECTION_RULES,
        CLUSTER_RULES,
        QUEUE_RULES,
        OBJECT_RULES,
        FILE_RULES,
        OUTBOX_RULES,
        CALLER_RULES,
        MODEL_RULES,
        &[
            Mutation::RowIgnored,
            Mutation::LossForgotten,
            Mutation::AssignUnsaid,
            Mutation::ReadBeforeFence,
        ],
    ]
    .concat();
    tested.sort();
    let mut all = Mutation::ALL.to_vec();
    all.sort();
    assert_eq!(tested, all);
}
