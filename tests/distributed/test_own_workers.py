"""A group without a client starts workers of its own, and takes them along when it shuts down."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest
from own_workers import whole_life


@pytest.mark.storm
@pytest.mark.parametrize("fate", ["idle", "killed", "replaced"])
def test_nothing_of_its_workers_is_left(fate):
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as process:  # which has no client of a test's
        assert process.submit(whole_life, fate).result(timeout=120) == {}
