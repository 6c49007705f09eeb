"""What the charts draw: the numbers of the rows, no more of them than can be seen."""

import math

import pytest
from run_messages import begin, learner, row, train_row

from dask_rl.pipeline.dashboard.live_runs import LiveRuns
from dask_rl.pipeline.dashboard.series import (
    MAX_BARS,
    MAX_LINES,
    MAX_POINTS,
    evaluations,
    losses,
    rates,
    shares,
    spread,
)


def run_of(*rows, **facts):
    live_runs = LiveRuns()
    live_runs.hear(begin(rows=list(rows), **facts), 0.0)
    return live_runs.runs["r1"]


def group_of(*looks):
    """A group whose learners' rates were seen a second after the other."""
    live_runs = LiveRuns()
    for second, by_rank in enumerate(looks):
        seen = {f"tcp://{rank}": [learner(rank, steps_per_second=rate)] for rank, rate in by_rank.items()}
        live_runs.see(seen, float(second))
    return live_runs.groups["g1"]


def test_the_losses_of_one_module_are_all_drawn():
    parts = {"policy_loss": 0.5, "value_loss": 2.0}
    rows = [train_row(10, **parts), train_row(20, policy_loss=None), train_row(30, **parts)]
    drawn = losses(run_of(*rows))
    assert drawn["label"] == ["total loss", "policy loss", "value loss"]
    assert drawn["xs"] == [[10, 20, 30], [10, 30], [10, 30]]
    assert drawn["ys"] == [[1 / 10, 1 / 20, 1 / 30], [0.5, 0.5], [2.0, 2.0]]


def test_the_only_loss_is_drawn_once():
    drawn = losses(run_of(train_row(10, policy_loss=0.1)))
    assert (drawn["label"], drawn["ys"]) == (["policy loss"], [[0.1]])


def test_of_several_modules_the_total_losses_are_drawn():
    values = {"a/total_loss": 1.0, "a/policy_loss": 2.0, "b/total_loss": 3.0, "a/epoch": 0.5, "b/epoch": 1.5}
    run = run_of({"kind": "train", "step": 10, **values})
    assert (losses(run)["label"], losses(run)["ys"]) == (["a", "b"], [[1.0], [3.0]])
    assert run.epochs == {"a": 0.5, "b": 1.5}


def test_a_long_curve_is_spread_over_as_many_points_as_can_be_seen():
    drawn = losses(run_of(*map(train_row, range(1, 3001))))
    assert len(drawn["xs"][0]) == MAX_POINTS
    assert (drawn["xs"][0][0], drawn["xs"][0][-1]) == (1, 3000)
    assert drawn["ys"][0] == [1 / step for step in drawn["xs"][0]]
    assert spread([1, 2, 3]) == [1, 2, 3]


def test_no_more_lines_than_colours():
    run = run_of({"kind": "train", "step": 1, **{f"m{i}/total_loss": 1.0 for i in range(50)}})
    assert len(losses(run)["label"]) == MAX_LINES


def test_speeds_are_by_learner_with_a_gap_where_one_was_lost():
    group = group_of({0: 5.0, 1: 6.0}, {0: 7.0}, {0: 8.0, 1: 9.0})
    drawn = rates(None, group, 62.0)
    assert drawn["label"] == ["learner 0", "learner 1"]
    assert drawn["xs"][0] == pytest.approx([-62 / 60, -61 / 60, -1])
    assert drawn["ys"][0] == [5.0, 7.0, 8.0]
    assert drawn["ys"][1][::2] == [6.0, 9.0]
    assert math.isnan(drawn["ys"][1][1])


def test_of_many_learners_the_extremes_are_drawn():
    group = group_of({rank: float(rank) for rank in range(MAX_LINES + 3)})
    drawn = rates(None, group, 0.0)
    assert (drawn["label"], drawn["ys"]) == (["slowest", "median", "fastest"], [[0.0], [5.0], [10.0]])


def test_a_run_without_learners_on_workers_has_its_own_speed_and_shares():
    parts = {"data_wait_seconds": 1.0, "compute_seconds": 2.0, "collective_seconds": 1.0}
    run = run_of(train_row(60), train_row(120, steps_per_second=7.0, **parts))
    drawn = rates(run, None, 1e6)
    assert (drawn["label"], drawn["xs"], drawn["ys"]) == (["run"], [[-1.0, 0.0]], [[5.0, 7.0]])
    expected = {"data_wait_seconds": [25.0], "compute_seconds": [50.0], "collective_seconds": [25.0], "other": [0.0]}
    assert shares(run, None) == {"learner": ["last steps"], **expected}


def test_shares_add_up_to_all_of_the_time():
    live_runs = LiveRuns()
    for second in (0, 10):
        spent = {"data_wait_seconds": 0.1 * second, "compute_seconds": 0.5 * second}
        live_runs.see({f"tcp://{rank}": [learner(rank, **spent)] for rank in range(2)}, float(second))
    drawn = shares(None, live_runs.groups["g1"])
    assert drawn["learner"] == ["0", "1"]
    assert drawn["data_wait_seconds"] == pytest.approx([10.0, 10.0])
    assert drawn["compute_seconds"] == pytest.approx([50.0, 50.0])
    assert drawn["other"] == pytest.approx([40.0, 40.0])


def test_of_very_many_learners_the_ones_that_wait_are_drawn():
    live_runs = LiveRuns()
    for second in (0, 10):
        seen = {f"tcp://{i}": [learner(i, data_wait_seconds=second * i / 100)] for i in range(2 * MAX_BARS)}
        live_runs.see(seen, float(second))
    assert shares(None, live_runs.groups["g1"])["learner"] == [str(i) for i in range(MAX_BARS, 2 * MAX_BARS)]


def test_evaluations_have_their_standard_error_to_each_side():
    live_runs = LiveRuns()
    live_runs.hear(begin(), 0.0)
    facts = {"kind": "evaluation", "step": 10, "return_mean": 3.0, "return_standard_error": 0.5}
    for said in (facts, facts | {"return_mean": None}, facts | {"module_id": "a", "return_standard_error": None}):
        live_runs.hear({"kind": "row", "run_id": "r1", "row": said}, 0.0)
    drawn = evaluations(live_runs.runs["r1"])
    assert (drawn["mean"], drawn["lower"], drawn["upper"]) == ([3.0, 3.0], [2.5, 3.0], [3.5, 3.0])
    assert drawn["label"] == ["mean return ± standard error", "a"]
    assert len(set(drawn["colour"])) == 2


def test_without_anything_nothing_is_drawn():
    for columns in (losses(None), rates(None, None, 0.0), shares(None, None), evaluations(None), losses(run_of())):
        assert columns
        assert not any(columns.values())


def test_a_row_more_is_a_point_more():
    live_runs = LiveRuns()
    live_runs.hear(begin(), 0.0)
    for step in (10, 20):
        live_runs.hear(row(step), 0.0)
    assert losses(live_runs.runs["r1"])["xs"] == [[10, 20]]
