"""What the library itself writes, with all that it can hold, and what newer versions of it write of infos."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces
from minari.data_collector.episode_buffer import EpisodeBuffer
from minari.dataset.minari_dataset import MinariDataset
from minari.dataset.minari_storage import MinariStorage
from PIL import Image, ImageFile

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import SourceFormatError
from dask_rl.storage.formats import import_dataset
from dask_rl.storage.formats.minari_images import decode_images

pytestmark = pytest.mark.data

LENGTHS = (3, 2)
SPACE = spaces.Dict(
    camera=spaces.Box(0, 255, (32, 36, 3), np.uint8),
    pose=spaces.Tuple((spaces.Box(-np.inf, np.inf, (2, 2), np.float32), spaces.Discrete(4))),
    mission=spaces.Text(20),
)
ACTION = spaces.Discrete(3)


def write(folder: Path, kind: str) -> Path:
    storage = MinariStorage.new(folder, SPACE, ACTION, data_format=kind)
    rng = np.random.default_rng(0)
    for number, length in enumerate(LENGTHS):
        rows, last = length + 1, np.arange(length) == length - 1
        observations = {
            "camera": rng.integers(0, 256, (rows, 32, 36, 3), np.uint8),
            "pose": (rng.normal(size=(rows, 2, 2)).astype(np.float32), np.arange(rows) % 4),
            "mission": [f"go {row}" for row in range(rows)],
        }
        buffer = EpisodeBuffer(
            id=number,
            seed=40 + number,
            observations=observations,
            actions=np.arange(length) % 3,
            rewards=np.arange(length) + 0.1,
            terminations=last & (number == 0),
            truncations=last & (number == 1),
            infos={
                "energy": [row + 0.5 for row in range(rows)],  # one array of numbers it cannot read back from Arrow
                "body": {"quat": rng.normal(size=(rows, 4))},
                "said": ["x"] * rows,
            },
        )
        storage.update_episodes([buffer])
    return folder


@pytest.mark.parametrize("kind", ["hdf5", "arrow", "parquet"])
def test_all_that_minari_writes(kind: str, tmp_path: Path) -> None:
    source = write(tmp_path / "data", kind)
    metadata = json.loads((source / "metadata.json").read_text()) | {"dataset_id": "a-v0", "minari_version": "0.5.4"}
    (source / "metadata.json").write_text(json.dumps(metadata))
    summary = import_dataset(tmp_path, tmp_path / "d.zarr")
    assert (summary.num_steps, summary.num_terminated, summary.num_truncated) == (5, 1, 1)
    assert summary.left_out == ("infos/said", "observations/mission")
    assert "JPEG, which is lossy" in summary.notes[0]
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset:
        assert list(dataset.observation_space) == ["camera", "pose"]
        assert dataset.action_space == ACTION
        for got, wanted in zip(dataset.episodes(), MinariDataset(source).iterate_episodes(), strict=True):
            np.testing.assert_array_equal(got.observations["camera"], wanted.observations["camera"])
            for number in (0, 1):
                np.testing.assert_array_equal(
                    got.observations["pose"][str(number)], wanted.observations["pose"][number]
                )
            np.testing.assert_array_equal(got.actions, wanted.actions)
            np.testing.assert_array_equal(got.rewards, wanted.rewards)
            np.testing.assert_array_equal(got.infos["energy"], np.arange(len(got)) + 1.5)  # not the reset's
            assert got.infos["body.quat"].shape == (len(got), 4)
        assert dataset.episode_seeds.tolist() == [40, 41]


INFOS = [{"tcp": {"x": [1, 2]}, "ok": False, "only_reset": 1}, {"tcp": {"x": [3, 4.5]}, "ok": True, "odd": None}] * 2


@pytest.mark.parametrize("kind", ["hdf5", "parquet"])
def test_infos_in_json(kind: str, tmp_path: Path) -> None:
    """As Minari's development version writes them: one object a row, T+1 rows."""
    source = write(tmp_path / "data", kind)
    shutil.rmtree(source / "1", ignore_errors=True)
    metadata = json.loads((source / "metadata.json").read_text()) | {"total_episodes": 1, "total_steps": 3}
    (source / "metadata.json").write_text(json.dumps(metadata))
    texts = [json.dumps(info) for info in INFOS]
    if kind == "hdf5":
        with h5py.File(source / "main_data.hdf5", "a") as file:
            del file["episode_1"], file["episode_0/infos"]
            file["episode_0"].create_dataset("infos", data=texts, dtype=h5py.string_dtype())
    else:
        path = source / "0/part-0.parquet"
        table = pq.ParquetFile(path).read()
        at = table.column_names.index("infos")
        pq.write_table(table.set_column(at, "infos", pyarrow.array(texts)), path)
    summary = import_dataset(tmp_path, tmp_path / "d.zarr")
    assert summary.left_out == ("infos/odd", "infos/only_reset", "observations/mission")
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset:
        infos = dataset.episode(0).infos
        assert infos["tcp.x"].tolist() == [[3, 4.5], [1, 2], [3, 4.5]]
        assert infos["ok"].tolist() == [True, False, True]
        assert infos["ok"].dtype == bool


@pytest.mark.parametrize("kind", ["hdf5", "arrow"])
def test_a_damaged_image_is_named(kind: str, tmp_path: Path) -> None:
    source = write(tmp_path / "data", kind)
    if kind == "hdf5":
        with h5py.File(source / "main_data.hdf5", "a") as file:
            frames: Any = file["episode_1/observations/camera"]
            frames[1] = frames[1] * 0
    else:
        path = source / "1/part-0.arrow"
        path.write_bytes(path.read_bytes().replace(b"\xff\xd8\xff", b"\x00\x00\x00"))
    with pytest.raises(SourceFormatError, match=r"1.*camera.*: got unreadable images"):
        import_dataset(tmp_path, tmp_path / "d.zarr")


@pytest.mark.parametrize("change", ["rename", "text", "twice", "missing"])
def test_odd_tables_are_named(change: str, tmp_path: Path) -> None:
    source = write(tmp_path / "data", "parquet")
    path = source / "1/part-0.parquet"
    table = pq.ParquetFile(path).read()
    if change == "rename":
        (source / "1").rename(source / "٣")  # a number, but not the name that it would have
    elif change == "text":
        table = table.set_column(table.column_names.index("rewards"), "rewards", pyarrow.array(["x"] * len(table)))
    elif change == "twice":
        table = table.append_column("observations", table.column("observations"))
    else:
        flags = pyarrow.array([0.0, None, 1.0])
        table = table.set_column(table.column_names.index("terminations"), "terminations", flags)
    if change != "rename":
        pq.write_table(table, path)
    with pytest.raises(SourceFormatError) as caught:
        import_dataset(tmp_path, tmp_path / "d.zarr")
    assert change != "missing" or "episode 1: terminations: got no value in row 1" in str(caught.value)


def image(kind: str, mode: str = "RGB", size: tuple[int, int] = (36, 32)) -> bytes:
    made = io.BytesIO()
    Image.new(mode, size).save(made, kind)
    return made.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_images_are_those_of_the_space(kind: str) -> None:
    for channels, mode in (((), "L"), ((1,), "L"), ((3,), "RGB")):
        space = spaces.Box(0, 255, (32, 36, *channels), np.uint8)
        assert decode_images([image(kind, mode)] * 2, space, "x").shape == (2, *space.shape)


@pytest.mark.parametrize(
    "frame",
    [
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 36 32\n%%EndComments\nshowpage\n",  # would run a program
        image("BMP"),
        image("PNG", "P"),  # its numbers are no colours
        image("JPEG", "CMYK"),
        image("JPEG", size=(32, 36)),
        image("PNG", size=(9000, 9000)),
    ],
)
def test_other_images_are_refused_undecoded(frame: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile.ImageFile, "load", None)
    with pytest.raises(SourceFormatError, match=r"x: got unreadable images .*; allowed: JPEG or PNG as the space says"):
        decode_images([frame], spaces.Box(0, 255, (32, 36, 3), np.uint8), "x")
