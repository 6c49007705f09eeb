import copy
import json
import pickle
import subprocess
import sys
from dataclasses import replace

import dask
import fsspec
import numpy as np
import pytest

from dask_rl.storage import ConfigError, DatasetError, DatasetWriter, InvalidDataError, OfflineDataset


def assert_same_episode(a, b):
    for name in ("observations", "actions", "rewards", "terminations", "truncations"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    assert a.infos.keys() == b.infos.keys()
    for name in a.infos:
        np.testing.assert_array_equal(a.infos[name], b.infos[name], err_msg=name)
    assert (a.id, a.seed, a.has_final_observation) == (b.id, b.seed, b.has_final_observation)


def test_episodes_come_back_as_they_were(dataset, make_episodes):
    episodes = list(make_episodes())
    assert dataset.num_episodes == len(episodes)
    for got, wanted in zip(dataset.episodes(), episodes, strict=True):
        assert_same_episode(got, wanted)
    assert [episode.id for episode in dataset.episodes(3, 6)] == [103, 104, 105]
    with pytest.raises(ConfigError, match="episode: got 12; allowed: 0 to 11"):
        dataset.episode(12)


def test_facts(dataset, make_episodes):
    episodes = list(make_episodes())
    facts = json.loads(json.dumps(dataset.describe(), allow_nan=False))
    returns = [episode.return_ for episode in episodes]
    np.testing.assert_allclose(dataset.episode_returns(), returns, rtol=1e-12)
    assert facts["return_mean"] == pytest.approx(np.mean(returns))
    assert facts["return_min"] == pytest.approx(min(returns))
    assert facts["return_max"] == pytest.approx(max(returns))
    assert facts["num_steps"] == sum(len(episode) for episode in episodes) == dataset.num_steps
    assert facts["num_episodes"] == 12
    assert facts["num_terminated"] == facts["num_truncated"] == 6
    assert facts["observation_space"] == "Box(-inf, inf, (3,), float32)"
    assert facts["content_hash"] == dataset.content_hash
    assert len(facts["content_hash"]) == 64
    np.testing.assert_array_equal(dataset.episode_lengths, [len(episode) for episode in episodes])
    np.testing.assert_array_equal(dataset.episode_ids, [episode.id for episode in episodes])
    assert "num_steps=" in repr(dataset)
    assert "<th>num_steps</th>" in dataset._repr_html_()


def test_attributes_are_kept(tmp_path, make_episodes, settings_of_pendulum):
    with DatasetWriter(
        tmp_path / "d.zarr",
        **settings_of_pendulum,
        environment="Pendulum-v1",
        ref_scores=(-1200.0, -150.0),
        provenance={"source": "tests"},
    ) as writer:
        writer.add_episodes(make_episodes(2))
    dataset = OfflineDataset.open(f"file://{tmp_path}/d.zarr")
    assert dataset.environment == "Pendulum-v1"
    assert dataset.ref_scores == (-1200.0, -150.0)
    assert dataset.provenance == {"source": "tests"}
    assert dataset.action_space == settings_of_pendulum["action_space"]
    assert dataset.observation_space == settings_of_pendulum["observation_space"]


def test_steps_and_final_rows(dataset):
    mask = dataset.step_mask(0, dataset.num_rows)
    assert mask.sum() == dataset.num_steps
    np.testing.assert_array_equal(np.flatnonzero(~mask), dataset.episode_ends - 1)
    for start, stop in [(0, 1), (5, 60), (63, 65), (dataset.num_rows - 1, dataset.num_rows)]:
        np.testing.assert_array_equal(dataset.step_mask(start, stop), mask[start:stop])


def test_a_pickle_is_small_and_opens_files_of_its_own(dataset):
    dataset.episode(0)
    text = pickle.dumps(dataset)
    assert len(text) < 20_000
    again = copy.copy(dataset)  # by the same protocol
    assert not again._readers
    assert again.content_hash == dataset.content_hash
    assert_same_episode(again.episode(3), dataset.episode(3))
    program = (
        "import pickle, sys; d = pickle.load(sys.stdin.buffer);"
        "print(d.content_hash, repr(d.episode(3).return_), d.episode_returns().sum())"
    )
    result = subprocess.run([sys.executable, "-c", program], input=text, capture_output=True, check=True)
    wanted = f"{dataset.content_hash} {dataset.episode(3).return_!r} {dataset.episode_returns().sum()}\n"
    assert result.stdout.decode() == wanted


@pytest.mark.parametrize("block_rows", [None, 16, 128])
def test_to_dask_is_equal_and_aligned(dataset, block_rows):
    for field in dataset.arrays:
        array = dataset.to_dask(field, block_rows)
        rows = dataset.read(field, 0, dataset.num_rows)
        assert array.dtype == rows.dtype
        assert all(size == (block_rows or 64) for size in array.chunks[0][:-1])
        with dask.config.set(scheduler="threads"):
            np.testing.assert_array_equal(array.compute(), rows)
    assert dataset.to_dask("rewards").name == OfflineDataset.open(dataset.path).to_dask("rewards").name
    with pytest.raises(ConfigError, match="block_rows: got 48"):
        dataset.to_dask("rewards", 48)
    with pytest.raises(ConfigError, match="field: got 'x'"):
        dataset.to_dask("x")


def test_close_and_go_on(dataset):
    with dataset as opened:
        first = opened.read("rewards", 0, 10)
    np.testing.assert_array_equal(dataset.read("rewards", 0, 10), first)


def test_verify_reports_what_it_saw(dataset):
    report = dataset.verify(deep=True)
    assert report.deep
    assert report.num_rows == dataset.num_rows
    assert report.num_bytes == dataset.describe()["num_bytes"]
    assert not dataset.verify().deep


def test_a_url_reads_the_same(dataset):
    memory = fsspec.filesystem("memory")
    memory.put(dataset.path, "/bucket/data.zarr", recursive=True)
    remote = OfflineDataset.open("memory://bucket/data.zarr")
    assert remote.content_hash == dataset.content_hash
    for field in dataset.arrays:
        np.testing.assert_array_equal(remote.read(field, 3, 150), dataset.read(field, 3, 150))
    assert_same_episode(remote.episode(5), dataset.episode(5))
    remote.verify(deep=True)
    memory.rm("/bucket/data.zarr/data/rewards/c/1")
    with pytest.raises(DatasetError, match=r"data/rewards/c/1 \(rewards, rows 64 to 127\)"):
        OfflineDataset.open("memory://bucket/data.zarr")
    with pytest.raises(DatasetError, match="no such path"):
        OfflineDataset.open("memory://bucket/other.zarr")
    with pytest.raises(DatasetError, match=r"install the protocol's package .* or correct the URL"):
        OfflineDataset.open("nonsense://bucket/other.zarr")


def test_without_infos(tmp_path, make_episodes, settings_of_pendulum):
    with DatasetWriter(tmp_path / "d.zarr", **settings_of_pendulum) as writer:
        writer.add_episodes(replace(episode, infos={}) for episode in make_episodes(3))
        dataset = writer.finish()
    assert sorted(dataset.arrays) == ["actions", "observations", "rewards", "terminations", "truncations"]
    assert dataset.episode(1).infos == {}


@pytest.mark.parametrize("numbers", [{"id": 2**63}, {"seed": 2**63}, {"seed": -1}])
def test_ids_and_seeds_that_cannot_be_stored(make_episodes, numbers):
    with pytest.raises(InvalidDataError, match=f"{next(iter(numbers))}: got "):
        replace(next(make_episodes()), **numbers)
