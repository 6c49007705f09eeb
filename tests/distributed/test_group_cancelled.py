"""Dask futures that are cancelled: refused at once, or as soon as they are, and the limit that ran out is named."""

import threading
import time

import pytest
from group_cases import assert_learners_agree, hold, rows_of

from dask_rl.storage.errors import ConfigError, WaitTimeoutError

pytestmark = pytest.mark.service
CANCELLED = r"future .*: got a cancelled one; allowed: one that is kept until the update has ended; give the data again"


@pytest.mark.parametrize("kind", ["batch", "episodes"])
def test_those_that_were_cancelled_before_are_refused_at_once(open_group, num_learners, cluster_client, kind):
    group = open_group(num_learners, {"name": "bc"})
    futures = cluster_client.scatter([rows_of(4, rank) for rank in range(len(group))], hash=False)
    cluster_client.cancel(futures[-1:])
    began = time.monotonic()
    with pytest.raises(ConfigError, match=CANCELLED):
        getattr(group, f"update_from_{kind}")(futures)
    assert time.monotonic() - began < 5
    assert group.get_stats()["num_requests_in_flight"] == 0


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_those_that_are_cancelled_while_learners_wait_are_given_up(open_group, cluster_client, force, is_async):
    group = open_group(2, {"name": "bc"})
    futures = cluster_client.scatter([rows_of(4, rank) for rank in range(2)], hash=False)
    futures[1] = cluster_client.submit(rows_of, 4, pure=False, resources={"none has this": 1})
    began = time.monotonic()
    cancelling = threading.Timer(0.5, cluster_client.cancel, ([futures[1]],), {"force": force})
    cancelling.start()
    group.update_from_batch(futures, async_update=True) if is_async else None
    with pytest.raises(ConfigError, match=CANCELLED):
        group.collect_async_results(timeout_seconds=60) if is_async else group.update_from_batch(futures)
    cancelling.join()
    assert time.monotonic() - began < 15, "learners wait two minutes for data"
    group.update_from_batch(cluster_client.scatter([rows_of(4, rank) for rank in range(2)], hash=False))
    assert_learners_agree(group)
    assert group.get_stats()["num_restarts"] == 0


def test_a_key_that_was_cancelled_can_be_given_again(open_group, cluster_client):
    """The same data have the same key."""
    group = open_group(1, {"name": "bc"})
    future = cluster_client.submit(rows_of, 4, key="again", resources={"none has this": 1})
    group.update_from_batch([future], async_update=True)
    future.cancel(force=True)  # otherwise Dask keeps the task, for good, where a learner had asked for it by then
    with pytest.raises(ConfigError, match="future again: got a cancelled one"):
        group.collect_async_results(timeout_seconds=60)
    deadline = time.monotonic() + 30
    while cluster_client.run_on_scheduler(lambda dask_scheduler: "again" in dask_scheduler.tasks):
        assert time.monotonic() < deadline, "the learner still holds what was cancelled"
        time.sleep(0.02)
    [result] = group.update_from_batch([cluster_client.submit(rows_of, 4, key="again")])
    assert result["all_modules"]["step"] == 1


def test_the_limit_that_ran_out_is_the_one_that_is_named(open_group, tmp_path):
    group = open_group(1, {"name": "bc"})
    started = group.foreach_learner(hold, return_futures=True, gate=str(tmp_path / "gate"))
    group.update_from_batch(rows_of(4), async_update=True)
    with pytest.raises(WaitTimeoutError, match=r"got no result in 0\.2 s .*; raise timeout_seconds, or"):
        group.collect_async_results(timeout_seconds=0.2)
    (tmp_path / "gate").touch()
    group.collect_async_results(timeout_seconds=30)
    assert started[0].value.result(5) == 0
