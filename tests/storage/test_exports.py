"""What is exported opens in the library that the format belongs to, and comes back as the same episodes."""

import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import minari
import numpy as np
import pytest
import zarr
from gymnasium import spaces

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.episode import Episode
from dask_rl.storage.errors import ConfigError, DatasetError
from dask_rl.storage.exports import EXPORTERS, export_dataset
from dask_rl.storage.formats import import_dataset
from dask_rl.storage.nested import flatten
from dask_rl.storage.writer import DatasetWriter

pytestmark = pytest.mark.data

MINARI = ("minari", "minari-arrow", "minari-parquet")
SPACE = spaces.Dict(
    pose=spaces.Tuple((spaces.Box(-np.inf, np.inf, (2, 3), np.float64), spaces.Discrete(5))),
    camera=spaces.Box(0, 255, (32, 40, 3), np.uint8),
    grid=spaces.MultiDiscrete([3, 4]),
)
ACTIONS = spaces.Dict(move=spaces.Box(-1, 1, (2,), np.float32), grip=spaces.MultiBinary(2))


def nested_episodes() -> Iterator[Episode]:
    rng = np.random.default_rng(0)
    for number, length in enumerate((4, 1, 3)):
        rows, last = length + 1, np.arange(length) == length - 1
        yield Episode(
            observations={
                "pose": {"0": rng.normal(size=(rows, 2, 3)), "1": rng.integers(0, 5, rows)},
                "camera": rng.integers(0, 256, (rows, 32, 40, 3), np.uint8),
                "grid": rng.integers(0, 3, (rows, 2)),
            },
            actions={
                "move": rng.uniform(-1, 1, (length, 2)).astype(np.float32),
                "grip": rng.integers(0, 2, (length, 2), np.int8),
            },
            rewards=rng.normal(size=length),
            terminations=last & (number % 2 == 0),
            truncations=last & (number % 2 == 1),
            infos={"behavior_logp": rng.normal(size=length), "box.size": rng.normal(size=(length, 2))},
            has_final_observation=number < 2,
            id=10 * number,
            seed=number or None,
        )


@pytest.fixture
def nested(tmp_path: Path) -> OfflineDataset:
    with DatasetWriter(tmp_path / "nested.zarr", observation_space=SPACE, action_space=ACTIONS) as writer:
        writer.add_episodes(nested_episodes())
    return OfflineDataset.open(tmp_path / "nested.zarr")


def columns(episode: Episode) -> dict[str, Any]:
    infos = {f"infos/{name}": column for name, column in episode.infos.items()}
    flags = {name: getattr(episode, name) for name in ("rewards", "terminations", "truncations")}
    return flatten("observations", episode.observations) | flatten("actions", episode.actions) | infos | flags


def assert_same(left: OfflineDataset, right: OfflineDataset, without: tuple[str, ...] = ()) -> None:
    for got, wanted in zip(left.episodes(), right.episodes(), strict=True):
        for name, column in columns(wanted).items():
            if name not in without:
                np.testing.assert_array_equal(columns(got)[name], column, err_msg=name)
                assert columns(got)[name].dtype == column.dtype
        assert "id" in without or (got.id, got.seed) == (wanted.id, wanted.seed)
        assert "final" in without or got.has_final_observation == wanted.has_final_observation


def as_plain(value: Any) -> Any:
    """Tuples of Minari as mappings by number."""
    if isinstance(value, tuple):
        return {str(number): as_plain(part) for number, part in enumerate(value)}
    return {key: as_plain(part) for key, part in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("name", MINARI)
def test_minari_itself_opens_what_is_exported_and_iterates_the_same(
    name: str, nested: OfflineDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    dest = tmp_path / "root/ns/grip-v3"
    summary = export_dataset(nested, dest, format=name, progress=lambda *counts: seen.append(counts))
    assert (summary.num_steps, summary.num_episodes, seen[-1]) == (8, 3, (3, 3))
    assert "1 episodes have no final observation" in summary.lost[0]
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))
    opened = minari.MinariDataset(dest / "data")
    assert (opened.total_steps, opened.total_episodes, opened.id) == (8, 3, "grip-v3")
    assert (opened.observation_space, opened.action_space) == (SPACE, ACTIONS)
    for got, wanted in zip(opened.iterate_episodes(), nested.episodes(), strict=True):
        observations = flatten("observations", as_plain(got.observations))
        for path, column in {**observations, **flatten("actions", got.actions)}.items():
            np.testing.assert_array_equal(column, columns(wanted)[path])
        np.testing.assert_array_equal(got.rewards, wanted.rewards)
        assert got.terminations.tolist() == wanted.terminations.tolist()
        assert got.truncations.tolist() == wanted.truncations.tolist()
        np.testing.assert_array_equal(got.infos["box.size"][1:], wanted.infos["box.size"])


@pytest.mark.parametrize("name", MINARI)
def test_minari_comes_back_as_it_was(name: str, nested: OfflineDataset, tmp_path: Path) -> None:
    export_dataset(nested.path, tmp_path / "grip-v0", format=name)
    import_dataset(tmp_path / "grip-v0", tmp_path / "again.zarr")
    with OfflineDataset.open(tmp_path / "again.zarr") as again:
        assert (again.observation_space, again.action_space) == (SPACE, ACTIONS)
        assert_same(again, nested)


@pytest.mark.parametrize("suffix", [".zarr", ".zarr.zip"])
def test_replay_buffers_come_back_without_what_they_have_no_place_for(
    suffix: str, dataset: OfflineDataset, tmp_path: Path
) -> None:
    dest = tmp_path / f"buffer{suffix}"
    summary = export_dataset(dataset, dest, format="zarr-v2")
    assert [line.split(maxsplit=1) for line in summary.lost[:2]] == [
        ["12", "final observations"],
        ["6", "terminations: all episodes look alike"],
    ]
    assert summary.lost[2:4] == ("the infos infos/behavior_logp", "8 seeds")
    import_dataset(dest, tmp_path / "again.zarr")
    with OfflineDataset.open(tmp_path / "again.zarr") as again:
        cut = [
            replace(
                episode,
                observations=episode.observations[[*range(len(episode)), -2]],
                terminations=episode.truncations & False,
                truncations=episode.truncations | episode.terminations,
                infos={},
                has_final_observation=False,
            )
            for episode in dataset.episodes()
        ]
        for got, wanted in zip(again.episodes(), cut, strict=True):
            for name, column in columns(wanted).items():
                np.testing.assert_array_equal(columns(got)[name], column, err_msg=name)
            assert not got.has_final_observation


def test_zarr_reads_the_buffer_by_names_of_the_field(dataset: OfflineDataset, tmp_path: Path) -> None:
    export_dataset(dataset, tmp_path / "buffer.zarr", format="zarr-v2")
    group = zarr.open_group(tmp_path / "buffer.zarr", mode="r", zarr_format=2)
    ends = group["meta/episode_ends"][:]
    np.testing.assert_array_equal(ends, np.cumsum(dataset.episode_lengths))
    np.testing.assert_array_equal(group["data/action"][: ends[0]], dataset.episode(0).actions)
    assert group["data/obs"].shape == (dataset.num_steps, 3)


@pytest.mark.parametrize("name", EXPORTERS)
def test_an_export_is_there_complete_or_not_at_all(
    name: str, dataset: OfflineDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dest = tmp_path / "out/x-v0"
    real = OfflineDataset.read

    def fail(self: OfflineDataset, field: str, start: int, stop: int, out: Any = None) -> Any:
        if field == "actions" and stop >= 100:
            raise OSError(28, "No space left on device")
        return real(self, field, start, stop, out)

    monkeypatch.setattr(OfflineDataset, "read", fail)
    with pytest.raises(DatasetError, match=r"x-v0: got No space left"):
        export_dataset(dataset, dest, format=name)
    assert list(dest.parent.iterdir()) == []
    monkeypatch.undo()
    export_dataset(dataset, dest, format=name)
    with pytest.raises(DatasetError, match="got a path that exists already"):
        export_dataset(dataset, dest, format=name)
    export_dataset(dataset, dest, format=name, overwrite=True)
    assert [path.name for path in dest.parent.iterdir()] == ["x-v0"]


@pytest.mark.parametrize("one_step", [True, False])
def test_an_export_takes_the_place_of_the_one_before_in_one_step_where_there_is_one(
    one_step: bool, dataset: OfflineDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dest = tmp_path / "exports/x-v0"
    export_dataset(dataset, dest, format="minari")
    (dest / "data/left.txt").touch()
    if one_step:
        monkeypatch.setattr("os.rename", None)  # whoever dies between two of these leaves nothing at the path
    else:
        monkeypatch.setattr("dask_rl.storage.exports.driver.exchange", lambda one, other: False)
    export_dataset(dataset, dest, format="minari", overwrite=True)
    assert not (dest / "data/left.txt").exists()
    assert [path.name for path in dest.parent.iterdir()] == ["x-v0"]


@pytest.mark.parametrize("name", EXPORTERS)
@pytest.mark.parametrize("suffix", ["", ".zip"])
def test_overwriting_takes_nothing_but_an_export(
    name: str, suffix: str, dataset: OfflineDataset, tmp_path: Path
) -> None:
    places = [tmp_path / f"{place}{suffix}" for place in ("home", "text", "link", "zip")]
    (places[0] / "data").mkdir(parents=True)
    (places[0] / "data/metadata.json").write_text("{}")
    (places[0] / "thesis.txt").write_text("x")
    places[1].write_text("x")
    places[2].symlink_to(places[0])
    with zipfile.ZipFile(places[3], "w") as archive:
        archive.writestr("thesis.txt", "x")
    for place in places:
        with pytest.raises(DatasetError, match=f"got something that is no export of format {name}; .*nothing was rem"):
            export_dataset(dataset, place, format=name, overwrite=True)
    assert (places[0] / "thesis.txt").read_text() == places[1].read_text() == "x"


@pytest.mark.parametrize("by_link", [False, True])
def test_an_export_never_replaces_its_source(by_link: bool, dataset: OfflineDataset, tmp_path: Path) -> None:
    source = Path(dataset.path)
    if by_link:
        (tmp_path / "link").symlink_to(source.parent)
        source = tmp_path / "link" / source.name
    for place in (source, source.parent, source / "deeper/x-v0"):
        for given in (dataset, str(source), f"file://{source}"):
            with pytest.raises(ConfigError, match="got the place of the source"):
                export_dataset(given, place, format="minari", overwrite=True)
    dataset.verify(deep=True)


def test_what_a_format_has_no_place_for_is_refused_before_any_work(nested: OfflineDataset, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="got nested actions"):
        export_dataset(nested, tmp_path / "x.zarr", format="zarr-v2")
    with pytest.raises(ConfigError, match="format: got 'csv'; allowed: minari, minari-arrow"):
        export_dataset(nested, tmp_path / "x", format="csv")
    assert [path.name for path in tmp_path.iterdir()] == ["nested.zarr"]


def test_segments_are_exported_too(dataset: OfflineDataset, tmp_path: Path) -> None:
    with DatasetWriter(dataset.path, **SETTINGS, append=True) as writer:
        writer.add_episodes(replace(episode, id=900 + number) for number, episode in enumerate(dataset.episodes(0, 3)))
    with OfflineDataset.open(dataset.path) as appended:
        assert appended.num_episodes == 15
        export_dataset(appended, tmp_path / "all-v0", format="minari")
        import_dataset(tmp_path / "all-v0", tmp_path / "again.zarr")
        with OfflineDataset.open(tmp_path / "again.zarr") as again:
            assert_same(again, appended)
        export_dataset(appended, tmp_path / "all.zarr", format="zarr-v2")
        group = zarr.open_group(tmp_path / "all.zarr", mode="r", zarr_format=2)
        rewards = np.concatenate([episode.rewards for episode in appended.episodes()])
        np.testing.assert_array_equal(group["data/reward"][:], rewards)


# (source, figures, formats): every real file, and what it can be exported to without a loss
SETTINGS = {
    "observation_space": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "action_space": spaces.Box(-2, 2, (1,), np.float32),
}
REAL = [
    ("minari/D4RL/door/human-v2", (6729, 25, 0, 25), MINARI),
    ("rllib/cartpole/cartpole-v1_large", (4137, 21, 21, 0), MINARI),
    ("rllib/cartpole/large.json", (4137, 21, 21, 0), ("minari-arrow",)),
    ("rllib/cartpole/small.json", (102, 3, 3, 0), ("minari-parquet",)),
    ("rllib/pendulum/pendulum-v1_enormous", (16_231, 82, 0, 82), ("minari",)),
    ("rllib/pendulum/small.json", (40, 1, 0, 1), ("minari",)),
    pytest.param("d3rlpy/cartpole_v1.1.0.h5", (99_866, 1582, 1448, 134), ("minari",), marks=pytest.mark.storm),
    ("d3rlpy/pendulum_v1.1.0.h5", (99_500, 500, 0, 500), ("zarr-v2",)),
    ("zarr_v2/pusht_cchi_v7_replay.zarr", (25_650, 206, 0, 206), ("zarr-v2", "minari")),
]


@pytest.mark.parametrize(("source", "figures", "formats"), REAL)
def test_real_files_come_back(
    source: str, figures: tuple[int, ...], formats: tuple[str, ...], sample_data: Path, tmp_path: Path
) -> None:
    summary = import_dataset(sample_data / source, tmp_path / "d.zarr")
    assert (summary.num_steps, summary.num_episodes, summary.num_terminated, summary.num_truncated) == figures
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset:
        for name in formats:
            dest = tmp_path / name / "real-v0"
            export_dataset(dataset, dest, format=name)
            import_dataset(dest, tmp_path / f"{name}.zarr")
            with OfflineDataset.open(tmp_path / f"{name}.zarr") as again:
                assert_same(again, dataset)
            if name in MINARI:
                opened = minari.MinariDataset(dest / "data")
                assert (opened.total_steps, opened.total_episodes) == figures[:2]
