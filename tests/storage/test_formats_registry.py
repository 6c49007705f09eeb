from pathlib import Path

import h5py
import pytest

from dask_rl.storage.errors import ConfigError, DatasetNotFoundError, SourceFormatError
from dask_rl.storage.formats import import_dataset


def test_paths_without_a_known_source(tmp_path: Path) -> None:
    folder = tmp_path
    (folder / "source").mkdir()
    dest = folder / "dest/d.zarr"
    with pytest.raises(DatasetNotFoundError, match="nowhere: got no such file"):
        import_dataset(folder / "nowhere", dest)
    with pytest.raises(SourceFormatError, match=r"an empty directory; allowed: .*rllib"):
        import_dataset(folder / "source", dest)
    for name in ("empty.h5", "empty.json", "empty.parquet"):
        (folder / "source" / name).write_bytes(b"")
        with pytest.raises(SourceFormatError, match=rf"{name}: got an empty file"):
            import_dataset(folder / "source" / name, dest)
    (folder / "source/notes.txt").write_text("hello")
    with pytest.raises(SourceFormatError, match=r"notes\.txt: got no known format"):
        import_dataset(folder / "source/notes.txt", dest)
    (folder / "source/other.json").write_text('{"a": 1}\n')
    with pytest.raises(SourceFormatError, match="got no known format"):
        import_dataset(folder / "source/other.json", dest)
    with pytest.raises(ConfigError, match="format: got 'tfds'; allowed: minari, d3rlpy, d4rl, zarr-v2, npz, rllib"):
        import_dataset(folder / "source/other.json", dest, format="tfds")
    with h5py.File(folder / "source/foreign.h5", "w") as file:
        file["x"] = 1
    with pytest.raises(SourceFormatError, match="got no known format"):
        import_dataset(folder / "source/foreign.h5", dest)
    with pytest.raises(SourceFormatError, match=r"foreign\.h5/observations: got nothing"):
        import_dataset(folder / "source/foreign.h5", dest, format="d3rlpy")
    assert [p.name for p in folder.iterdir()] == ["source"]
