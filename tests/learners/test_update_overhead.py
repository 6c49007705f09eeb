"""What an update costs beside its maths."""

import cProfile
import pstats

from learner_cases import make_batch, make_learner

from dask_rl.learners.request import UpdateRequest


def test_metrics_take_a_small_share_of_an_update_and_no_lock():
    """Own time of the metrics' code under a profiler, which makes it look larger than it is."""
    learner = make_learner({"name": "iql", "hidden_sizes": (32, 32)}, num_threads_per_learner=1)
    batch = {"default_module": make_batch("continuous", 64)}
    learner.run(UpdateRequest(1, batch=batch))
    profile = cProfile.Profile()
    profile.enable()
    for number in range(2, 32):
        learner.run(UpdateRequest(number, batch=batch))
    profile.disable()
    stats = pstats.Stats(profile)
    spent = {place: own for place, (_, _, own, _, _) in stats.stats.items()}
    assert sum(own for (file, *_), own in spent.items() if file.endswith("metrics.py")) < 0.05 * stats.total_tt
    assert not [place for place in spent if "lock" in place[2] or "acquire" in place[2]]
