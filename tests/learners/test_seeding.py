"""Networks that are built at the same time get the weights that they would get alone."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from group_cases import SPEC, flat, group_config

from dask_rl.learners.group import LearnerGroup


def weights(seed):
    config = group_config(0, {"name": "iql", "hidden_sizes": [16] * 8}, seed=seed)
    with LearnerGroup(config, module_spec=SPEC) as group:
        return flat(group.get_weights())


@pytest.fixture
def eager_threads():
    """Threads that take turns all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_initial_weights_follow_from_the_seed_alone_also_in_threads(eager_threads):
    seeds = [number % 4 for number in range(24)]
    alone = {seed: weights(seed) for seed in set(seeds)}
    assert len({part.tobytes() for part in alone.values()}) == 4
    with ThreadPoolExecutor(8) as pool:
        for seed, found in zip(seeds, pool.map(weights, seeds), strict=True):
            assert found.tobytes() == alone[seed].tobytes()


def test_a_group_shows_what_it_is_until_and_after_its_end():
    group = LearnerGroup(group_config(0), module_spec=SPEC, name="<b>")
    assert "1, 1 healthy" in repr(group)
    html = group._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert "default_module (" in html
    group.shutdown()
    assert "shut down" in repr(group)
    assert "shut down" in group._repr_html_()
