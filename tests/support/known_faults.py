"""Faults that learner groups are known for and behaviours to show, and their tests; see test_parity.py."""

FAULTS = {
    "1. exchanges off by one where asynchronous calls reach some learners only": (
        "distributed/test_group_async.py::test_a_slow_learner_alone_decides_whether_there_is_room",
        "distributed/test_group_async.py::test_a_hundred_calls_with_a_slow_learner",
    ),
    "2. deadlocks of empty or uneven shards, and of modules in another order": (
        "distributed/test_group_inputs.py::test_modules_in_another_order_or_only_on_one_learner_do_not_deadlock",
        "distributed/test_group_inputs.py::test_fewer_futures_than_learners_leave_the_step_out_on_all",
        "learners/test_learner_steps.py::test_a_module_with_an_empty_shard_on_one_rank_is_skipped_on_both_and_counted",
    ),
    "3. updates from episodes that forget return_state and further arguments": (
        "distributed/test_group_inputs.py::test_every_kind_of_input_trains_and_passes_on_all_that_was_asked_for*",
    ),
    "4. minibatches counted downwards, to none": (
        "learners/test_minibatch.py::test_counts",
        "learners/test_splitting.py::test_plan_and_rows_agree",
    ),
    "5. parameters, statistics, schedules, noise or places in the data that are not shared, or not saved": (
        "distributed/test_group_state.py::test_what_is_no_network_is_shared_and_saved_too*",
        "distributed/test_group_state.py::test_update_save_restore_update_equals_the_uninterrupted_run*",
        "conformance/test_algorithms.py::test_going_on_after_restoring_is_bit_identical",
    ),
    # Warm-ups and schedules are functions of the learner's step, of which there is one, and it is saved.
    "6. counters that begin again with every call": (
        "distributed/test_group_state.py::test_counters_run_over_all_update_calls_and_are_saved*",
    ),
    "7. a target computed with another network than the target's": (
        "learners/test_iql.py::test_whole_updates_are_those_of_the_paper",
        "learners/test_iql.py::test_targets_start_as_their_critics_and_learn_by_lerp_only",
    ),
    # No estimator weighs rows by importance. Losses read the logged actions, and draw nothing themselves.
    "8. importance ratios of actions that nobody took": (
        "conformance/test_algorithms.py::test_losses_are_pure",
        "learners/test_bc.py::test_whole_updates",
    ),
    # No estimator runs along time inside a loss: what reaches beyond a row is computed over whole episodes before.
    "9. each row taken for an episode": (
        "learners/test_episodes.py::test_returns_reach_over_cuts_and_never_end_with_a_row",
        "learners/test_episodes.py::test_shared_out_or_not_the_rows_are_the_same_bit_by_bit",
        "storage/test_transforms.py::test_returns_to_go_equal_the_definition",
    ),
    "10. tail rows that are dropped, batches that come up short": (
        "learners/test_splitting.py::test_no_row_of_a_tail_is_dropped_and_every_minibatch_is_full",
        "pipeline/feed/test_iterator.py::test_an_epoch_delivers_each_transition_once_and_never_a_final_row",
    ),
    "11. checkpoints that are torn, pickled, partly missing, or restored in part without a word": (
        "storage/test_checkpoint.py::test_kill_9_at_any_moment_leaves_a_loadable_latest",
        "storage/test_checkpoint_faults.py::test_damaged_or_hostile_checkpoints_are_refused_by_name",
        "storage/test_hostile_checkpoints.py::test_a_hostile_checkpoint_is_refused_at_once_and_does_nothing",
        "distributed/test_group_state.py::test_errors_on_a_learner_and_missing_parts_are_raised*",
        "distributed/test_group_state.py::test_a_learning_rate_that_was_changed_on_restoring_is_used*",
    ),
    "12. gradients that are not finite and stepped nevertheless": (
        "distributed/test_group_state.py::test_a_gradient_that_is_not_finite_on_one_learner_skips_the_step_on_all*",
        "learners/test_learner_undo.py::test_a_later_phase_that_is_not_finite_takes_the_whole_step_back",
    ),
    "13. threads of abandoned iterators": (
        "pipeline/feed/test_abandoned.py::test_the_threads_of_an_abandoned_iterator_end",
        "pipeline/feed/test_loaders.py::test_close_ends_the_threads",
        "learners/test_learner_requests.py::test_a_changed_source_of_the_same_key_is_opened_anew",
    ),
    "14. metrics that take a lock, and a tenth of the time": (
        "learners/test_update_overhead.py::test_metrics_take_a_small_share_of_an_update_and_no_lock",
    ),
    "15. evaluation that waits for ever": (
        "distributed/test_rollout_tasks.py::test_a_task_that_never_ends_is_a_timeout",
        "distributed/test_rollout_tasks.py::test_a_task_that_kills_every_worker_is_an_error_that_says_so",
    ),
}

BEHAVIOURS = {
    "update, save, restore, update equals the uninterrupted run": (
        "distributed/test_group_state.py::test_update_save_restore_update_equals_the_uninterrupted_run*",
    ),
    "equal weights on all learners after any number of updates": (
        "distributed/test_learner_group.py::test_weights_stay_equal_on_all_learners*",
        "distributed/test_group_async.py::test_a_hundred_calls_with_a_slow_learner",
    ),
    "modules that come and go change the result keys": (
        "distributed/test_group_modules.py::test_adding_and_removing_a_module_changes_the_result_keys_and_leaves_the_others_alone*",
    ),
    "100 steps of Adam on a sum of parameters": (
        "distributed/test_group_inputs.py::test_100_adam_steps_on_a_sum_of_parameters_move_each_by_100_rates*",
    ),
    "clipping by value, norm, global norm": (
        "learners/test_learner.py::test_clipping",
        "learners/test_optimizers.py::test_clipping_is_torchs",
        "distributed/test_group_inputs.py::test_clipping_is_of_the_gradient_of_all_learners_together*",
    ),
    "an empty shard on one rank: skipped on both, weights unchanged, counted": (
        "distributed/test_learner_group.py::test_a_module_without_a_row_on_some_learner_is_skipped_on_all",
        "distributed/test_group_inputs.py::test_fewer_futures_than_learners_leave_the_step_out_on_all",
    ),
    "256 rows and 64 rows at minibatch 32 are 8 steps each": (
        "distributed/test_group_inputs.py::test_256_rows_on_one_learner_and_64_on_the_other_at_minibatch_32_are_8_steps_each",
    ),
    "a failing function fails on all, and the next update trains": (
        "distributed/test_learner_group.py::test_an_error_in_the_loss_is_raised_with_its_traceback_and_the_next_update_trains*",
        "distributed/test_learner_group.py::test_after_a_failed_step_all_learners_go_on_with_the_batch_that_failed*",
    ),
    "asynchronous calls are faster under load and report the true state": (
        "distributed/test_group_async.py::test_a_hundred_calls_with_a_slow_learner",
    ),
}
