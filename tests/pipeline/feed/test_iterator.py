import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from feed_reference import stream_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dask_rl.learners.iterator import BatchSource
from dask_rl.pipeline.feed.blocks import Arrays
from dask_rl.pipeline.feed.config import FeedConfig
from dask_rl.pipeline.feed.iterator import DatasetIterator
from dask_rl.pipeline.feed.partition import shards_of
from dask_rl.pipeline.feed.source import DatasetSource, plan_feed
from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import ConfigError, DatasetError
from dask_rl.storage.transforms import Normalize, ScaleReward
from dask_rl.storage.writer import DatasetWriter

CPU = torch.device("cpu")
ALL_FIELDS = (
    "observations",
    "actions",
    "rewards",
    "terminations",
    "next_observations",
    "next_valid",
    "returns_to_go",
)
EPISODE, STEP, LENGTH = 0, 1, 2  # what the components of an observation say


def feed_of(path: Path, **changes: Any) -> FeedConfig:
    config = FeedConfig(dataset=str(path), fields=ALL_FIELDS, batch_size=24, num_shards=4, seed=5)
    return replace(config, **{"block_rows": 16, "window_rows": 48, "discount": 0.9, **changes})


def read_steps(iterator: DatasetIterator, num_steps: int) -> list[Arrays]:
    return [{name: tensor.numpy().copy() for name, tensor in iterator.next_batch().items()} for _ in range(num_steps)]


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


class Oracle:
    """Says what each shard gives to each batch, from whole columns and whole epochs."""

    def __init__(self, config: FeedConfig) -> None:
        iterator = DatasetSource(config, (0,)).open(CPU, 30.0)
        self.feed = iterator.feed
        iterator.close()
        with OfflineDataset.open(config.dataset) as dataset:
            self.columns = {
                name: dataset.read(name, 0, dataset.num_rows)
                for name in ("observations", "actions", "rewards", "terminations")
            }
            self.columns["returns_to_go"] = self._returns_to_go(dataset, config.discount)

    def _returns_to_go(self, dataset: OfflineDataset, discount: float) -> np.ndarray:
        out = np.zeros(dataset.num_rows)
        rewards = self.columns["rewards"].astype(np.float64)
        for start, end in zip(dataset.episode_starts, dataset.episode_ends, strict=True):
            for row in range(int(end) - 2, int(start) - 1, -1):
                out[row] = rewards[row] + discount * out[row + 1]
        return out

    def rows(self, shard: int, step: int) -> np.ndarray:
        return stream_rows(self.feed, shard, step)

    def batch(self, shards: tuple[int, ...], step: int) -> Arrays:
        rows = np.concatenate([self.rows(shard, step) for shard in shards])
        floats = ("observations", "rewards", "terminations", "returns_to_go")
        batch = {name: self.columns[name][rows].astype(np.float32) for name in floats}
        batch["actions"] = self.columns["actions"][rows].astype(np.int64)
        batch["next_observations"] = self.columns["observations"][rows + 1]
        batch["next_valid"] = ~np.isin(rows, self.feed.transitions.invalid_next_rows)
        return batch


def assert_matches(got: list[Arrays], oracle: Oracle, shards: tuple[int, ...], start: int = 0) -> None:
    for step, batch in enumerate(got, start):
        expected = oracle.batch(shards, step)
        assert batch.keys() == expected.keys()
        np.testing.assert_allclose(batch.pop("returns_to_go"), expected.pop("returns_to_go"), rtol=1e-6, atol=1e-6)
        for name, values in expected.items():
            assert batch[name].dtype == values.dtype
            assert np.array_equal(batch[name], values), (step, name)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_batches_are_those_of_the_order_for_any_split_mode_and_start(feed_dataset: Path, data: st.DataObject) -> None:
    num_shards = data.draw(st.integers(1, 6), "num_shards")
    block_rows = data.draw(st.integers(1, 60), "block_rows")
    config = feed_of(
        feed_dataset,
        num_shards=num_shards,
        batch_size=num_shards * data.draw(st.integers(1, 40), "rows of a shard"),
        block_rows=block_rows,
        window_rows=block_rows * data.draw(st.integers(1, 4), "blocks of a window"),
        seed=data.draw(st.integers(0, 100), "seed"),
        resident=data.draw(st.booleans(), "resident"),
        top_fraction=data.draw(st.sampled_from([None, 0.5]), "top_fraction"),
    )
    num_learners = data.draw(st.integers(1, num_shards), "num_learners")
    start = data.draw(st.sampled_from([0, 1, 17]), "start")
    oracle = Oracle(config)
    for learner in range(num_learners):
        shards = shards_of(learner, num_learners, num_shards)
        assert_matches(read_source(DatasetSource(config, shards), 20, start), oracle, shards, start)


def test_an_epoch_delivers_each_transition_once_and_never_a_final_row(feed_dataset: Path) -> None:
    config = feed_of(feed_dataset, batch_size=4, num_shards=4)
    plan = plan_feed(config)
    whole_steps = plan.num_positions // 4
    batches = read_source(plan.shares(1)[0], whole_steps)
    columns = {name: np.concatenate([batch[name] for batch in batches]) for name in ALL_FIELDS}
    now, following = columns["observations"], columns["next_observations"]
    names = {(int(row[EPISODE]), int(row[STEP])) for row in now}
    assert len(names) == len(now) == whole_steps * 4  # each once
    assert (now[:, STEP] < now[:, LENGTH]).all()
    assert (following[:, EPISODE] == now[:, EPISODE]).all()  # never across an episode
    valid = columns["next_valid"]
    assert (following[valid, STEP] == now[valid, STEP] + 1).all()
    last = now[:, STEP] == now[:, LENGTH] - 1
    without_final = now[:, EPISODE] % 3 == 0
    assert np.array_equal(valid, ~(last & without_final))
    assert np.array_equal(columns["terminations"] == 1, last & (now[:, EPISODE] % 2 == 0))
    # The last transition of a truncated episode without a final observation serves no bootstrapping.
    assert not (last & without_final & (now[:, EPISODE] % 2 == 1)).any()


def test_behaviour_cloning_uses_every_transition(feed_dataset: Path) -> None:
    config = feed_of(feed_dataset, fields=("observations", "actions"))
    with OfflineDataset.open(feed_dataset) as dataset:
        assert plan_feed(config).num_positions == dataset.num_steps
    batch = read_source(DatasetSource(config, (0, 1, 2, 3)), 1)[0]
    assert batch.keys() == {"observations", "actions"}  # nothing else is read
    assert batch["actions"].dtype == np.int64


@pytest.mark.parametrize("resident", [True, False])
def test_seeking_is_the_same_as_stepping(feed_dataset: Path, resident: bool) -> None:
    source = DatasetSource(feed_of(feed_dataset, resident=resident), (0, 2))
    batches = read_source(source, 60)
    iterator = source.open(CPU, 30.0)
    for step in (40, 3, 57, 58, 0):
        iterator.seek(step)
        assert_equal(read_steps(iterator, 2), batches[step : step + 2])
        assert iterator.step == step + 2
    iterator.close()


def test_a_saved_state_resumes_with_another_number_of_learners(feed_dataset: Path) -> None:
    config = feed_of(feed_dataset)
    whole = plan_feed(config).shares(1)[0].open(CPU, 30.0)
    read_steps(whole, 7)
    state = whole.state_dict()
    half = plan_feed(config).shares(2)[1].open(CPU, 30.0)
    half.load_state_dict(state)
    per_shard = half.rows_per_shard
    expected = {
        name: values.reshape(4, per_shard, *values.shape[1:])[1::2].reshape(2 * per_shard, *values.shape[1:])
        for name, values in read_steps(whole, 1)[0].items()
    }
    assert_equal(read_steps(half, 1), [expected])
    assert half.epoch == pytest.approx(8 * 24 / plan_feed(config).num_positions)
    assert half.num_rows == 8 * 12
    whole.close()
    half.close()


def test_a_state_of_other_settings_is_refused(feed_dataset: Path) -> None:
    iterator = DatasetSource(feed_of(feed_dataset), (0,)).open(CPU, 30.0)
    other = DatasetSource(feed_of(feed_dataset, seed=6, window_rows=64), (0,)).open(CPU, 30.0)
    with pytest.raises(ConfigError, match=r"'seed': '5'.*'window_rows': '48'.*'seed': '6'.*'window_rows': '64'"):
        other.load_state_dict(iterator.state_dict())
    iterator.close()
    other.close()


def test_a_state_of_other_transforms_is_shown_where_it_differs(feed_dataset: Path) -> None:
    iterators = []
    for last in (2.0, float(np.nextafter(2, 3))):
        transform = Normalize((1.25, 1.5, last), (1.0, 1.0, 1.0))
        feed = feed_of(feed_dataset, transforms={"observations": (transform,)})
        iterators.append(DatasetSource(feed, (0,)).open(CPU, 30.0))
    with pytest.raises(ConfigError, match=r"got .*\.\.\..* 2\.0\].*allowed.*\.\.\..* 2\.0000000000000004\]"):
        iterators[1].load_state_dict(iterators[0].state_dict())
    for iterator in iterators:
        iterator.close()


@pytest.mark.parametrize("resident", [True, False])
def test_what_is_appended_is_for_feeds_that_are_planned_later(
    feed_dataset: Path, tmp_path: Path, resident: bool
) -> None:
    path = tmp_path / "grows.zarr"
    shutil.copytree(feed_dataset, path)
    plan = plan_feed(feed_of(path, resident=resident))
    source = plan.shares(1)[0]
    iterator = source.open(CPU, 30.0)
    before = read_steps(iterator, 20)
    with OfflineDataset.open(path) as dataset, DatasetWriter(path, append=True) as writer:
        writer.add_episode(dataset.episode(3))
    iterator.seek(10)
    assert_equal(read_steps(iterator, 10), before[10:])
    iterator.close()
    assert_equal(read_source(source, 20), before)
    assert plan_feed(feed_of(path)).num_positions > plan.num_positions


def test_transforms_and_float64(feed_dataset: Path) -> None:
    mean, std = (20.0, 10.0, 15.0), (8.0, 4.0, 16.0)
    transforms = {
        "observations": (Normalize(mean=mean, std=std, eps=0.0),),
        "rewards": (ScaleReward(scale=2.0, shift=1.0),),
    }
    plain, scaled = (
        read_source(DatasetSource(feed_of(feed_dataset, dtype="float64", **extra), (0, 1)), 5)
        for extra in ({}, {"transforms": transforms, "resident": False})
    )
    for before, after in zip(plain, scaled, strict=True):
        assert after["observations"].dtype == np.float64
        for name in ("observations", "next_observations"):
            np.testing.assert_allclose(after[name], (before[name] - mean) / std, atol=1e-12)
        np.testing.assert_allclose(after["rewards"], before["rewards"] * 2 + 1, rtol=1e-12)
        # Returns are those of the rewards that the learner sees.
        remaining = before["observations"][:, LENGTH] - before["observations"][:, STEP]
        shifts = (1 - 0.9**remaining) / (1 - 0.9)
        np.testing.assert_allclose(after["returns_to_go"], 2 * before["returns_to_go"] + shifts, rtol=1e-9)


def test_top_fraction_uses_the_best_episodes(feed_dataset: Path) -> None:
    plan = plan_feed(feed_of(feed_dataset, top_fraction=0.1))
    with OfflineDataset.open(feed_dataset) as dataset:
        best = set(np.argsort(-dataset.episode_returns(), kind="stable")[:4].tolist())
    assert plan.num_episodes == 4
    seen = {int(row[EPISODE]) for batch in read_source(plan.shares(1)[0], 12) for row in batch["observations"]}
    assert seen == best


def test_streaming_needs_its_minimum(feed_dataset: Path) -> None:
    config = feed_of(feed_dataset, memory_budget_bytes=3000)
    with pytest.raises(ConfigError, match=r"memory_budget_bytes: got 3000; allowed: at least \d+ for streaming"):
        DatasetSource(config, (0, 1, 2, 3)).open(CPU, 30.0)
    # With the sizes left open they are chosen to fit one learner that owns every shard.
    with OfflineDataset.open(feed_dataset) as dataset:
        budget = 40 * dataset.num_rows
    open_sizes = feed_of(feed_dataset, memory_budget_bytes=budget, block_rows=None, window_rows=None)
    iterator = plan_feed(open_sizes).shares(1)[0].open(CPU, 30.0)
    assert not iterator.resident
    iterator.close()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"fields": ("observation",)}, ConfigError, "field 'observation': got no such array"),
        ({"num_shards": 24, "batch_size": 24, "top_fraction": 0.001}, ConfigError, "num_shards: got 24 for"),
        ({"content_hash": "0" * 64}, DatasetError, r"allowed: 0{12}.*; restore that dataset"),
        ({"transforms": {"infos/x": ()}}, ConfigError, "transforms: got"),
        ({"discount": 2.0}, ConfigError, "discount: got 2.0; allowed: 0 to 1"),
        ({"dtype": "float8"}, ConfigError, "dtype: got float8; allowed: float32, float64"),
        ({"loader": "magic"}, ConfigError, "loader: got magic; allowed: auto, thread, dask"),
    ],
)
def test_settings_that_do_not_fit_are_named(
    feed_dataset: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        plan_feed(feed_of(feed_dataset, **changes))


def test_dask_tasks_need_a_worker(feed_dataset: Path) -> None:
    with pytest.raises(ConfigError, match="loader: got dask; allowed: thread outside a Dask worker"):
        plan_feed(feed_of(feed_dataset, loader="dask")).shares(1)[0].open(CPU, 30.0)


def test_a_source_is_a_small_picklable_recipe(feed_dataset: Path) -> None:
    sources = plan_feed(feed_of(feed_dataset)).shares(2)
    assert all(isinstance(source, BatchSource) for source in sources)
    assert sources[0].key == sources[1].key  # learners keep it, and its state, under one name
    assert sources[0] != sources[1]
    copy = cloudpickle.loads(cloudpickle.dumps(sources[0]))
    assert copy == sources[0]
    assert copy.key == sources[0].key
