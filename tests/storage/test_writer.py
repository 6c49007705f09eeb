import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import zarr
from gymnasium import spaces

from dask_rl.storage import ConfigError, DatasetError, DatasetWriter, Episode, InvalidDataError, OfflineDataset


def write(path, episodes, settings, **more):
    with DatasetWriter(path, **settings, **more) as writer:
        writer.add_episodes(episodes)
        return writer.finish()


def leftovers(path):
    return [entry.name for entry in path.iterdir()]


def test_zarr_python_reads_the_store_equal(dataset, make_episodes):
    group = zarr.open_group(dataset.path, mode="r")
    episodes = list(make_episodes())
    ends = np.cumsum([len(episode) + 1 for episode in episodes])
    np.testing.assert_array_equal(group["meta/episode_ends"][:], ends)
    np.testing.assert_array_equal(group["meta/episode_id"][:], np.arange(100, 112))
    np.testing.assert_array_equal(group["meta/episode_seed"][:], [n if n % 3 else -1 for n in range(12)])
    assert group["meta/episode_has_final_observation"][:].all()
    np.testing.assert_array_equal(
        group["data/observations"][:], np.concatenate([episode.observations for episode in episodes])
    )
    for field in ("actions", "rewards", "terminations", "truncations"):
        column = [np.concatenate([c, np.zeros_like(c[:1])]) for c in (getattr(e, field) for e in episodes)]
        np.testing.assert_array_equal(group[f"data/{field}"][:], np.concatenate(column), err_msg=field)
    logp = [np.append(episode.infos["behavior_logp"], 0) for episode in episodes]
    np.testing.assert_array_equal(group["data/infos/behavior_logp"][:], np.concatenate(logp))


def test_metadata_is_complete_and_consolidated(dataset):
    group = zarr.open_consolidated(dataset.path, zarr_format=3)
    observations = group["data/observations"]
    assert observations.metadata.dimension_names == ("row", "observations_0")
    assert group["data/rewards"].metadata.dimension_names == ("row",)
    assert group["meta/episode_ends"].metadata.dimension_names == ("episode",)
    assert observations.shards == (64, 3)
    assert np.isnan(observations.fill_value)
    codec = observations.metadata.to_dict()["codecs"][0]
    assert codec["name"] == "sharding_indexed"
    assert [c["name"] for c in codec["configuration"]["codecs"]][-1] == "crc32c"
    attributes = group.attrs["dask_rl"]
    assert attributes["schema"] == 1
    assert attributes["row_convention"] == "T+1"
    root = json.loads((dataset.location.local_file("zarr.json")).read_text())
    consolidated = root["consolidated_metadata"]["metadata"]
    for field in dataset.arrays:
        on_disk = json.loads(dataset.location.local_file(f"data/{field}/zarr.json").read_text())
        assert consolidated[f"data/{field}"]["shape"] == on_disk["shape"] == [
            dataset.num_rows, *dataset.arrays[field].row_shape
        ]  # fmt: skip


def test_final_rows_hold_the_observation_only(dataset, make_episodes):
    final = dataset.episode_ends - 1
    for field in dataset.arrays:
        rows = dataset.read(field, 0, dataset.num_rows)[final]
        if field == "observations":
            np.testing.assert_array_equal(rows, [episode.observations[-1] for episode in make_episodes()])
        else:
            assert not rows.any(), field


def test_without_a_final_observation_the_last_one_is_repeated(tmp_path, make_episodes, settings_of_pendulum):
    first, second = make_episodes(2)
    observations = first.observations.copy()
    observations[-1] = 77
    cut = replace(first, observations=observations, has_final_observation=False)
    dataset = write(tmp_path / "d.zarr", [cut, second], settings_of_pendulum)
    assert dataset.has_final_observation.tolist() == [False, True]
    again = dataset.episode(0)
    assert not again.has_final_observation
    np.testing.assert_array_equal(again.observations[-1], first.observations[-2])
    np.testing.assert_array_equal(again.observations[:-1], first.observations[:-1])
    dataset.verify(deep=True)


def test_few_rows_take_little_room(tmp_path, settings_of_pendulum, make_episodes):
    episodes = list(make_episodes(200, max_length=42))
    dataset = write(tmp_path / "d.zarr", episodes, settings_of_pendulum)
    assert 4000 < dataset.num_steps < 4500
    raw = dataset.num_rows * sum(spec.row_bytes for spec in dataset.arrays.values())
    assert dataset.describe()["num_bytes"] < 2 * raw + 50_000
    assert dataset.shard_rows == 8192


def test_zstd_only_where_it_pays(tmp_path, settings_of_pendulum, make_episodes):
    dataset = write(tmp_path / "d.zarr", make_episodes(600), settings_of_pendulum)
    compressed = {field: layout.compressed for field, layout in dataset.contents.layouts.items()}
    assert not compressed["observations"]
    assert compressed["terminations"]


def test_the_hash_is_of_the_data_and_not_of_its_origin(tmp_path, make_episodes, settings_of_pendulum):
    def digest(name, episodes, **more):
        return write(tmp_path / name, episodes, {**settings_of_pendulum, **more}).content_hash

    plain = digest("a.zarr", make_episodes())
    assert digest("b.zarr", make_episodes(), provenance={"source": "elsewhere", "date": "today"}) == plain
    assert digest("c.zarr", make_episodes(seed=1)) != plain
    assert digest("d.zarr", make_episodes(), environment="Pendulum-v1") != plain
    assert digest("e.zarr", make_episodes(), action_space=spaces.Box(-3, 3, (1,), np.float32)) != plain


def test_images_and_discrete_actions(tmp_path):
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 9, (51, 16, 16, 1)).astype(np.uint8)
    flags = np.zeros(50, bool)
    episode = Episode(frames, rng.integers(0, 4, 50), np.ones(50), flags, flags)
    settings = {"observation_space": spaces.Box(0, 255, (16, 16, 1), np.uint8), "action_space": spaces.Discrete(4)}
    dataset = write(tmp_path / "d.zarr", [episode], settings)
    assert dataset.arrays["observations"].dtype == np.uint8
    assert dataset.arrays["actions"].dtype == np.int64
    again = dataset.episode(0)
    np.testing.assert_array_equal(again.observations, frames)
    np.testing.assert_array_equal(again.actions, episode.actions)
    np.testing.assert_array_equal(zarr.open_group(dataset.path, mode="r")["data/observations"][:], frames)


def damaged(episode, field, step, value):
    column = np.array(getattr(episode, field))
    column[step] = value
    return replace(episode, **{field: column})


@pytest.mark.parametrize(
    ("field", "step", "value", "message"),
    [
        ("observations", 0, np.nan, r"episode 2, step 0: observations\[0\]: got nan; allowed: finite numbers"),
        ("rewards", 0, np.inf, r"episode 2, step 0: rewards: got inf; allowed: finite numbers"),
        ("actions", 0, 2.5, r"episode 2, step 0: actions\[0\]: got 2.5; allowed: Box\(-2.0, 2.0, \(1,\), float32\)"),
    ],
)
def test_bad_values_name_their_place_and_leave_nothing(
    tmp_path, make_episodes, settings_of_pendulum, field, step, value, message
):
    episodes = list(make_episodes())
    episodes[2] = damaged(episodes[2], field, step, value)
    with pytest.raises(InvalidDataError, match=message) as caught:
        write(tmp_path / "d.zarr", episodes, settings_of_pendulum, shard_rows=16)
    assert "\n" not in str(caught.value)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("action_space", "actions", "message"),
    [
        (spaces.Discrete(2), np.array([0, 2]), "step 1: actions: got 2; allowed: Discrete"),
        (spaces.Discrete(2), np.array([0.0, 0.5]), "step 1: actions: got 0.5; allowed: values that int64 can hold"),
        (spaces.Discrete(2), np.array([[0], [1]]), r"actions: got int64 of shape \(1,\); allowed: int64 of shape \(\)"),
        (spaces.MultiDiscrete([2, 3]), np.array([[0, 2], [1, 3]]), r"step 1: actions\[1\]: got 3"),
        (spaces.MultiBinary(2), np.array([[0, 1], [1, 2]]), r"step 1: actions\[1\]: got 2"),
        (spaces.Box(0, 9, (1,), np.uint8), np.array([[1], [300]]), r"got 300; allowed: values that uint8 can hold"),
    ],
)
def test_actions_outside_their_space(tmp_path, action_space, actions, message):
    flags = np.zeros(2, bool)
    episode = Episode(np.zeros((3, 1), np.float32), actions, np.zeros(2), flags, flags)
    settings = {"observation_space": spaces.Box(-1, 1, (1,)), "action_space": action_space}
    with pytest.raises(InvalidDataError, match=message):
        write(tmp_path / "d.zarr", [episode], settings)


def test_actions_at_the_bound_but_for_rounding_pass(tmp_path, make_episodes, settings_of_pendulum):
    episode = damaged(next(make_episodes()), "actions", 0, np.nextafter(np.float32(2), np.float32(3)))
    assert write(tmp_path / "d.zarr", [episode], settings_of_pendulum).num_episodes == 1


def test_float_width_of_the_data_is_kept(tmp_path, make_episodes):
    settings = {
        "observation_space": spaces.Box(-np.inf, np.inf, (3,), np.float64),
        "action_space": spaces.Box(-2, 2, (1,), np.float32),
    }
    first = next(make_episodes())
    narrow = write(tmp_path / "n.zarr", [first], settings)
    assert narrow.arrays["observations"].dtype == np.float32
    wide = replace(first, observations=first.observations.astype(np.float64))
    assert write(tmp_path / "w.zarr", [wide], settings).arrays["observations"].dtype == np.float64


def test_other_infos_than_the_first_episode(tmp_path, make_episodes, settings_of_pendulum):
    first, second = make_episodes(2)
    with pytest.raises(InvalidDataError, match=r"episode 1: got fields .*; allowed: those of the first episode"):
        write(tmp_path / "d.zarr", [first, replace(second, infos={})], settings_of_pendulum)


@pytest.mark.parametrize("info", [np.ones(3, np.longdouble), np.ones((3, 0)), np.array(["a", "b", "c"])])
def test_an_info_that_no_array_can_hold(tmp_path, settings_of_pendulum, info):
    flags = np.zeros(3, bool)
    episode = Episode(np.zeros((4, 3)), np.zeros((3, 1)), np.zeros(3), flags, flags, infos={"x": info})
    with pytest.raises(InvalidDataError, match=r"infos/x: got .*; allowed: numbers of at most 64 bits"):
        write(tmp_path / "d.zarr", [episode], settings_of_pendulum)
    assert leftovers(tmp_path) == []


def test_actions_with_a_start_and_bounds_at_the_end_of_their_type(tmp_path):
    flags, most = np.zeros(3, bool), np.finfo(np.float32).max
    for name, space, actions in (
        ("a", spaces.Discrete(3, start=-1), np.array([-1, 0, 1])),
        ("b", spaces.Box(-most, most, (1,), np.float32), np.full((3, 1), most)),
    ):
        settings = {"observation_space": spaces.Box(-1, 1, (1,)), "action_space": space}
        episode = Episode(np.zeros((4, 1), np.float32), actions, np.zeros(3), flags, flags)
        dataset = write(tmp_path / f"{name}.zarr", [episode], settings)
        np.testing.assert_array_equal(dataset.episode(0).actions, actions)


def test_no_episode_is_no_dataset(tmp_path, settings_of_pendulum):
    with pytest.raises(InvalidDataError, match="got 0 episodes; allowed: at least 1"):
        write(tmp_path / "d.zarr", [], settings_of_pendulum)
    assert leftovers(tmp_path) == []


def test_wrong_settings_come_before_any_work(tmp_path, settings_of_pendulum):
    with pytest.raises(ConfigError, match="a power of two"):
        DatasetWriter(tmp_path / "d.zarr", **settings_of_pendulum, shard_rows=100)
    with pytest.raises(DatasetError, match=r"dataset nonsense://bucket/d.zarr: .*Protocol not known"):
        DatasetWriter("nonsense://bucket/d.zarr", **settings_of_pendulum)
    with pytest.raises(DatasetError, match="provenance"):
        DatasetWriter(tmp_path / "d.zarr", **settings_of_pendulum, provenance={"x": np.nan})
    text = {**settings_of_pendulum, "observation_space": spaces.Dict(a=spaces.Text(2))}
    with pytest.raises(DatasetError, match=r"observation_space/a: got Text.*encode it as numbers"):
        DatasetWriter(tmp_path / "d.zarr", **text)
    empty = {**settings_of_pendulum, "observation_space": spaces.Box(0, 1, (0,))}
    with pytest.raises(DatasetError, match="at least one number"):
        DatasetWriter(tmp_path / "d.zarr", **empty)
    with pytest.raises(DatasetError, match="got ref_min_score: Input should be a finite number") as caught:
        DatasetWriter(tmp_path / "d.zarr", **settings_of_pendulum, ref_scores=(np.nan, 1.0))
    assert "\n" not in str(caught.value)
    assert leftovers(tmp_path) == []


def test_an_existing_path_is_refused_before_any_work(dataset, settings_of_pendulum, tmp_path):
    with pytest.raises(DatasetError, match=r"got a path that exists already; .*overwrite=True"):
        DatasetWriter(dataset.path, **settings_of_pendulum)
    assert leftovers(tmp_path) == ["data.zarr"]


def test_overwrite_replaces_a_dataset_and_nothing_else(dataset, make_episodes, settings_of_pendulum, tmp_path):
    before = dataset.content_hash
    after = write(dataset.path, make_episodes(seed=5), settings_of_pendulum, overwrite=True)
    assert after.content_hash != before
    assert leftovers(tmp_path) == ["data.zarr"]
    precious = tmp_path / "home"
    precious.mkdir()
    (precious / "letter").write_text("dear")
    with pytest.raises(DatasetError, match=r"no dask-rl dataset; .*nothing was removed"):
        DatasetWriter(precious, **settings_of_pendulum, overwrite=True)
    assert (precious / "letter").read_text() == "dear"


def test_an_overwriting_that_died_between_its_renames_is_undone(dataset, settings_of_pendulum, tmp_path):
    partial = tmp_path / ".data.zarr.partial"
    partial.mkdir()
    shutil.move(dataset.path, partial / "old")
    with pytest.raises(DatasetError, match="exists already"):
        DatasetWriter(dataset.path, **settings_of_pendulum)
    assert OfflineDataset.open(dataset.path).content_hash == dataset.content_hash
    assert leftovers(tmp_path) == ["data.zarr"]


def test_a_real_dataset_read_back_equal(sample_data, tmp_path):
    with zarr.open_group(sample_data / "zarr_v2/pusht_cchi_v7_replay.zarr", mode="r").store as store:
        group = zarr.open_group(store, mode="r")
        state, action, ends = group["data/state"][:], group["data/action"][:], group["meta/episode_ends"][:]
    settings = {
        "observation_space": spaces.Box(-np.inf, np.inf, state.shape[1:], np.float32),
        "action_space": spaces.Box(-np.inf, np.inf, action.shape[1:], np.float32),
    }
    with DatasetWriter(tmp_path / "d.zarr", **settings, shard_rows=4096) as writer:
        for start, stop in zip([0, *ends[:-1]], ends, strict=True):
            flags = np.zeros(stop - start - 1, bool)
            columns = action[start : stop - 1], flags.astype(np.float32), flags, flags
            writer.add_episode(Episode(state[start:stop], *columns))
    dataset = OfflineDataset.open(tmp_path / "d.zarr")
    assert (dataset.num_episodes, dataset.num_rows) == (206, 25_650)
    np.testing.assert_array_equal(dataset.read("observations", 0, dataset.num_rows), state.astype(np.float32))


def test_the_content_hash_depends_on_every_value(tmp_path, make_episodes, settings_of_pendulum):
    # A CRC of a shard file would not do: a chunk with its own CRC behind it has the same one whatever it holds.
    (episode, *_) = make_episodes(1)
    hashes = set()
    for reward in (0.0, 1.0):
        rewards = episode.rewards.copy()
        rewards[1] = reward
        path = tmp_path / f"{reward}.zarr"
        hashes.add(write(path, [replace(episode, rewards=rewards)], settings_of_pendulum).content_hash)
    assert len(hashes) == 2
