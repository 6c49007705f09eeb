import torch

from dask_rl.learners.metrics import STATE_KEY, CallMetrics, merge_results


def result(losses, rows, steps=2):
    metrics = CallMetrics()
    for loss in losses:
        metrics.add_losses("m", {"policy_loss": torch.tensor(loss), "value_loss": torch.tensor(1.0)})
    metrics.add_rows("m", rows)
    metrics.num_steps = steps
    return metrics.result({"m": {"learning_rate/o": 0.1}}, {"step": 7})


def test_losses_are_means_over_the_rows_of_a_call():
    got = result([6.0, 4.0], 5)
    assert got["m"] == {
        "total_loss": 2.4, "policy_loss": 2.0, "value_loss": 0.4, "num_rows": 5, "learning_rate/o": 0.1
    }  # fmt: skip
    assert got["all_modules"]["step"] == 7


def test_a_groups_losses_are_means_over_all_its_rows():
    merged = merge_results([result([6.0], 2), result([10.0], 6)])
    assert merged["m"]["policy_loss"] == 2.0
    assert merged["m"]["num_rows"] == 8
    assert merged["m"]["learning_rate/o"] == 0.1


def test_no_rows_are_no_error():
    assert result([0.0], 0)["m"]["policy_loss"] == 0


def test_results_with_weights_merge_like_others():
    asked, other = result([6.0], 2), result([10.0], 6)
    assert set(merge_results([asked | {STATE_KEY: {"rl_module": {}}}, other])) == {"m", "all_modules"}
