"""Datasets of datasets: what is chosen, changed, merged and split, by hand-computed numbers and by comparison."""

import dataclasses

import fsspec
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_rl.storage import DatasetWriter, Episode, OfflineDataset
from dask_rl.storage.errors import ConfigError, DatasetError, DatasetNotFoundError, InvalidDataError
from dask_rl.storage.transforming import TransformConfig, transform_datasets
from dask_rl.storage.transforming.rewards import change_rewards
from dask_rl.storage.transforming.selection import select, split

pytestmark = pytest.mark.data

SPACES = {"observation_space": spaces.Box(-9, 9, (1,), np.float32), "action_space": spaces.Discrete(3)}


def make_episode(rewards, terminated=True, **changes):
    length = len(rewards)
    end = np.arange(length) == length - 1
    fields = {
        "observations": np.arange(length + 1, dtype=np.float32)[:, None],
        "actions": np.arange(length) % 3,
        "rewards": np.array(rewards, np.float32),
        "terminations": end & terminated,
        "truncations": end & (not terminated),
        "infos": {"speed": np.arange(length, dtype=np.float32), "lap": np.full(length, length)},
    }
    return Episode(**fields | changes)


def write(path, episodes, **changes):
    with DatasetWriter(path, **SPACES | {"shard_rows": 64} | changes) as writer:
        writer.add_episodes(episodes)
        return writer.finish()


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Returns 3, -1, 10, 2, 3 and lengths 2, 1, 4, 2, 3."""
    rewards = ([1, 2], [-1], [1, 2, 3, 4], [2, 0], [1, 1, 1])
    episodes = [make_episode(r, number % 2 == 0, id=10 * number, seed=number) for number, r in enumerate(rewards)]
    path = tmp_path_factory.mktemp("source") / "source.zarr"
    write(path, episodes).close()
    return path


def transform(source, dest, validation=None, **config):
    return transform_datasets(source, dest, config=TransformConfig(**config), validation=validation)


def ids_of(path):
    with OfflineDataset.open(path) as dataset:
        dataset.verify(deep=True)
        return dataset.episode_ids.tolist()


def assert_same_episodes(found, wanted):
    for got, want in zip(found, wanted, strict=True):
        assert (got.id, got.seed, got.has_final_observation) == (want.id, want.seed, want.has_final_observation)
        columns = got.columns()
        assert columns.keys() == want.columns().keys()
        for path, column in want.columns().items():
            np.testing.assert_array_equal(columns[path], column, err_msg=path, strict=True)


@pytest.mark.parametrize(
    ("config", "ids", "dropped"),
    [
        ({}, [0, 10, 20, 30, 40], {}),
        ({"min_return": 3}, [0, 20, 40], {"return below 3.0": 2}),
        ({"max_return": 2, "min_length": 2}, [30], {"return above 2.0": 3, "length below 2": 1}),
        ({"max_length": 2}, [0, 10, 30], {"length above 2": 2}),
        ({"top_fraction": 0.4}, [0, 20], {"not in the top 0.4 by return": 3}),
        ({"top_fraction": 0.01}, [20], {"not in the top 0.01 by return": 4}),
        ({"max_return": 5, "top_fraction": 0.5}, [0, 40], {"return above 5.0": 1, "not in the top 0.5 by return": 2}),
        ({"where": "truncated or return_ / length > 2"}, [10, 20, 30], {"not truncated or return_ / length > 2": 2}),
        ({"where": "not terminated"}, [10, 30], {"not not terminated": 3}),
        ({"where": "id in (0, 40) and index != 4"}, [0], {"not id in (0, 40) and index != 4": 4}),
        ({"where": "terminated - truncated == -1"}, [10, 30], {"not terminated - truncated == -1": 3}),
        ({"where": "1 < length <= 3"}, [0, 30, 40], {"not 1 < length <= 3": 2}),
        ({"where": "seed % 2 == 1 and source == 0"}, [10, 30], {"not seed % 2 == 1 and source == 0": 3}),
    ],
)
def test_episodes_are_chosen(source, tmp_path, config, ids, dropped):
    summary = transform(source, tmp_path / "d.zarr", **config)
    assert ids_of(tmp_path / "d.zarr") == ids
    assert summary.dropped == dropped
    assert (summary.num_episodes, summary.num_source_episodes, summary.num_source_steps) == (len(ids), 5, 12)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "return_.real > 1",
        "[x for x in (1,)]",
        "(lambda: True)()",
        "ids > 3",
        "length > 'a'",
        "length ** 9 > 1",
        "length if truncated else id",
        "return > 3",
        "length",
        "not length",
        "truncated and 3",
        "length is 3",
        "length >",
        "",
        "f'{length}'",
        "(y := 3) > 2",
        "length > 9223372036854775808",
        "truncated and " * 100 + "truncated",
        "-" * 990 + "1 > 0",
        "length << 3 > 1",
        "length in id",
    ],
)
def test_what_is_no_condition_is_refused(text):
    with pytest.raises(ValueError, match="where"):
        TransformConfig(where=text)


def test_integers_that_outgrow_64_bits_are_no_condition(source, tmp_path):
    for text in ("id * 4611686018427387904 >= 0", "-9223372036854770000 - id * 1000 < 0"):
        with pytest.raises(ConfigError, match=r"where: got .*outgrow 64 bits"):
            transform(source, tmp_path / "d.zarr", where=text)


def test_a_condition_that_divides_by_zero_says_so(source, tmp_path):
    with pytest.raises(ConfigError, match=r"where: got 'return_ / seed > 1' .*divide by zero"):
        transform(source, tmp_path / "d.zarr", where="return_ / seed > 1")


@given(
    returns=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30),
    fraction=st.floats(0.01, 1),
    threshold=st.floats(-1e6, 1e6),
)
@settings(max_examples=40, deadline=None)
def test_the_top_is_never_worse_than_the_rest(returns, fraction, threshold):
    facts = {"return_": np.array(returns), "length": np.ones(len(returns), np.int64)}
    kept = select(facts, TransformConfig(top_fraction=fraction)).kept
    assert kept.sum() == max(round(fraction * len(returns)), 1)
    assert facts["return_"][kept].min() >= facts["return_"][~kept].max(initial=-np.inf)
    if (facts["return_"] > threshold).any():
        wanted = select(facts, TransformConfig(where=f"return_ > {threshold}"))
        np.testing.assert_array_equal(wanted.kept, facts["return_"] > threshold)
        assert sum(wanted.dropped.values()) == (~wanted.kept).sum()


@given(flags=st.lists(st.booleans(), min_size=2, max_size=50), fraction=st.floats(0.01, 0.99), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_a_split_gives_each_episode_to_one_side(flags, fraction, seed):
    kept = np.array([True, True, *flags])
    training, validation = split(kept, fraction, seed)
    assert not (training & validation).any()
    np.testing.assert_array_equal(training | validation, kept)
    assert training.any()
    assert validation.sum() == min(max(round(fraction * kept.sum()), 1), kept.sum() - 1)
    np.testing.assert_array_equal(split(kept, fraction, seed)[1], validation)


@pytest.mark.parametrize(
    ("config", "rewards"),
    [
        ({}, [1, 2, 3, 4]),
        ({"step_reward": -1, "termination_reward": 0}, [-1, -1, -1, 0]),
        ({"termination_reward": 100}, [1, 2, 3, 100]),
        ({"reward_scale": 2, "reward_shift": -1}, [1, 3, 5, 7]),
        ({"reward_scale": -1, "min_reward": -3.5, "max_reward": -2}, [-2, -2, -3, -3.5]),
        ({"step_reward": 3, "reward_scale": 0.5, "reward_shift": 1}, [2.5] * 4),
    ],
)
def test_rewards_are_changed(source, tmp_path, config, rewards):
    transform(source, tmp_path / "d.zarr", **config, where="id in (20,)")
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset:
        found = dataset.episode(0).rewards
    assert (found.tolist(), found.dtype) == (rewards, np.float32)


def test_a_truncated_step_is_no_termination():
    config = TransformConfig(step_reward=-1, termination_reward=0)
    assert change_rewards(np.ones(3, np.float16), np.zeros(3, bool), config).tolist() == [-1, -1, -1]


def test_rewards_that_outgrow_their_type_are_refused(source, tmp_path):
    with pytest.raises(InvalidDataError, match="episode 0, step 0: rewards: got inf"):
        transform(source, tmp_path / "d.zarr", reward_scale=1e39)
    assert not list(tmp_path.iterdir())


def test_scores_of_other_rewards_are_left_out(tmp_path):
    write(tmp_path / "a.zarr", [make_episode([1])], ref_scores=(0.0, 1.0), environment="CartPole-v1").close()
    for name, config, scores in (("b", {}, (0.0, 1.0)), ("c", {"reward_shift": 1}, None)):
        summary = transform(tmp_path / "a.zarr", tmp_path / name, **config)
        with OfflineDataset.open(tmp_path / name) as dataset:
            assert (dataset.ref_scores, dataset.environment) == (scores, "CartPole-v1")
        assert bool(summary.notes) == (scores is None)


def test_infos_are_kept_and_renamed(source, tmp_path):
    transform(source, tmp_path / "d.zarr", infos=("lap",), rename_infos={"lap": "round"})
    transform(source, tmp_path / "none.zarr", infos=())
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset, OfflineDataset.open(tmp_path / "none.zarr") as bare:
        assert [(path, values.tolist()) for path, values in dataset.episode(2).infos.items()] == [("round", [4] * 4)]
        assert dataset.arrays["infos/round"].dtype == np.int64
        assert not bare.episode(0).infos


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"infos": ("spede",)}, "infos of .*source.zarr: got 'spede'; allowed: lap, speed"),
        ({"rename_infos": {"x": "y"}}, "got 'x'"),
        ({"rename_infos": {"lap": "speed"}}, "infos/speed: got 'lap' and 'speed'"),
        ({"min_return": 100}, "episodes: got 5 dropped: return below 100.0"),
        ({"validation_fraction": 0.5}, "validation: got a fraction and no dataset"),
    ],
)
def test_what_does_not_fit_is_refused(source, tmp_path, config, message):
    with pytest.raises(ConfigError, match=message):
        transform(source, tmp_path / "d.zarr", **config)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "config",
    [
        {"rename_infos": {"lap": "a/b"}},
        {"min_length": 3, "max_length": 2},
        {"top_fraction": 0},
        {"shard_rows": 3},
        {"min_return": float("nan")},
        {"validation_fraction": 1},
    ],
)
def test_bad_settings_are_refused(config):
    with pytest.raises(ValueError, match=r"got|Input"):
        TransformConfig(**config)


def test_places_that_are_taken_or_empty_are_refused_early(source, tmp_path):
    (tmp_path / "link").symlink_to(source)
    for dest in (source, tmp_path / "link"):
        with pytest.raises(ConfigError, match="got the path of a source"):
            transform_datasets(source, dest, overwrite=True)
    transform(source, tmp_path / "d.zarr")
    with pytest.raises(DatasetError, match="a path that exists already"):
        transform(source, tmp_path / "d.zarr")
    assert transform_datasets(source, tmp_path / "d.zarr", overwrite=True).num_episodes == 5
    with pytest.raises(ConfigError, match="the path of the training data"):
        transform(source, tmp_path / "e.zarr", tmp_path / "e.zarr", validation_fraction=0.5)
    with pytest.raises(DatasetNotFoundError):
        transform(tmp_path / "no.zarr", tmp_path / "e.zarr")
    with pytest.raises(ConfigError, match="sources: got none"):
        transform([], tmp_path / "e.zarr")


def test_a_copy_is_the_same_dataset_and_one_that_grew_comes_in_one_piece(tmp_path, make_episodes, settings_of_pendulum):
    episodes = list(make_episodes(num_episodes=20))
    whole = write(tmp_path / "whole.zarr", episodes, **settings_of_pendulum)
    write(tmp_path / "grown.zarr", episodes[:7], **settings_of_pendulum).close()
    with DatasetWriter(tmp_path / "grown.zarr", append=True, shard_rows=128) as writer:
        writer.add_episodes(episodes[7:])
    assert transform(tmp_path / "whole.zarr", tmp_path / "copy.zarr", shard_rows=64).content_hash == whole.content_hash
    summary = transform(tmp_path / "grown.zarr", tmp_path / "joined.zarr", shard_rows=64)
    assert summary.content_hash == whole.content_hash
    with OfflineDataset.open(tmp_path / "joined.zarr") as joined:
        assert (joined.generation, joined.shard_rows) == (1, 64)


def test_places_elsewhere(source, tmp_path):
    wanted = transform(source, tmp_path / "t.zarr", tmp_path / "v.zarr", validation_fraction=0.4)
    there = "memory://transforms"
    for _ in range(2):
        with_urls = transform(source, f"{there}/t.zarr", f"{there}/v.zarr", validation_fraction=0.4)
        assert with_urls.validation.content_hash == wanted.validation.content_hash
        fsspec.filesystem("memory").rm("/transforms/v.zarr", recursive=True)
    assert "was there already" in with_urls.notes[0]
    back = transform(f"{there}/t.zarr", tmp_path / "back.zarr")
    assert back.content_hash == wanted.content_hash


def test_split_and_merge_give_the_source(tmp_path, make_episodes, settings_of_pendulum):
    episodes = list(make_episodes(num_episodes=15))
    episodes[3] = dataclasses.replace(
        episodes[3],
        observations=np.concatenate([episodes[3].observations[:-1], episodes[3].observations[-2:-1]]),
        has_final_observation=False,
    )
    source = write(tmp_path / "source.zarr", episodes, **settings_of_pendulum)
    summary = transform(
        source.path, tmp_path / "t.zarr", tmp_path / "v.zarr", validation_fraction=0.2, seed=1, shard_rows=64
    )
    assert (summary.num_episodes, summary.validation.num_episodes) == (12, 3)
    training, validation = ids_of(tmp_path / "t.zarr"), ids_of(tmp_path / "v.zarr")
    assert sorted(training) == training
    assert sorted(training + validation) == source.episode_ids.tolist()
    both = [tmp_path / "t.zarr", tmp_path / "v.zarr"]
    assert not transform(both, tmp_path / "merged.zarr").notes
    with OfflineDataset.open(tmp_path / "merged.zarr") as merged:
        by_id = sorted(merged.episodes(), key=lambda episode: episode.id)
        assert_same_episodes(by_id, source.episodes())
        assert merged.has_final_observation.sum() == 14
    assert transform(both, tmp_path / "n.zarr", ids="renumber").num_episodes == 15
    assert ids_of(tmp_path / "n.zarr") == list(range(15))
    count = transform(both, tmp_path / "f.zarr", ids="renumber", where="id % 3 > 0 and index > 1").num_episodes
    assert ids_of(tmp_path / "f.zarr") == list(range(count))


def test_a_split_that_died_in_between_is_finished(source, tmp_path):
    dest, other = tmp_path / "t.zarr", tmp_path / "v.zarr"
    wanted = transform(source, dest, other, validation_fraction=0.4)
    (other / "commit.json").unlink()
    with pytest.raises(DatasetError, match="a path that exists already"):
        transform(source, dest, other, validation_fraction=0.4)
    for file in sorted(other.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    other.rmdir()
    with pytest.raises(DatasetError, match="a path that exists already"):
        transform(source, dest, other, validation_fraction=0.4, seed=1)  # another split
    again = transform(source, dest, other, validation_fraction=0.4)
    assert (again.content_hash, again.validation) == (wanted.content_hash, wanted.validation)
    assert "was there already" in again.notes[0]
    with pytest.raises(DatasetError, match="a path that exists already"):
        transform(source, dest, other, validation_fraction=0.4)


def test_what_differs_cannot_be_merged(source, tmp_path):
    write(tmp_path / "box.zarr", [make_episode([1])], observation_space=spaces.Box(-9, 9, (1,), np.float64)).close()
    write(tmp_path / "infos.zarr", [make_episode([1], infos={"speed": np.ones(1, np.float32)}, id=7)]).close()
    write(tmp_path / "wide.zarr", [dataclasses.replace(make_episode([1]), rewards=np.ones(1))]).close()
    for name, message in (
        ("box", "observation_space of .*box.zarr: got Box"),
        ("infos", "infos/lap of .*infos.zarr: got no such field; allowed: int64"),
        ("wide", "rewards of .*wide.zarr: got float64"),
    ):
        with pytest.raises(ConfigError, match=message):
            transform([source, tmp_path / f"{name}.zarr"], tmp_path / "d.zarr")
    summary = transform([source, tmp_path / "infos.zarr", source], tmp_path / "d.zarr", infos=("speed",))
    assert (summary.num_episodes, summary.num_steps) == (11, 25)
    assert any("5 episodes have the id of an earlier one" in note for note in summary.notes)


def test_nested_observations_and_images_stay_as_they_are(tmp_path):
    pose = spaces.Tuple((spaces.Discrete(3), SPACES["observation_space"]))
    observation_space = spaces.Dict({"camera": spaces.Box(0, 255, (4, 4), np.uint8), "pose": pose})
    rng = np.random.default_rng(0)
    episodes = [
        make_episode(
            rng.standard_normal(length),
            id=length,
            observations={
                "camera": rng.integers(0, 256, (length + 1, 4, 4), np.uint8),
                "pose": {"0": rng.integers(0, 3, length + 1), "1": rng.random((length + 1, 1), np.float32)},
            },
        )
        for length in (5, 60, 1, 9)
    ]
    source = write(tmp_path / "a.zarr", episodes, observation_space=observation_space)
    transform(source.path, tmp_path / "b.zarr", where="length != 60")
    with OfflineDataset.open(tmp_path / "b.zarr") as dataset:
        assert_same_episodes(dataset.episodes(), [episodes[0], *episodes[2:]])
        assert dataset.observation_space == observation_space


def test_progress_comes_to_its_end(source, tmp_path):
    seen = []
    transform_datasets(
        source,
        tmp_path / "d.zarr",
        config=TransformConfig(min_length=2),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1] == (11, 11)


def test_a_source_that_is_replaced_meanwhile_is_an_error(source, tmp_path):
    write(tmp_path / "other.zarr", [make_episode([1])]).close()

    def replace(done, total):
        write(tmp_path / "other.zarr", [make_episode([2])], overwrite=True).close()

    with pytest.raises(DatasetError, match="content hash"):
        transform_datasets([source, tmp_path / "other.zarr"], tmp_path / "d.zarr", progress=replace)
    assert [entry.name for entry in tmp_path.iterdir()] == ["other.zarr"]
