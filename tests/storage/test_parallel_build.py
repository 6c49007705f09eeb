"""Datasets written shard by shard, by tasks: equal to the stream's, however they are cut and whatever fails."""

import os
import shutil
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from supplies import SPACES, RandomSupply, run_as_if_elsewhere

from dask_rl.storage import DatasetError, DatasetNotFoundError, DatasetWriter, InvalidDataError, OfflineDataset
from dask_rl.storage.building.shard_task import shard_tasks

pytestmark = pytest.mark.data

LENGTHS = tuple(int(n) for n in np.random.default_rng(0).integers(1, 40, 30))
SHARD_ROWS = 64


class Crash(Exception):
    pass


def crash():
    raise Crash
    yield


def stream(path, supply, shard_rows=SHARD_ROWS):
    with DatasetWriter(path, **SPACES, shard_rows=shard_rows) as writer:
        writer.add_episodes(supply.kept())
        return writer.finish()


def by_tasks(path, supply, shard_rows=SHARD_ROWS, run=run_as_if_elsewhere, survey=None):
    with DatasetWriter(path, **SPACES, shard_rows=shard_rows) as writer:
        writer.add_supply(supply, survey or supply.survey(3), run)
        return writer.finish()


def crashing(num_tasks, seen=None):
    """Run so many tasks, then die; the first one chooses the compression."""

    def run(function, items, name):
        for result in run_as_if_elsewhere(function, items, name):
            if seen is not None:
                seen.append(name)
            if name == "write-shard" and (seen or []).count(name) > num_tasks:
                raise Crash
            yield result

    return run


def files(directory):
    return {path.relative_to(directory): path.stat().st_ino for path in directory.rglob("*") if path.is_file()}


@settings(max_examples=6)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    shard_rows=st.sampled_from([8, 16, None]),
    left_out=st.sets(st.integers(0, 5)),
    num_parts=st.integers(1, 5),
)
def test_the_rows_are_those_of_the_stream(tmp_path_factory, lengths, shard_rows, left_out, num_parts):
    supply = RandomSupply(tuple(lengths), frozenset(left_out & set(range(1, len(lengths)))))
    path = tmp_path_factory.mktemp("datasets")
    wanted = stream(path / "stream.zarr", supply, shard_rows)
    found = by_tasks(path / "tasks.zarr", supply, shard_rows, survey=supply.survey(num_parts))
    assert found.content_hash == wanted.content_hash
    found.verify(deep=True)
    assert sorted(entry.name for entry in path.iterdir()) == ["stream.zarr", "tasks.zarr"]
    shutil.rmtree(path)


def test_every_row_belongs_to_one_task():
    surveyed = RandomSupply(LENGTHS).survey()
    tasks = list(shard_tasks(surveyed, SHARD_ROWS))
    assert [task.num_rows for task in tasks[:-1]] == [SHARD_ROWS] * (len(tasks) - 1)
    assert sum(task.num_rows for task in tasks) == surveyed.row_ends[-1]
    for task in tasks:
        first_row = task.number * SHARD_ROWS
        begin = int(surveyed.row_ends[task.start] - LENGTHS[task.start] - 1)
        assert begin + task.skip_rows == first_row
        assert surveyed.row_ends[task.stop - 1] >= first_row + task.num_rows


def test_what_is_finished_is_kept_and_nothing_is_written_twice(tmp_path):
    supply, path = RandomSupply(LENGTHS), tmp_path / "data.zarr"
    with pytest.raises(Crash):
        by_tasks(path, supply, run=crashing(4, []))
    with pytest.raises(DatasetNotFoundError):
        OfflineDataset.open(path)
    (store,) = (tmp_path / ".data.zarr.partial").glob("shards-*/store")
    done = files(store)
    assert len(done) == 6 * 5  # each shard has six arrays; the fifth was written when the run died
    seen = []
    found = by_tasks(path, supply, run=crashing(1000, seen))
    assert seen.count("write-shard") == -(-found.num_rows // SHARD_ROWS) - 5
    assert done.items() <= files(path).items()
    assert found.content_hash == stream(tmp_path / "whole.zarr", supply).content_hash


@pytest.mark.parametrize("damage", ["receipt", "file gone", "file short"])
def test_a_shard_that_is_not_what_its_receipt_says_is_written_again(tmp_path, damage):
    supply, path = RandomSupply(LENGTHS), tmp_path / "data.zarr"
    with pytest.raises(Crash):
        by_tasks(path, supply, run=crashing(4, []))
    (root,) = (tmp_path / ".data.zarr.partial").glob("shards-*")
    if damage == "receipt":
        (root / "receipts/2.json").write_text("{")
    elif damage == "file gone":
        (root / "store/data/rewards/c/2").unlink()
    else:
        os.truncate(root / "store/data/rewards/c/2", 9)
    found = by_tasks(path, supply)
    found.verify(deep=True)
    assert found.content_hash == stream(tmp_path / "whole.zarr", supply).content_hash


def test_other_values_take_over_no_shard(tmp_path):
    supply, path = RandomSupply(LENGTHS), tmp_path / "data.zarr"
    with pytest.raises(Crash):
        by_tasks(path, supply, run=crashing(4, []))
    (before,) = (tmp_path / ".data.zarr.partial").glob("shards-*")
    other = RandomSupply((*LENGTHS[:-1], LENGTHS[-1] + 1))
    with pytest.raises(Crash):
        by_tasks(path, other, run=crashing(4, []))
    (after,) = (tmp_path / ".data.zarr.partial").glob("shards-*")
    assert after != before
    found = by_tasks(path, other)
    assert found.content_hash == stream(tmp_path / "whole.zarr", other).content_hash
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["data.zarr", "whole.zarr"]


def test_a_stream_and_tasks_take_turns(tmp_path):
    """Each begins anew where the other stopped, and leaves nothing of it."""
    supply, path = RandomSupply(LENGTHS), tmp_path / "data.zarr"
    with pytest.raises(Crash), DatasetWriter(path, **SPACES, shard_rows=SHARD_ROWS) as writer:
        writer.add_episodes(chain(supply.kept(), crash()))
    with pytest.raises(Crash):
        by_tasks(path, supply, run=crashing(4, []))
    assert not (tmp_path / ".data.zarr.partial/store").exists()
    stream(path, supply).verify(deep=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["data.zarr"]


def test_a_late_task_of_a_dead_driver_changes_nothing(tmp_path):
    supply, path = RandomSupply(LENGTHS), tmp_path / "data.zarr"
    late = []

    def run(function, items, name):
        for item in items:
            late.append((function, item))
            yield function(item)

    by_tasks(path, supply, run=run)
    before = files(tmp_path)
    for function, item in late[1:]:
        with pytest.raises(DatasetError, match=r"got no directory .* where this task runs"):
            function(item)
    assert files(tmp_path) == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["data.zarr"]


def test_a_source_that_changes_meanwhile_is_refused(tmp_path):
    supply = RandomSupply(LENGTHS)
    with pytest.raises(DatasetError, match="got other values than a moment ago"):
        by_tasks(tmp_path / "data.zarr", supply.changed(), survey=supply.survey())
    assert not (tmp_path / "data.zarr").exists()


def test_bad_values_name_their_place_and_leave_nothing(tmp_path):
    supply = RandomSupply(LENGTHS, frozenset({3}), frozenset({9}))
    step = LENGTHS[9] - 1
    with pytest.raises(InvalidDataError, match=rf"episode 8, step {step}: rewards: got nan; allowed: finite"):
        by_tasks(tmp_path / "data.zarr", supply)
    assert not list(tmp_path.iterdir())


def test_no_episode_at_all(tmp_path):
    supply = RandomSupply((3, 4), frozenset({0, 1}))
    with pytest.raises(InvalidDataError, match="got 0 episodes"):
        by_tasks(tmp_path / "data.zarr", supply)
    assert not list(tmp_path.iterdir())


def test_either_a_supply_or_episodes(tmp_path):
    supply = RandomSupply((3, 4))
    with DatasetWriter(tmp_path / "data.zarr", **SPACES) as writer:
        writer.add_episodes(supply.kept())
        with pytest.raises(DatasetError, match="got a supply after episodes"):
            writer.add_supply(supply, supply.survey(), run_as_if_elsewhere)
        writer.abort()
