"""Functions of the user's that would end their process: errors like others on workers, which live on."""

import os
import sys

import numpy as np
import pytest
from faults import exit_once
from group_cases import assert_learners_agree, flat, rows_of

from dask_rl.storage.errors import LearnerError

pytestmark = pytest.mark.service
EXITS = [SystemExit(3), KeyboardInterrupt(), GeneratorExit()]


def pids(group):
    return [result.get() for result in group.foreach_learner(lambda learner: os.getpid())]


@pytest.mark.parametrize("size", [1, 2])
def test_a_function_that_exits_is_an_error_and_costs_no_worker(open_group, size):
    group = open_group(size, {"name": "bc"})
    before = pids(group)
    for result in group.foreach_learner(lambda learner: sys.exit(3)):
        assert isinstance(result.error, LearnerError)
        assert "running a function: got SystemExit: 3; mend the function that raised it" in str(result.error)
        assert "sys.exit(3)" in result.error.__notes__[0] or "SystemExit: 3" in result.error.__notes__[0]
    assert pids(group) == before
    group.update_from_batch(rows_of(6))
    assert_learners_agree(group)


@pytest.mark.parametrize("error", EXITS, ids=lambda error: type(error).__name__)
def test_a_loss_that_exits_ends_its_update_and_the_next_one_trains(open_group, error):
    undisturbed, group = (open_group(2, {"name": "bc"}) for _ in range(2))
    before = pids(group)
    group.foreach_learner(exit_once, remote_actor_ids=[1], step=1, error=error)
    for each in (undisturbed, group):
        each.update_from_batch(rows_of(6, 1))
    with pytest.raises(LearnerError, match=type(error).__name__):
        group.update_from_batch(rows_of(6, 2))
    for each in (undisturbed, group):
        each.update_from_batch(rows_of(6, 3))
    assert_learners_agree(group)
    assert pids(group) == before
    np.testing.assert_array_equal(flat(undisturbed.get_weights()), flat(group.get_weights()))


@pytest.mark.parametrize("error", EXITS[:2], ids=lambda error: type(error).__name__)
def test_in_a_local_group_they_go_through(open_group, error):
    """There they are Ctrl-C, or what a handler of SIGTERM raises: not to be kept from those who asked for it."""
    group = open_group(0, {"name": "bc"})
    group.foreach_learner(exit_once, step=0, error=error)
    with pytest.raises(type(error)):
        group.update_from_batch(rows_of(6))
    [result] = group.update_from_batch(rows_of(6))
    assert result["all_modules"]["step"] == 1
