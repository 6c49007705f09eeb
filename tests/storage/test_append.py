"""Appending: a dataset that grows by segments, read as one; and generations that are whole, whatever happens."""

import hashlib
import json
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import zarr
from gymnasium import spaces
from random_episodes import generate
from supplies import RandomSupply, run_as_if_elsewhere

from dask_rl.storage import (
    ConfigError,
    CorruptDataError,
    DatasetError,
    DatasetNotFoundError,
    DatasetWriter,
    InvalidDataError,
    OfflineDataset,
    column_statistics,
)

pytestmark = pytest.mark.data

SUPPORT = Path(__file__).parents[1] / "support"
SEEDS = (1, 2, 3)
PROGRAM = """
import sys, numpy as np
sys.path.insert(0, sys.argv[2])
from random_episodes import generate
from dask_rl.storage import DatasetError, DatasetWriter
try:
    with DatasetWriter(sys.argv[1], append=True, shard_rows=16) as writer:
        writer.add_episodes(generate(40, seed=int(sys.argv[3])))
except DatasetError as error:
    print(error)
    sys.exit(1)
"""


def command(path, seed=1):
    return [sys.executable, "-c", PROGRAM, str(path), str(SUPPORT), str(seed)]


def append(path, seed, num_episodes=12, shard_rows=32):
    with DatasetWriter(path, append=True, shard_rows=shard_rows) as writer:
        writer.add_episodes(generate(num_episodes, seed=seed))
        return writer.finish()


@pytest.fixture
def grown(dataset):
    for seed in SEEDS:
        append(dataset.path, seed)
    return OfflineDataset.open(dataset.path)


def all_episodes():
    return [episode for seed in (0, *SEEDS) for episode in generate(seed=seed)]


def same(a, b):
    for field in ("observations", "actions", "rewards", "terminations", "truncations"):
        np.testing.assert_array_equal(getattr(a, field), getattr(b, field))
    np.testing.assert_array_equal(a.infos["behavior_logp"], b.infos["behavior_logp"])
    assert (a.id, a.seed, a.has_final_observation) == (b.id, b.seed, b.has_final_observation)


def test_it_reads_as_one_dataset(grown, tmp_path, settings_of_pendulum):
    """Every way of reading gives what a dataset that was written at once gives."""
    with DatasetWriter(tmp_path / "whole.zarr", **settings_of_pendulum, shard_rows=64) as writer:
        writer.add_episodes(all_episodes())
        whole = writer.finish()
    assert (grown.num_episodes, grown.num_steps, grown.num_rows) == (48, whole.num_steps, whole.num_rows)
    np.testing.assert_array_equal(grown.episode_ends, whole.episode_ends)
    np.testing.assert_array_equal(grown.episode_ids, whole.episode_ids)
    np.testing.assert_array_equal(grown.episode_seeds, whole.episode_seeds)
    np.testing.assert_array_equal(grown.has_final_observation, whole.has_final_observation)
    np.testing.assert_array_equal(grown.episode_returns(), whole.episode_returns())
    np.testing.assert_array_equal(grown.episode_terminations, whole.episode_terminations)
    np.testing.assert_array_equal(grown.episode_truncations, whole.episode_truncations)
    rng = np.random.default_rng(0)
    for field in whole.arrays:
        rows = whole.read(field, 0, whole.num_rows)
        np.testing.assert_array_equal(grown.to_dask(field).compute(), rows)
        np.testing.assert_array_equal(grown.to_dask(field, block_rows=16).compute(), rows)
        for start, stop in np.sort(rng.integers(0, whole.num_rows + 1, (30, 2)), axis=1):
            np.testing.assert_array_equal(grown.read(field, start, stop), rows[start:stop])
    for start, stop in np.sort(rng.integers(0, whole.num_rows + 1, (30, 2)), axis=1):
        np.testing.assert_array_equal(grown.step_mask(start, stop), whole.step_mask(start, stop))
    for found, wanted in zip(grown.episodes(), all_episodes(), strict=True):
        same(found, wanted)
    found, wanted = column_statistics(grown, "observations"), column_statistics(whole, "observations")
    np.testing.assert_allclose(found.mean, wanted.mean)
    assert found.count == wanted.count
    grown.verify(deep=True)


def test_what_it_says_of_itself(grown, dataset):
    facts = grown.describe()
    assert (facts["generation"], dataset.describe()["generation"]) == (4, 1)
    assert facts["num_episodes"] == 48
    assert facts["num_terminated"] + facts["num_truncated"] == 48
    assert facts["content_hash"] != dataset.content_hash
    assert len(facts["provenance"]["appended"]) == 3
    numbers = [part.first_row for part in grown.contents.commit.parts]
    assert numbers == sorted(numbers)
    assert all(isinstance(layout.first_row, int) for part in grown.contents.parts for layout in part.layouts.values())


def test_blocks_lie_in_one_segment_each(grown):
    edges = {part.first_row for part in grown.contents.commit.parts} - {0}
    starts = {start for start, _ in grown.block_ranges(32)}
    assert edges <= starts
    assert sum(grown.to_dask("rewards", block_rows=32).chunks[0]) == grown.num_rows


def test_the_same_appendings_give_the_same_hash(tmp_path, make_episodes, settings_of_pendulum):
    def build(name, seeds):
        with DatasetWriter(tmp_path / name, **settings_of_pendulum) as writer:
            writer.add_episodes(make_episodes())
        for seed in seeds:
            append(tmp_path / name, seed)
        return OfflineDataset.open(tmp_path / name).content_hash

    assert build("a.zarr", (1, 2)) == build("b.zarr", (1, 2))
    assert build("c.zarr", (2, 1)) != build("d.zarr", (1, 2))


def test_earlier_generations_stay_as_they_were(grown, dataset):
    before = OfflineDataset.open(dataset.path, content_hash=dataset.content_hash)
    assert (before.generation, before.content_hash) == (1, dataset.content_hash)
    assert before.describe() == dataset.describe()
    for found, wanted in zip(before.episodes(), generate(), strict=True):
        same(found, wanted)
    assert OfflineDataset.open(grown.path, content_hash=grown.content_hash).generation == 4
    with pytest.raises(DatasetError, match=r"got content hash .*; allowed: abc"):
        OfflineDataset.open(grown.path, content_hash="abc")


def test_who_has_it_open_goes_on_reading(dataset):
    first = dataset.read("observations", 0, 10)
    travelled = pickle.loads(pickle.dumps(dataset))  # noqa: S301
    append(dataset.path, 1)
    np.testing.assert_array_equal(dataset.read("observations", 0, 10), first)
    dataset.read("rewards", 0, dataset.num_rows)  # a file that was not open before
    dataset.close()
    np.testing.assert_array_equal(dataset.read("observations", 0, 10), first)
    assert travelled.read("rewards", 0, travelled.num_rows).shape == (dataset.num_rows,)
    dataset.verify(deep=True)
    assert dataset.num_episodes == 12


def test_zarr_python_sees_each_segment(grown):
    group = zarr.open_group(grown.path, mode="r")
    first, second = grown.contents.commit.parts[:2]
    np.testing.assert_array_equal(group["data/rewards"][:], grown.read("rewards", 0, first.num_rows))
    rows = grown.read("rewards", second.first_row, second.first_row + second.num_rows)
    np.testing.assert_array_equal(zarr.open_group(grown.path, path="segments/0001", mode="r")["data/rewards"][:], rows)


def test_by_tasks_as_by_a_stream(tmp_path, settings_of_pendulum):
    supply = RandomSupply(tuple(range(1, 20)))
    for name in ("stream.zarr", "tasks.zarr"):
        with DatasetWriter(tmp_path / name, **settings_of_pendulum) as writer:
            writer.add_episodes(generate())
    with DatasetWriter(tmp_path / "stream.zarr", append=True, shard_rows=32) as writer:
        writer.add_episodes(supply.kept())
        wanted = writer.finish()
    with DatasetWriter(tmp_path / "tasks.zarr", append=True, shard_rows=32) as writer:
        writer.add_supply(supply, supply.survey(), run_as_if_elsewhere)
        found = writer.finish()
    assert found.content_hash == wanted.content_hash
    assert found.episode_ids[12] == 12  # it had no id of its own
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["stream.zarr", "tasks.zarr"]


def test_what_does_not_fit_is_refused_and_leaves_nothing(dataset, tmp_path, settings_of_pendulum):
    before = dataset.content_hash
    other = spaces.Box(-3, 3, (1,), np.float32)
    with pytest.raises(ConfigError, match=r"action_space: got Box\(-3.0.*; allowed: Box\(-2.0.*as in the dataset"):
        DatasetWriter(dataset.path, append=True, action_space=other)
    with pytest.raises(ConfigError, match="environment: got Pendulum-v1; allowed: None, as in"):
        DatasetWriter(dataset.path, append=True, environment="Pendulum-v1")
    with pytest.raises(ConfigError, match="append and overwrite"):
        DatasetWriter(dataset.path, append=True, overwrite=True)
    with pytest.raises(DatasetNotFoundError):
        DatasetWriter(tmp_path / "nothing.zarr", append=True)
    with pytest.raises(ConfigError, match="observation_space: got none"):
        DatasetWriter(tmp_path / "new.zarr")
    for wrong, message in (
        (generate(2, shape=(4,)), "observations"),
        ([next(generate(1)).part(0, 1).__class__(**{**vars(next(generate(1))), "infos": {}})], "fields"),
    ):
        with pytest.raises(InvalidDataError, match=message), DatasetWriter(dataset.path, append=True) as writer:
            writer.add_episodes(wrong)
    with pytest.raises(InvalidDataError, match="0 episodes"), DatasetWriter(dataset.path, append=True):
        pass
    assert OfflineDataset.open(dataset.path).content_hash == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["data.zarr"]
    assert not Path(dataset.path, "segments").exists()


def test_one_of_two_that_append_at_once_wins(dataset):
    with DatasetWriter(dataset.path, append=True) as first:
        first.add_episodes(generate(3, seed=1))
        with pytest.raises(DatasetError, match="got another process that writes it now"):
            DatasetWriter(dataset.path, append=True)
        with pytest.raises(DatasetError, match="got another process that writes it now"):
            DatasetWriter(
                dataset.path,
                observation_space=dataset.observation_space,
                action_space=dataset.action_space,
                overwrite=True,
            )
    assert OfflineDataset.open(dataset.path).num_episodes == 15


def test_a_dataset_that_is_replaced_meanwhile_gets_no_segment(dataset, tmp_path, settings_of_pendulum):
    writer = DatasetWriter(dataset.path, append=True)
    writer.add_episodes(generate(3, seed=1))
    with DatasetWriter(tmp_path / "other.zarr", **settings_of_pendulum) as other:
        other.add_episodes(generate(5, seed=9))
    os.rename(dataset.path, tmp_path / "away.zarr")
    os.rename(tmp_path / "other.zarr", dataset.path)
    with pytest.raises(DatasetError, match="another manifest than when the appending began"):
        writer.finish()
    assert OfflineDataset.open(dataset.path).num_episodes == 5


class Crash(BaseException):
    pass


@pytest.mark.parametrize(
    "place", ["append.make_directory", "append.os.rename", "append.fsync_path", "append.BuildDirectory.abort"]
)
def test_a_crash_while_committing_leaves_the_old_or_the_new_and_the_same_again_doubles_nothing(dataset, place):
    before = dataset.content_hash
    with mock.patch(f"dask_rl.storage.building.{place}", side_effect=Crash), pytest.raises(Crash):
        append(dataset.path, 1)
    found = OfflineDataset.open(dataset.path)
    found.verify(deep=True)
    after = place == "append.BuildDirectory.abort"  # the last step was done
    assert (found.content_hash != before) == after
    again = append(dataset.path, 1)
    assert (again.generation, again.num_episodes) == (2, 24)
    again.verify(deep=True)
    assert append(dataset.path, 1).generation == 3  # asked for anew, it is appended anew
    assert not Path(dataset.path).with_name(".data.zarr.partial").exists()


def kill_at(path, condition):
    process = subprocess.Popen(command(path))
    while process.poll() is None and not condition():
        os.sched_yield()
    process.kill()
    return process.wait(60)


@pytest.mark.service
def test_kill_9_while_appending_leaves_the_old_or_the_new(dataset):
    path, partial = Path(dataset.path), Path(dataset.path).with_name(".data.zarr.partial")
    conditions = [
        lambda: (partial / "receipts/3.json").exists(),
        lambda: (partial / "store/zarr.json").exists(),
        lambda: (path / "segments").exists(),
    ]
    for condition in conditions:
        kill_at(path, condition)
        found = OfflineDataset.open(path)
        found.verify(deep=True)
        assert found.num_episodes in (12, 52)
    subprocess.run(command(path), check=True)
    found = OfflineDataset.open(path)
    found.verify(deep=True)
    assert found.num_episodes == 52
    wanted = [*generate(), *generate(40, seed=1)]
    for one, other in zip(found.episodes(), wanted, strict=True):
        same(one, other)


def test_opening_while_others_append(dataset):
    """Whoever opens it meanwhile gets one whole generation."""
    seen, stop, errors = [], threading.Event(), []

    def look():
        while not stop.is_set():
            try:
                with OfflineDataset.open(dataset.path) as opened:
                    seen.append((opened.generation, opened.num_episodes))
                    opened.read("rewards", opened.num_rows - 1, opened.num_rows)
            except DatasetError as error:
                errors.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    for seed in range(1, 6):
        append(dataset.path, seed, num_episodes=2)
    stop.set()
    thread.join(60)
    assert not errors
    assert set(seen) <= {(1 + n, 12 + 2 * n) for n in range(6)}
    assert seen == sorted(seen)


def recommit(root, edit):
    manifest = json.loads((root / "commit.json").read_text())
    edit(manifest)
    (root / "commit.json").write_text(json.dumps(manifest))


def test_damage_in_a_segment_is_named(grown):
    root, part = Path(grown.path), grown.contents.commit.parts[2]
    key = "segments/0002/data/rewards/c/1"
    status = (root / key).stat()
    content = bytearray((root / key).read_bytes())
    content[5] ^= 1
    (root / key).write_bytes(content)
    os.utime(root / key, ns=(status.st_atime_ns, status.st_mtime_ns))
    rows = f"rewards, rows {part.first_row + 32} to {part.first_row + 63}"
    with pytest.raises(CorruptDataError, match=rf"{key} in dataset .*\({rows}\): got checksum"):
        OfflineDataset.open(root).read("rewards", 0, grown.num_rows)
    with pytest.raises(CorruptDataError, match=key):
        OfflineDataset.open(root).verify(deep=True)
    os.truncate(root / key, 9)
    with pytest.raises(CorruptDataError, match=rf"{key} \({rows}\).*got 9 bytes"):
        OfflineDataset.open(root)
    (root / key).unlink()
    with pytest.raises(CorruptDataError, match=f"{key} .*got no such file"):
        OfflineDataset.open(root)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda m: m["segments"].pop(), "generation 4 of a dataset with 2 segments"),
        (lambda m: m.update(generation=2, segments=m["segments"][:1]), "rows"),
        (lambda m: m["segments"][0].update(num_rows=10**9), "segments have more rows"),
        (lambda m: m.update(generation=5, segments=[*m["segments"], m["segments"][0]]), "rows|entry"),
    ],
)
def test_a_manifest_that_tells_other_segments(grown, edit, message):
    recommit(Path(grown.path), edit)
    with pytest.raises(CorruptDataError, match=message):
        OfflineDataset.open(grown.path)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("data/actions/zarr.json", '"float32"', '"int32"', "other arrays of actions"),
        ("zarr.json", '"low": [-2.0]', '"low": [-3.0]', "another action_space"),
    ],
)
def test_a_segment_of_another_kind(grown, file, old, new, message):
    key = f"segments/0002/{file}"
    path = Path(grown.path, key)
    text = json.dumps(json.loads(path.read_text()))
    assert old in text
    path.write_text(text.replace(old, new))
    content = path.read_bytes()
    entry = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    recommit(Path(grown.path), lambda manifest: manifest["objects"].update({key: entry}))
    with pytest.raises(CorruptDataError, match=f"segments/0002/zarr.json in dataset .*got {message}"):
        OfflineDataset.open(grown.path)


def test_a_stray_file_in_a_segment(grown):
    Path(grown.path, "segments/0003/data/rewards/c/99").write_bytes(b"x")
    with pytest.raises(CorruptDataError, match="segments/0003/data/rewards/c/99"):
        OfflineDataset.open(grown.path).verify()


def test_what_a_dead_appending_left_is_nobodys(dataset):
    """Files of a segment that no manifest names are no fault; the next appending takes their place."""
    stray = Path(dataset.path, "segments/0001/data/rewards/c/0")
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"x")
    OfflineDataset.open(dataset.path).verify(deep=True)
    append(dataset.path, 1).verify(deep=True)
