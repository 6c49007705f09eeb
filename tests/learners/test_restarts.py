"""The bound on replacements."""

import pytest

from dask_rl.learners.restarts import RestartBudget
from dask_rl.storage.errors import LearnerLostError, RestartLimitError


def test_so_many_within_a_window_and_no_more():
    budget = RestartBudget(3, 60)
    budget.spend(2, 0.0, "first")
    budget.spend(1, 10.0, "second")
    with pytest.raises(RestartLimitError, match=r"4 lost learners in 60 s, the last one: third; .*max_restarts=3"):
        budget.spend(1, 20.0, "third")
    assert budget.total == 4


def test_what_is_older_than_the_window_is_forgiven():
    budget = RestartBudget(2, 60)
    budget.spend(2, 0.0, "a")
    with pytest.raises(RestartLimitError):
        budget.spend(1, 60.0, "b")
    budget.spend(1, 60.5, "c")  # those of 0.0 no longer count
    assert budget.total == 4


def test_asking_spends_nothing_and_refuses_as_long_as_there_are_too_many():
    budget = RestartBudget(1, 60)
    budget.spend(0, 0.0, None)
    with pytest.raises(RestartLimitError, match="the last one: learner 1: killed"):
        budget.spend(2, 1.0, "learner 1: killed")
    with pytest.raises(RestartLimitError, match="the last one: learner 1: killed"):
        budget.spend(0, 30.0, None)
    assert budget.total == 2
    budget.spend(0, 61.5, None)


def test_none_are_allowed():
    budget = RestartBudget(0, 60)
    budget.spend(0, 0.0, None)
    with pytest.raises(LearnerLostError, match="1 lost learners"):
        budget.spend(1, 0.0, "killed")
