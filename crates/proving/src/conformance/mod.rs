//! One suite for every store. A store's test binary gives a factory and gets one test per case, each
//! under the name of the rule it proves:
//!
//! ```text
//! tenure_proving::conformance!(my_store::fresh_world);
//! ```
//!
//! A case may use everything in its [`World`] and assumes that the database is its own. After each
//! case the whole store is read and checked ([`tenure_engine::checkers`]). What a case can not reach through
//! the kernel (that the database *itself* refuses an open head without a deadline, a change to a final
//! one, or a version that is not dense) each store proves beside the suite with SQL of its own.

mod specimen;
mod world;

pub mod batches;
pub mod carry;
pub mod claims;
pub mod commits;
pub mod due;
pub mod feed;
pub mod health;
pub mod mail;
pub mod outbox;
pub mod races;
pub mod retention;
pub mod sessions;
pub mod vacancy;

pub use specimen::SPECIMEN;
pub use world::{LONG, SHORT, World, judge};

use tenure_kernel::runtime::BoxFuture;

/// One case.
pub type CaseFn = for<'a> fn(&'a World) -> BoxFuture<'a, ()>;

/// Runs one case in its world, then checks the whole store.
pub async fn run(world: World, name: &str, case: CaseFn) {
    case(&world).await;
    let machines = crate::machines::machines();
    let problems = tenure_engine::checkers::check_everything(
        world.store().as_ref(),
        &machines,
        &world.judge.tables,
    )
    .await;
    assert!(problems.is_empty(), "after {name}: {}", problems.join("\n"));
}

/// Hands the list of all cases to another macro: the one place where a case is listed.
#[macro_export]
#[doc(hidden)]
macro_rules! with_conformance_cases {
    ([$($callback:tt)+] $(, $argument:path)?) => {
        $($callback)+! {
            $($argument;)?
            batches: a_second_commit_of_one_entity_in_a_batch_is_busy;
            batches: a_refused_neighbour_disturbs_nobody;
            batches: unordered_overlapping_batches_are_all_answered;
            batches: a_batch_of_the_largest_size_is_answered_in_order;
            carry: what_a_commit_carries_arrives_with_it_once;
            carry: what_a_commit_creates_is_born_with_it;
            carry: what_a_commit_carries_stays_behind_what_waits;
            carry: senders_and_a_lane_deliver_each_message_once_in_order;
            claims: claims_go_by_priority_then_by_ready_time;
            claims: queues_with_ready_work_are_found_one_after_the_other;
            claims: groups_come_in_pages_of_whole_priorities;
            claims: tenants_share_a_queue_by_deficit;
            claims: a_claim_keeps_its_limit_and_says_what_each_probe_found;
            claims: blocked_resting_final_and_held_are_never_claimed;
            claims: claimers_of_one_queue_never_share_an_entity;
            claims: a_claim_brings_unread_mail;
            claims: the_mail_of_one_claim_has_a_limit;
            commits: what_is_committed_reads_back_with_equal_bytes_and_chain;
            commits: a_nul_in_a_name_is_refused;
            commits: what_is_born_held_has_the_head_that_its_holder_can_compute;
            commits: an_open_entity_without_a_deadline_is_refused;
            commits: a_final_entity_never_changes;
            commits: a_version_gap_or_overlap_is_refused;
            commits: a_repeated_commit_id_gets_the_first_answer;
            commits: a_taken_key_names_its_entity_and_says_whether_the_input_was_the_same;
            commits: of_many_births_with_one_key_one_wins;
            commits: keys_are_found_by_range_in_the_order_of_their_bytes;
            commits: moments_are_exact_to_the_microsecond;
            commits: names_and_bodies_come_back_at_their_limits;
            due: due_gives_the_longest_due_first_within_lanes_and_limit;
            due: what_came_due_last_is_found_from_the_other_end;
            due: next_due_is_the_earliest_of_the_lanes;
            due: a_touch_counts_only_for_the_head_it_saw;
            due: no_touch_postpones_the_deadline_or_unread_mail;
            due: due_is_a_lower_bound_that_moves_earlier_at_once;
            due: heads_are_listed_by_filter_and_page;
            due: heads_are_listed_newest_first_and_by_several_statuses;
            due: what_a_session_holds_is_listed_by_when_it_is_due;
            feed: a_follower_misses_nothing_that_others_write;
            feed: a_cursor_continues_from_its_text_form;
            feed: a_cursor_of_another_store_is_lost;
            feed: a_cursor_below_the_floor_is_lost_after_retirement;
            health: health_says_what_the_rows_say;
            mail: mail_between_the_last_look_and_the_park_refuses_the_park;
            mail: mail_in_the_batch_of_a_park_wakes_the_parked;
            mail: mail_is_idempotent_and_answers_final_and_unknown;
            mail: mail_and_evidence_keep_their_limits;
            mail: evidence_about_one_entity_has_a_limit;
            mail: a_thousand_mails_from_eight_senders_are_all_there_once;
            mail: a_park_and_a_mail_that_race_never_leave_mail_asleep;
            outbox: messages_leave_in_order_per_source;
            outbox: two_deliverers_deliver_each_message_once;
            outbox: a_message_to_nobody_stays_and_one_to_a_final_entity_goes;
            outbox: a_wake_up_does_not_wait_for_a_wire;
            outbox: mail_that_expects_an_answer_comes_back_from_a_final_entity;
            outbox: a_create_is_delivered_once_and_a_second_one_is_told;
            outbox: two_creates_that_race_make_one_entity;
            races: of_64_claimers_of_one_entity_one_wins;
            races: of_64_committers_of_one_version_one_wins;
            races: a_claim_between_look_and_write_refuses_the_write;
            races: a_paused_writer_is_refused_in_every_way_after_a_takeover;
            races: a_delivery_under_a_lost_lane_is_refused;
            retention: blobs_that_nothing_names_leave_in_rounds;
            retention: the_values_of_an_entity_leave_with_it_however_many_others_there_are;
            retention: what_a_tenant_uses_is_counted;
            retention: a_blob_lives_as_long_as_an_entity_names_it;
            retention: a_blob_keeps_its_limit;
            retention: only_final_entities_older_than_the_moment_leave;
            retention: a_retired_entity_leaves_nothing_behind;
            retention: an_entity_with_undelivered_messages_stays;
            retention: records_below_a_seal_leave_and_the_rest_verifies;
            retention: read_mail_of_what_is_sealed_leaves_when_it_is_old;
            retention: a_silent_pulse_is_an_outage_and_defers_judgement;
            retention: tallies_add_up_over_pulses;
            sessions: a_session_opens_alive_and_holds_itself;
            sessions: a_renewal_says_what_is_lost_and_what_has_mail;
            sessions: a_lapsed_session_vouches_for_nothing_and_fences_nothing;
            sessions: an_ended_session_is_told_so_and_rings_its_checks;
            sessions: an_end_and_a_renewal_in_one_batch_give_ended;
            vacancy: what_is_vacant_leaves_like_what_is_over;
            vacancy: what_is_vacant_stays_while_something_is_open;
            vacancy: a_new_life_is_not_taken_for_the_former_one;
            vacancy: mail_that_meets_retention_is_kept_or_answered_unknown;
        }
    };
}

macro_rules! list {
    ($($module:ident: $case:ident;)*) => {
        &[$((stringify!($case), |world| Box::pin($module::$case(world)))),*]
    };
}

/// Every case, by name.
pub const CASES: &[(&str, CaseFn)] = with_conformance_cases!([list]);

/// Expands to one test per case over the worlds that `factory` (an `async fn() -> World`) makes. The
/// calling crate needs Tokio with `macros` and `rt-multi-thread`.
#[macro_export]
macro_rules! conformance {
    ($factory:path) => {
        $crate::with_conformance_cases!([$crate::conformance_tests], $factory);
    };
}

/// Behind [`conformance!`].
#[macro_export]
#[doc(hidden)]
macro_rules! conformance_tests {
    ($factory:path; $($module:ident: $case:ident;)*) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                let case: $crate::conformance::CaseFn =
                    |world| Box::pin($crate::conformance::$module::$case(world));
                $crate::conformance::run($factory().await, stringify!($case), case).await;
            }
        )*
    };
}
