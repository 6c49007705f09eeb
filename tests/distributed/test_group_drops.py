"""Asynchronous calls for which there was no room: their rows are counted, whatever they were given as."""

import time

import pytest
from group_cases import (
    SPEC,
    TWO_MODULES,
    Sharded,
    TellingLearner,
    ask,
    group_config,
    make_episode,
    make_multi_agent_episode,
    rows_of,
)

from dask_rl.learners.group import LearnerGroup

TIMEOUT = 60.0

INPUTS = {
    # name: (update method, what it is given for two learners, options, rows)
    "a batch": ("batch", lambda client: rows_of(7), {"num_epochs": 3, "minibatch_size": 2}, 7),
    "a multi-batch": ("batch", lambda client: {"a": rows_of(5), "b": rows_of(4)}, {}, 9),
    "futures of batches": ("batch", lambda client: client.scatter([rows_of(5), rows_of(6)]), {}, 11),
    "iterators": ("batch", lambda client: [[rows_of(3), rows_of(4)], [rows_of(5)]], {"num_iters": 3}, 10 + 15),
    "sources": ("iterators", lambda client: Sharded().shares(2), {"num_iters": 2}, 24),
    "shared data": ("iterators", lambda client: Sharded(), {"num_iters": 3}, 36),
    "episodes": ("episodes", lambda client: [make_episode(n, n) for n in (5, 9)], {"minibatch_size": 3}, 14),
    "multi-agent episodes": ("episodes", lambda client: [make_multi_agent_episode((6, 3), 1)], {}, 9),
    "futures of episodes": (
        "episodes",
        lambda client: client.scatter([[make_episode(4, 1)], [make_episode(2, 2), make_episode(3, 3)]]),
        {},
        9,
    ),
    "iterators of episodes": (
        "episodes",
        lambda client: [[make_episode(4, 1), [make_episode(2, 2), make_episode(3, 3)]], [make_episode(6, 4)]],
        {"num_iters": 3},
        (4 + 5 + 4) + 18,
    ),
}


@pytest.fixture(scope="module", params=["default_module", "a and b"])
def busy(request, cluster_client, tmp_path_factory):
    """Two learners that are held up with all the requests that they may have, and have gone a way before."""
    gate = tmp_path_factory.mktemp("gates") / request.param.replace(" ", "-")
    config = group_config(2, max_requests_in_flight_per_learner=1)
    spec, batch = (SPEC, rows_of(4)) if request.param == "default_module" else (TWO_MODULES, {"a": rows_of(4)})
    with LearnerGroup(config, module_spec=spec, client=cluster_client, learner_class=TellingLearner) as group:
        group.update_from_batch(batch, async_update=True, gate=str(gate))
        yield group
        gate.touch()
        group.collect_async_results(TIMEOUT)
        assert ask(group, lambda learner: learner.step) == [1, 1], "nothing that was dropped was trained on"


@pytest.mark.parametrize("name", INPUTS)
def test_dropped_rows_are_counted_for_every_kind_of_input(busy, cluster_client, name):
    kind, make, options, rows = INPUTS[name]
    before = busy.get_stats()
    update = getattr(busy, f"update_from_{kind}")
    assert update(make(cluster_client), async_update=True, **options) == []
    deadline = time.monotonic() + TIMEOUT
    while (after := busy.get_stats())["num_uncounted_requests"]:  # of futures: that is a task of its own
        assert time.monotonic() < deadline
    assert after["num_dropped_requests"] - before["num_dropped_requests"] == 1
    assert after["num_dropped_rows"] - before["num_dropped_rows"] == rows
    assert after["num_update_calls"] == before["num_update_calls"]
