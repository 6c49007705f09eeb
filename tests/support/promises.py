"""What a learner group promises, and the tests that show it; see test_parity.py."""

GROUP = {
    "construction: learners in process, as one actor, as several; a config of its own": (
        "distributed/test_learner_group.py::test_kinds_and_lengths*",
        "distributed/test_learner_group.py::test_two_learners_do_what_one_does",
        "distributed/test_group_faults.py::test_workers_of_its_own_neither_pause_nor_spill_and_are_closed",
    ),
    "too few workers or GPUs: one clear error in time": (
        "distributed/test_group_foreach.py::test_not_enough_workers_or_gpus_is_one_clear_error_in_time",
        "distributed/test_learner_group.py::test_more_learners_than_workers_is_one_clear_error",
        "distributed/test_bad_jobs.py::test_more_learners_than_workers",
    ),
    "is_local, is_remote, len": ("distributed/test_learner_group.py::test_kinds_and_lengths*",),
    "get_stats": ("distributed/test_group_state.py::test_what_the_group_tells_of_itself*",),
    "update_from_batch": (
        "distributed/test_learner_group.py::test_one_result_per_learner_keyed_by_module*",
        "distributed/test_learner_group.py::test_minibatches_and_epochs*",
        "distributed/test_group_inputs.py::test_every_kind_of_input_trains_and_passes_on_all_that_was_asked_for*",
        "distributed/test_group_inputs.py::test_one_module_as_a_batch_or_by_its_id*",
        "distributed/test_group_inputs.py::test_futures_are_one_a_learner_and_equal_to_their_values*",
        "distributed/test_group_inputs.py::test_results_of_tasks_need_not_be_there_yet_and_their_errors_are_told*",
        "distributed/test_group_inputs.py::test_iterators_need_the_number_of_steps_and_one_for_each_learner*",
    ),
    "update_from_episodes": (
        "distributed/test_learner_group.py::test_update_from_episodes*",
        "distributed/test_group_inputs.py::test_every_kind_of_input_trains_and_passes_on_all_that_was_asked_for*",
        "distributed/test_group_inputs.py::test_futures_of_episodes_are_shared_out_contiguously",
        "learners/test_episode_updates.py::test_two_learners_learn_what_one_does",
    ),
    "update_from_iterators": (
        "distributed/test_learner_group.py::test_update_from_iterables_starts_the_next_epoch*",
        "distributed/test_group_inputs.py::test_every_kind_of_input_trains_and_passes_on_all_that_was_asked_for*",
        "distributed/test_elastic.py::test_float64_weights_agree_for_any_number_of_learners",
    ),
    "return value and return_state": (
        "distributed/test_learner_group.py::test_one_result_per_learner_keyed_by_module*",
        "distributed/test_learner_group.py::test_return_state_is_what_acting_needs*",
        "distributed/test_group_inputs.py::test_every_kind_of_input_trains_and_passes_on_all_that_was_asked_for*",
    ),
    "async_update": (
        "distributed/test_group_async.py::test_a_local_group_refuses_asynchronous_calls",
        "distributed/test_group_async.py::test_a_call_goes_to_all_learners_or_to_none_and_returns_what_is_ready",
        "distributed/test_group_async.py::test_a_slow_learner_alone_decides_whether_there_is_room",
        "distributed/test_group_async.py::test_an_error_of_an_asynchronous_call_is_raised_by_the_next_one_that_collects",
        "distributed/test_group_async.py::test_a_synchronous_call_leaves_the_error_to_the_next_asynchronous_one",
        "distributed/test_group_async.py::test_futures_are_held_until_their_call_has_ended",
        "distributed/test_group_drops.py::test_dropped_rows_are_counted_for_every_kind_of_input",
        "distributed/test_group_async.py::test_iterators_that_were_dropped_go_on_where_they_were",
    ),
    "foreach_learner": (
        "distributed/test_group_foreach.py::test_results_come_in_the_order_asked_for_with_arguments_and_their_ids*",
        "distributed/test_group_foreach.py::test_an_error_is_told_beside_the_values_of_the_others_and_the_group_goes_on*",
        "distributed/test_group_foreach.py::test_a_time_out_is_no_ill_health",
        "distributed/test_group_foreach.py::test_a_limit_of_0_is_fire_and_forget*",
        "distributed/test_group_foreach.py::test_return_futures*",
        "distributed/test_group_foreach.py::test_lost_learners_are_left_out_or_asked_and_restored",
    ),
    "add_module and remove_module": (
        "distributed/test_group_modules.py::test_adding_and_removing_a_module_changes_the_result_keys_and_leaves_the_others_alone*",
        "distributed/test_group_modules.py::test_the_others_train_as_if_nobody_had_come_or_gone*",
        "distributed/test_group_modules.py::test_settings_of_an_added_module_are_its_own_and_checkpoints_restore_it*",
        "distributed/test_group_modules.py::test_an_added_module_with_a_given_state_or_a_complete_algorithm*",
        "distributed/test_group_modules.py::test_new_should_module_be_updated*",
        "distributed/test_group_modules.py::test_modules_to_update_of_the_constructor_follow_and_are_saved*",
        "distributed/test_group_modules.py::test_ids_that_cannot_be_added_change_nothing*",
        "distributed/test_group_modules.py::test_what_does_not_fit_changes_nothing_on_any_learner*",
    ),
    "get_state and set_state by component, both ways": (
        "distributed/test_learner_group.py::test_state_selects_components_in_both_directions*",
        "distributed/test_group_state.py::test_each_component_is_restored_alone_and_both_ways_of_choosing_agree*",
        "learners/test_checkpointable.py::test_selecting_components",
    ),
    "get_weights and set_weights": (
        "distributed/test_group_state.py::test_weights_by_module_and_for_acting*",
        "distributed/test_group_state.py::test_weights_with_an_older_number_are_taken_only_when_forced*",
    ),
    "save_to_path, restore_from_path, from_checkpoint": (
        "distributed/test_learner_group.py::test_save_and_restore_continue_exactly*",
        "distributed/test_group_state.py::test_each_component_is_restored_alone_and_both_ways_of_choosing_agree*",
        "distributed/test_group_state.py::test_without_a_path_a_checkpoint_is_a_temporary_directory*",
        "distributed/test_group_state.py::test_errors_on_a_learner_and_missing_parts_are_raised*",
        "distributed/test_group_faults.py::test_a_checkpoint_that_cannot_be_built_from_says_why",
    ),
    "load_module_state in three ways": (
        "distributed/test_group_modules.py::test_module_states_are_loaded_in_three_ways*",
        "distributed/test_group_modules.py::test_what_cannot_be_loaded_is_refused_and_loads_nothing*",
    ),
    "shutdown": (
        "distributed/test_learner_group.py::test_shutdown_is_idempotent_and_ends_use*",
        "distributed/test_group_shutdown.py::test_an_idle_group",
        "distributed/test_group_shutdown.py::test_updates_in_flight_end_at_their_next_step",
        "distributed/test_group_shutdown.py::test_a_group_that_is_let_go_of",
    ),
    "deprecated update and async_update": (
        "distributed/test_group_inputs.py::test_deprecated_aliases_do_the_same_and_say_what_to_use*",
    ),
}

LEARNER = {
    "build, optimizers, register_optimizer, schedules, torch schedulers": (
        "learners/test_learner_stages.py::test_own_optimizers_and_schedules",
        "learners/test_learner_stages.py::test_a_torch_scheduler_drives_the_rate_and_goes_on_after_restoring",
        "learners/test_learner_stages.py::test_registering_nothing_or_twice_is_an_error",
        "learners/test_schedules.py::test_torch_schedulers_give_the_rates_that_they_give_to_a_loop",
    ),
    "compute_losses, compute_gradients, postprocess_gradients, apply_gradients": (
        "learners/test_learner_stages.py::test_a_subclass_may_override_every_stage",
        "learners/test_learner.py::test_clipping",
        "learners/test_learner.py::test_clipping_is_per_optimizer_and_off_by_default",
        "distributed/test_group_inputs.py::test_clipping_is_of_the_gradient_of_all_learners_together*",
        "conformance/test_algorithms.py::test_bfloat16_is_near",
    ),
    "should_module_be_updated": (
        "learners/test_learner_steps.py::test_should_module_be_updated_as_none_a_collection_or_a_function",
        "learners/test_learner_steps.py::test_a_function_gets_the_batches_of_each_step_and_decides_with_the_others",
        "distributed/test_group_modules.py::test_new_should_module_be_updated*",
    ),
    "hooks before and after": (
        "learners/test_learner_requests.py::test_hooks_surround_an_update_call",
        "learners/test_learner_rank.py::test_a_hook_that_failed_is_called_again",
        "distributed/test_group_inputs.py::test_every_kind_of_input_trains_and_passes_on_all_that_was_asked_for*",
    ),
    "unknown module ids, epochs, shuffling, whole sequences": (
        "distributed/test_group_inputs.py::test_unknown_modules_are_refused_in_every_input*",
        "learners/test_learner_modules.py::test_an_unknown_module_id_is_a_value_error",
        "learners/test_minibatch.py::test_reshuffled_at_each_wrap_and_reproducible",
        "learners/test_minibatch.py::test_sequences_stay_intact",
    ),
    "weights_seq_no": (
        "learners/test_checkpointable.py::test_weights_with_an_older_number_do_not_overwrite_newer_ones_unless_forced",
        "distributed/test_group_state.py::test_weights_with_an_older_number_are_taken_only_when_forced*",
    ),
    "iterators: exactly num_iters steps, the next epoch, an empty one is named": (
        "learners/test_learner_requests.py::test_an_iterable_goes_round_and_is_kept_between_calls",
        "learners/test_learner_requests.py::test_an_empty_iterable_is_named",
        "distributed/test_learner_group.py::test_update_from_iterables_starts_the_next_epoch*",
    ),
    "metrics": (
        "learners/test_learner_requests.py::test_the_result_tells_what_happened",
        "learners/test_learner_requests.py::test_lifetime_counts_are_of_all_learners_and_survive_a_checkpoint",
        "learners/test_metrics.py::test_a_groups_losses_are_means_over_all_its_rows",
    ),
    "several modules with losses, optimizers and settings of their own": (
        "learners/test_learner_modules.py::test_modules_train_with_algorithms_of_their_own",
        "learners/test_learner.py::test_modules_learn_as_if_alone",
        "distributed/test_modules.py::test_each_module_learns_what_it_would_learn_alone_on_any_number_of_learners",
    ),
}

SPLITTING = {
    "balanced batches": (
        "learners/test_splitting.py::test_batches_are_balanced_and_whole",
        "learners/test_splitting.py::test_five_rows_over_four_learners_leave_none_without",
    ),
    "episodes": (
        "learners/test_splitting.py::test_episodes_are_shared_to_within_one_episode",
        "learners/test_sharing.py::test_every_step_goes_to_one_learner_and_no_share_is_empty",
        "learners/test_sharing.py::test_lookback_is_the_steps_before_the_cut",
        "learners/test_sharing.py::test_of_several_agents_too_no_step_is_lost_or_doubled",
        "learners/test_sharing.py::test_loads_of_several_agents_are_equal_to_within_one_environment_step",
    ),
    "futures of episodes": (
        "learners/test_splitting.py::test_lists_are_split_contiguously_with_the_remainder_first",
        "learners/test_splitting.py::test_seven_futures_over_three_learners",
        "distributed/test_group_inputs.py::test_futures_of_episodes_are_shared_out_contiguously",
    ),
    "cyclic minibatches": (
        "learners/test_minibatch.py::test_counts",
        "learners/test_minibatch.py::test_every_row_comes_round_equally_often",
        "learners/test_minibatch.py::test_reshuffled_at_each_wrap_and_reproducible",
        "learners/test_splitting.py::test_minibatches_of_episodes_on_one_learner",
    ),
    "an empty module is an error, on all learners together": (
        "learners/test_splitting.py::test_a_module_without_rows_is_an_error_before_any_learner_starts",
        "learners/test_minibatch.py::test_an_empty_module_is_refused",
    ),
}

MANAGER = {
    "healthy and lost actors, probing that restores": (
        "distributed/test_group_foreach.py::test_probing_restores_those_that_answer",
        "distributed/test_group_foreach.py::test_lost_learners_are_left_out_or_asked_and_restored",
    ),
    "caps by actor and tag, collection by tag and without blocking": (
        "distributed/test_group_foreach.py::test_tags_caps_and_collection",
    ),
    "one function for all, or arguments for each": (
        "distributed/test_group_foreach.py::test_the_same_or_other_arguments_for_each_actor*",
        "learners/test_manager.py::test_nobody_begins_where_one_call_cannot_be_packed",
    ),
    "errors of functions and lost actors told apart": (
        "learners/test_manager.py::test_the_cause_is_raised_and_not_what_its_peers_saw",
        "distributed/test_group_foreach.py::test_an_error_is_told_beside_the_values_of_the_others_and_the_group_goes_on*",
        "distributed/test_group_foreach.py::test_probing_restores_those_that_answer",
    ),
    "nothing is kept of what is finished": (
        "distributed/test_group_foreach.py::test_tags_caps_and_collection",
        "distributed/test_group_foreach.py::test_forgotten_calls_leave_nothing_behind",
    ),
}
