import torch

from dask_rl.learners.metrics import STATE_KEY, CallMetrics, Lifetime, merge_results


def result(losses, rows, steps=2):
    metrics = CallMetrics()
    for loss in losses:
        metrics.add_losses("m", {"policy_loss": torch.tensor(loss), "value_loss": torch.tensor(1.0)})
    metrics.add_rows("m", rows, rows + 1)
    metrics.num_steps = steps
    return metrics.result({"m": {"learning_rate/o": 0.1}}, {"step": 7})


def test_losses_are_means_over_the_rows_of_a_call():
    got = result([6.0, 4.0], 5)
    assert got["m"] == {
        "total_loss": 2.4, "policy_loss": 2.0, "value_loss": 0.4, "num_rows": 5, "batch_size": 6, "learning_rate/o": 0.1
    }  # fmt: skip
    assert got["all_modules"]["step"] == 7


def test_a_groups_losses_are_means_over_all_its_rows():
    merged = merge_results([result([6.0], 2), result([10.0], 6)])
    assert merged["m"]["policy_loss"] == 2.0
    assert merged["m"]["num_rows"] == 8
    assert merged["m"]["batch_size"] == 10
    assert merged["m"]["learning_rate/o"] == 0.1


def test_no_rows_are_no_error():
    assert result([0.0], 0)["m"]["policy_loss"] == 0


def test_results_with_weights_merge_like_others():
    asked, other = result([6.0], 2), result([10.0], 6)
    assert set(merge_results([asked | {STATE_KEY: {"rl_module": {}}}, other])) == {"m", "all_modules"}


def test_what_all_know_alike_comes_from_the_learner_with_the_most_steps():
    late, full, empty = result([10.0], 6, steps=1), result([6.0], 2, steps=3), CallMetrics().result({}, {"step": 7})
    late["m"]["learning_rate/o"], late["all_modules"]["step"] = 0.7, 70
    del late["m"]["value_loss"]
    for order in ([late, full, empty], [empty, late, full]):
        merged = merge_results(order)
        assert merged["m"]["learning_rate/o"] == 0.1
        assert (merged["all_modules"]["step"], merged["all_modules"]["num_steps"]) == (7, 3)
        assert merged["m"]["policy_loss"] == 2.0
        assert merged["m"]["value_loss"] == 0.5, "the mean over those that know it"
        assert merged["all_modules"]["steps_per_second"] == full["all_modules"]["steps_per_second"]


def test_lifetime_counts_by_module():
    lifetime = Lifetime(["a", "b"], torch.device("cpu"))
    lifetime.add_step(["a"], torch.tensor([5.0, 0.0]))
    lifetime.add_step(["a", "b"], torch.tensor([6.0, 2.0]))
    state = {"a": {"num_rows": 11, "num_steps": 2}, "b": {"num_rows": 2, "num_steps": 1}}
    assert lifetime.state_dict() == state
    other = Lifetime(["a", "b"], torch.device("cpu"))
    other.load_list(lifetime.to_list())
    assert other.state_dict() == state
    kept = other.for_modules(["b", "c"], torch.device("cpu")).state_dict()
    assert kept == {"b": state["b"], "c": {"num_rows": 0, "num_steps": 0}}
