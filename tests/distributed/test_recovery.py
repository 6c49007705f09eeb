"""Learners that are lost or hang are replaced, and the outcome does not change by a bit."""

import signal

import numpy as np
import pytest
from faults import Disturbance, flat_weights, make_group, pid_of, send_signal

from dask_rl.pipeline.runs.cluster import ClusterConfig, open_cluster

NUM_STEPS = 600


@pytest.fixture(scope="module")
def three_workers():
    """One more than there are learners: a spare."""
    with open_cluster(ClusterConfig(num_workers=3), num_workers=3) as client:
        yield client


@pytest.fixture(scope="module")
def undisturbed(continuous_dataset, three_workers):
    group, data = make_group(continuous_dataset, three_workers)
    with group:
        group.update_from_iterators(data.data, num_iters=NUM_STEPS)
        return flat_weights(group)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_learner_that_is_killed_is_replaced_and_the_weights_stay_the_same(
    continuous_dataset, three_workers, undisturbed, rank
):
    group, data = make_group(continuous_dataset, three_workers)
    with group:
        pid = pid_of(group, rank)
        with Disturbance(group, 150, send_signal(pid, signal.SIGKILL)) as kill:
            results = group.update_from_iterators(data.data, num_iters=NUM_STEPS)
        assert kill.happened.is_set()
        assert pid_of(group, rank) != pid
        np.testing.assert_array_equal(flat_weights(group), undisturbed)
        assert [event.name for event in group.events] == ["learner_lost", "rejoined"]
        assert group.get_stats()["num_restarts"] == 1
        assert max(result["all_modules"]["num_steps"] for result in results) == NUM_STEPS
        print(group.events)
