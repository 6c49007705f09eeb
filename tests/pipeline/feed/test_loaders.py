import shutil
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dask.distributed import Client, LocalCluster
from run_commands import wait_for
from worker_code import CPU, Feeder, read_steps

from dask_rl.pipeline.feed.blocks import Arrays, BlockPlan
from dask_rl.pipeline.feed.config import FeedConfig
from dask_rl.pipeline.feed.iterator import DatasetIterator
from dask_rl.pipeline.feed.loaders import ThreadLoader
from dask_rl.pipeline.feed.sampling import Sampling
from dask_rl.pipeline.feed.source import DatasetSource, open_iterator
from dask_rl.storage.errors import CorruptDataError, WaitTimeoutError

ALL_FIELDS = (
    "observations",
    "actions",
    "rewards",
    "terminations",
    "next_observations",
    "next_valid",
    "returns_to_go",
)


def feed_of(path: Path, **changes: Any) -> FeedConfig:
    config = FeedConfig(dataset=str(path), fields=ALL_FIELDS, batch_size=24, num_shards=4, seed=5)
    return replace(config, **{"block_rows": 16, "window_rows": 48, "discount": 0.9, **changes})


def read_source(source: DatasetSource, num_steps: int, start: int = 0) -> list[Arrays]:
    iterator = source.open(CPU, 30.0)
    try:
        iterator.seek(start)
        return read_steps(iterator, num_steps)
    finally:
        iterator.close()


def assert_equal(got: list[Arrays], expected: list[Arrays]) -> None:
    assert len(got) == len(expected)
    for step, (a, b) in enumerate(zip(got, expected, strict=True)):
        assert a.keys() == b.keys()
        for name in a:
            assert a[name].dtype == b[name].dtype
            assert np.array_equal(a[name], b[name]), (step, name)


class StuckLoader(ThreadLoader):
    """Loads nothing until it is let go."""

    released = threading.Event()

    def load(self, plan: BlockPlan, out: Mapping[str, np.ndarray]) -> None:
        self.released.wait(20)
        super().load(plan, out)


def test_waiting_has_a_limit_and_can_be_tried_again(feed_dataset: Path) -> None:
    source = DatasetSource(feed_of(feed_dataset, resident=False), (1,))
    iterator = open_iterator(source, CPU, 0.05, lambda kind, recipe: StuckLoader(recipe))
    with pytest.raises(WaitTimeoutError, match=r"data\.zarr, block \d+ of shard 1: got no data after 0.05 seconds"):
        iterator.next_batch()
    assert iterator.wait_seconds > 0.04
    StuckLoader.released.set()
    assert_equal(read_steps(iterator, 3), read_source(source, 3))
    iterator.close()


class HangingLoader(ThreadLoader):
    """Its reads never end, as those of a disk that is gone."""

    released = threading.Event()

    def load(self, plan: BlockPlan, out: Mapping[str, np.ndarray]) -> None:
        self.released.wait()


@pytest.fixture
def hanging() -> Iterator[type[HangingLoader]]:
    HangingLoader.released.clear()
    yield HangingLoader
    HangingLoader.released.set()


@pytest.mark.parametrize("resident", [True, False])
def test_a_read_that_hangs_holds_up_neither_opening_nor_closing(
    feed_dataset: Path, resident: bool, hanging: type[HangingLoader]
) -> None:
    source, before = DatasetSource(feed_of(feed_dataset, resident=resident), (1,)), set(threading.enumerate())
    ended = threading.Event()

    def give_up() -> None:
        with pytest.raises(WaitTimeoutError, match=r"got no data after 0\.05 seconds"):
            read_and_close(open_iterator(source, CPU, 0.05, lambda kind, recipe: hanging(recipe)))
        ended.set()

    threading.Thread(target=give_up, daemon=True).start()
    assert ended.wait(30)
    left = set(threading.enumerate()) - before
    assert all(thread.daemon for thread in left)  # nor the end of the process


class BrokenLoader(ThreadLoader):
    """Fails on the fourth load."""

    count = 0

    def load(self, plan: BlockPlan, out: Mapping[str, np.ndarray]) -> None:
        self.count += 1
        if self.count == 4:
            raise CorruptDataError("block is damaged")
        super().load(plan, out)


@pytest.mark.parametrize("resident", [True, False])
def test_a_failed_load_is_raised_and_threads_end(feed_dataset: Path, resident: bool) -> None:
    source = DatasetSource(feed_of(feed_dataset, resident=resident), (0, 1))
    before = set(threading.enumerate())
    with pytest.raises(CorruptDataError, match="block is damaged"):
        read_and_close(open_iterator(source, CPU, 30.0, lambda kind, recipe: BrokenLoader(recipe)))
    assert set(threading.enumerate()) <= before


def read_and_close(iterator: DatasetIterator) -> None:
    try:
        iterator.next_batch()
    finally:
        iterator.close()


def test_close_ends_the_threads(feed_dataset: Path) -> None:
    iterator = DatasetSource(feed_of(feed_dataset, resident=False), (0, 1)).open(CPU, 30.0)
    read_steps(iterator, 3)
    before = {thread for thread in threading.enumerate() if thread.name.startswith("dask-rl-loader")}
    assert before
    iterator.close()
    assert not any(thread.is_alive() for thread in before)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        yield client


def has_none_open(feeder: Any, path: Path) -> bool:
    return not feeder.open_files(str(path)).result(timeout=60)


@pytest.mark.service
def test_tasks_keep_no_dataset_open_behind_their_loader(client: Client, feed_dataset: Path, tmp_path: Path) -> None:
    path = tmp_path / "again.zarr"
    worker = sorted(client.scheduler_info()["workers"])[0]
    batches = []
    for _ in range(2):
        shutil.copytree(feed_dataset, path)  # the same content, in other files
        feeder = client.submit(Feeder, actor=True, workers=[worker], allow_other_workers=False).result(timeout=60)
        feeder.open(DatasetSource(feed_of(path, resident=False), (0, 1)), None).result(timeout=60)
        batches.append(feeder.read(6).result(timeout=60)[0])
        assert feeder.open_files(str(path)).result(timeout=60)
        feeder.close().result(timeout=60)
        # A task that had begun opens one of its own, and closes it at its end.
        wait_for(partial(has_none_open, feeder, path), "the last task")
        shutil.rmtree(path)
    assert_equal(*batches)


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("flaky", [True, False])
def test_dask_tasks_give_the_same_batches(
    client: Client, feed_dataset: Path, tmp_path: Path, resident: bool, flaky: bool
) -> None:
    stacked = {"frame_stack": 2, "frame_stack_fields": ("observations",)}
    # Halos on both sides of a block, and columns that are filled in once it is there.
    sampling = (
        Sampling(sampler="sequences", sequence_length=5, **stacked) if resident else Sampling(n_step=3, **stacked)
    )
    changes = {"sampling": sampling} if flaky else {}
    source = DatasetSource(feed_of(feed_dataset, resident=resident, **changes), (0, 2))
    wanted = sorted(client.scheduler_info()["workers"])[1]
    future = client.submit(Feeder, actor=True, workers=[wanted], allow_other_workers=False)
    feeder = future.result(timeout=60)
    address = feeder.open(source, tmp_path if flaky else None).result(timeout=60)
    assert address == wanted
    batches, num_held = feeder.read(60).result(timeout=60)
    feeder.close().result(timeout=60)
    assert_equal(batches, read_source(source, 60))
    if flaky:
        attempts = [file.read_text().split() for file in tmp_path.iterdir()]
        retried = [each for each in attempts if len(each) >= 2]
        assert len(retried) > 10
        assert len(attempts) - len(retried) <= 2  # under way when the iterator was closed
        assert {place for each in attempts for place in each} == {address}
    assert num_held < 10  # dropped once copied: 60 steps loaded many more
