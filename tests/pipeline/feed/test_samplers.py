"""Samplers against a slow reference that is written from their definition."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from feed_reference import stream_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from worker_code import CPU, read_steps

from dask_rl.pipeline.feed.blocks import Arrays
from dask_rl.pipeline.feed.config import FeedConfig, resolve_feed
from dask_rl.pipeline.feed.order import ShardOrder, shard_order
from dask_rl.pipeline.feed.partition import shards_of
from dask_rl.pipeline.feed.sampling import Halo, Sampling
from dask_rl.pipeline.feed.source import DatasetSource, plan_feed
from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.episode import Episode
from dask_rl.storage.errors import ConfigError
from dask_rl.storage.transforms import ScaleReward
from dask_rl.storage.writer import DatasetWriter

FIELDS = (
    "observations",
    "actions",
    "rewards",
    "terminations",
    "truncations",
    "next_observations",
    "next_valid",
    "returns_to_go",
    "timesteps",
)
DISCOUNT, SCALE, SHIFT = 0.9, 2.0, 0.5


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of bytes; some episodes have no final observation, some end in truncation."""
    path = tmp_path_factory.mktemp("images") / "images.zarr"
    rng = np.random.default_rng(1)
    space = gymnasium.spaces.Box(0, 255, (2, 3), np.uint8)
    with DatasetWriter(
        path, observation_space=space, action_space=gymnasium.spaces.Discrete(4), shard_rows=64
    ) as writer:
        for number in range(30):
            length = int(rng.integers(1, 25))
            frames = rng.integers(0, 256, (length + 1, 2, 3)).astype(np.uint8)
            has_final = number % 3 != 0
            if not has_final:
                frames[-1] = frames[-2]
            last = np.arange(length) == length - 1
            writer.add_episode(
                Episode(
                    observations=frames,
                    actions=rng.integers(0, 4, length),
                    rewards=rng.normal(size=length).astype(np.float32),
                    terminations=last & (number % 2 == 0),
                    truncations=last & (number % 2 == 1),
                    has_final_observation=has_final,
                )
            )
    return path


class Reference:
    """Says what a sample is, one number after another."""

    def __init__(self, config: FeedConfig) -> None:
        self.sampling, self.fields = config.sampling, config.fields
        needs_next = "next_observations" in config.fields
        with OfflineDataset.open(config.dataset) as dataset:
            self.feed = resolve_feed(config, dataset, row_bytes=1, halo=Halo())
            self.columns = {name: dataset.read(name, 0, dataset.num_rows) for name in dataset.arrays}
            self.starts, self.ends = dataset.episode_starts, dataset.episode_ends
            self.has_final = dataset.has_final_observation
            cut_off = ~self.has_final & ~dataset.episode_terminations & needs_next
            self.num_usable = dataset.episode_lengths - cut_off
            self.rewards = self.columns["rewards"].astype(np.float32) * np.float32(SCALE) + np.float32(SHIFT)
            self.rewards[self.ends - 1] = 0
        self.stacked = self.sampling.frame_stack > 1

    def rows(self, shard: int, step: int) -> np.ndarray:
        return stream_rows(self.feed, shard, step)

    def frames(self, episode: int, step: int) -> np.ndarray:
        rows, start = self.columns["observations"], int(self.starts[episode])
        if not self.stacked:
            return rows[start + step]
        past = range(step - self.sampling.frame_stack + 1, step + 1)
        return np.stack([rows[start + max(0, each)] for each in past])

    def step(self, episode: int, t: int) -> dict[str, Any]:
        start, end = int(self.starts[episode]), int(self.ends[episode])
        num_ahead = min(self.sampling.n_step, int(self.num_usable[episode]) - t)
        last = start + t + num_ahead - 1
        sample = {
            "observations": self.frames(episode, t),
            "actions": self.columns["actions"][start + t],
            "rewards": sum(DISCOUNT**i * float(self.rewards[start + t + i]) for i in range(num_ahead)),
            "terminations": self.columns["terminations"][last],
            "truncations": self.columns["truncations"][last],
            "next_observations": self.frames(episode, t + num_ahead),
            "next_valid": bool(last + 1 < end - 1 or self.has_final[episode]),
            "returns_to_go": sum(DISCOUNT**i * float(r) for i, r in enumerate(self.rewards[start + t : end - 1])),
            "timesteps": t,
            "discounts": DISCOUNT**num_ahead,
        }
        extra = ("discounts",) if self.sampling.n_step > 1 else ()
        return {name: np.asarray(sample[name]) for name in (*self.fields, *extra)}

    def sample(self, row: int) -> dict[str, Any]:
        episode = int(np.searchsorted(self.ends, row, side="right"))
        t = row - int(self.starts[episode])
        length = self.sampling.sequence_length
        if length is None:
            return self.step(episode, t)
        first = t - length + 1 if self.sampling.padding == "left" else t
        real = [0 <= each < self.num_usable[episode] for each in range(first, first + length)]
        anchor = self.step(episode, t)
        elements = [
            self.step(episode, first + i) if there else {name: np.zeros_like(v) for name, v in anchor.items()}
            for i, there in enumerate(real)
        ]
        sample = {name: np.stack([element[name] for element in elements]) for name in anchor}
        sample["sequence_mask"] = np.array(real)
        sample["timesteps"] = np.array([first + i if there else 0 for i, there in enumerate(real)])
        return sample

    def batch(self, shards: tuple[int, ...], step: int) -> Arrays:
        samples = [self.sample(int(row)) for shard in shards for row in self.rows(shard, step)]
        return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}


def feed_of(path: Path, **changes: Any) -> FeedConfig:
    config = FeedConfig(
        dataset=str(path),
        fields=FIELDS,
        batch_size=24,
        num_shards=4,
        seed=5,
        discount=DISCOUNT,
        transforms={"rewards": (ScaleReward(SCALE, SHIFT),)},
        block_rows=16,
        window_rows=48,
    )
    return replace(config, **changes)


def read_source(source: DatasetSource, num_steps: int, start: int = 0) -> list[Arrays]:
    iterator = source.open(CPU, 30.0)
    try:
        iterator.seek(start)
        return read_steps(iterator, num_steps)
    finally:
        iterator.close()


def assert_matches(got: list[Arrays], reference: Reference, shards: tuple[int, ...], start: int = 0) -> None:
    for step, batch in enumerate(got, start):
        expected = reference.batch(shards, step)
        assert batch.keys() == expected.keys()
        for name, values in expected.items():
            assert batch[name].shape == values.shape, name
            close = name in ("rewards", "returns_to_go", "discounts")  # rounded once, from float64
            np.testing.assert_allclose(batch[name], values, rtol=1e-5 if close else 0, atol=1e-5 if close else 0)


@st.composite
def samplings(draw: st.DrawFn) -> Sampling:
    sampler = draw(st.sampled_from(["epoch", "uniform", "sequences"]))
    is_sequence = sampler == "sequences"
    frame_stack = draw(st.sampled_from([1, 2, 4]))
    return Sampling(
        sampler=sampler,
        sequence_length=draw(st.integers(1, 40)) if is_sequence else None,
        padding=draw(st.sampled_from(["left", "right"])) if is_sequence else "left",
        n_step=1 if is_sequence else draw(st.integers(1, 12)),
        frame_stack=frame_stack,
        frame_stack_fields=("observations",) if frame_stack > 1 else None,
    )


@settings(max_examples=20)
@given(data=st.data(), sampling=samplings())
def test_samples_are_what_they_are_said_to_be(
    feed_dataset: Path, images: Path, data: st.DataObject, sampling: Sampling
) -> None:
    num_shards = data.draw(st.integers(1, 5), "num_shards")
    block_rows = data.draw(st.integers(1, 60), "block_rows")
    fields = data.draw(st.sampled_from([FIELDS, ("observations", "actions", "rewards", "terminations")]), "fields")
    config = feed_of(
        data.draw(st.sampled_from([feed_dataset, images]), "dataset"),
        fields=fields,
        sampling=sampling,
        num_shards=num_shards,
        batch_size=num_shards * data.draw(st.integers(1, 20), "rows of a shard"),
        block_rows=block_rows,
        window_rows=block_rows * data.draw(st.integers(1, 4), "blocks of a window"),
        top_fraction=data.draw(st.sampled_from([None, 0.5]), "top_fraction"),
    )
    num_learners = data.draw(st.integers(1, num_shards), "num_learners")
    shards = shards_of(num_learners - 1, num_learners, num_shards)
    start = data.draw(st.sampled_from([0, 11]), "start")
    reference = Reference(config)
    for resident in (True, False):
        got = read_source(DatasetSource(replace(config, resident=resident), shards), 4, start)
        assert_matches(got, reference, shards, start)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(sampler="uniform", n_step=3),
        Sampling(sampler="sequences", sequence_length=7, frame_stack=3),
        Sampling(sampler="sequences", sequence_length=7, padding="right"),
    ],
)
@pytest.mark.parametrize("resident", [True, False])
def test_resuming_is_exact_and_of_the_same_sampler_only(images: Path, sampling: Sampling, resident: bool) -> None:
    source = DatasetSource(feed_of(images, sampling=sampling, resident=resident), (0, 2))
    iterator = source.open(CPU, 30.0)
    batches = read_steps(iterator, 30)
    for step in (20, 3, 29):
        iterator.seek(step)
        for name, values in read_steps(iterator, 1)[0].items():
            assert np.array_equal(values, batches[step][name])
    state = iterator.state_dict()
    other = plan_feed(feed_of(images)).shares(1)[0].open(CPU, 30.0)
    assert "sampling" not in other.state_dict()["parameters"]  # states of before there were samplers resume
    with pytest.raises(ConfigError, match=f"iterator state: got .*sampling.*{sampling.sampler}"):
        other.load_state_dict(state)
    iterator.load_state_dict(state)
    iterator.close()
    other.close()


def test_uniform_draws_are_independent_of_each_other() -> None:
    order = ShardOrder(3, 0, 1, num_positions=5000, block_rows=5000, window_rows=5000, replacement=True)
    counts = np.bincount(shard_order(order, 0), minlength=5000)
    # Of n independent draws from n rows, a share of e^-1 is never drawn, as many once, half as many twice.
    shares = np.bincount(counts)[:3] / 5000
    np.testing.assert_allclose(shares, [np.exp(-1), np.exp(-1), np.exp(-1) / 2], atol=0.02)
    assert not np.array_equal(shard_order(order, 0), shard_order(order, 1))


def test_the_draws_are_pinned() -> None:
    # A change here changes every run that is resumed.
    order = ShardOrder(3, 1, 2, num_positions=12, block_rows=2, window_rows=4, replacement=True)
    assert shard_order(order, 0).tolist() == [9, 9, 1, 0, 0, 6, 4, 10, 4, 5, 2, 3]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sampler": "episodes"}, "sampler: got episodes.*; allowed: epoch, uniform, sequences"),
        ({"sampler": "sequences"}, "sequence_length: got None, with sampler=sequences; allowed: 1 to"),
        ({"sequence_length": 5}, "sequence_length: got 5, with sampler=epoch; allowed: .* none without"),
        ({"sampler": "sequences", "sequence_length": 5, "n_step": 2}, "n_step: got 2.*1 with sampler=sequences"),
        ({"n_step": 0}, "n_step: got 0"),
        ({"frame_stack": 0}, "frame_stack: got 0"),
        ({"padding": "both"}, "padding: got both.*; allowed: left, right"),
        ({"frame_stack_fields": ("observations",)}, "frame_stack_fields: got"),
    ],
)
def test_settings_that_do_not_fit_together_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Sampling(**settings)


def test_frames_to_stack_must_be_observations(feed_dataset: Path, images: Path) -> None:
    with pytest.raises(ConfigError, match=r"frame_stack_fields: got none, and no image.*allowed: .*observations"):
        plan_feed(feed_of(feed_dataset, sampling=Sampling(frame_stack=2)))
    with pytest.raises(ConfigError, match=r"frame_stack_fields: got \['actions'\]"):
        plan_feed(feed_of(images, sampling=Sampling(frame_stack=2, frame_stack_fields=("actions",))))
