import base64
import json
import os
import pickle
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import pytest

from dask_rl.storage.errors import SourceFormatError
from dask_rl.storage.formats import import_dataset
from dask_rl.storage.formats.unpack import is_packed, unpack_array


def pack(array: Any, protocol: int = 5) -> str:
    return base64.b64encode(lz4.frame.compress(pickle.dumps(array, protocol=protocol))).decode()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.eye(3)),
        np.array([True, False]),
        np.arange(3),
        np.random.default_rng(0).integers(0, 256, (4, 200, 200), np.uint8),  # several blocks: another LZ4 header
    ],
)
def test_packed_arrays_of_every_protocol(array: np.ndarray, protocol: int) -> None:
    if protocol == 2:  # its bytes come through _codecs.encode, which is not admitted
        with pytest.raises(SourceFormatError, match=r"it names _codecs\.encode"):
            unpack_array(pack(array, protocol), "x")
        return
    assert is_packed(pack(array, protocol))
    np.testing.assert_array_equal(unpack_array(pack(array, protocol), "x"), array)


class Hostile:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], self.call[1:]


@pytest.mark.parametrize(
    "value",
    [
        Hostile(os.system, "touch HOSTILE"),
        [np.arange(2), Hostile(eval, "open('HOSTILE', 'w')")],
        Hostile(np.load, "x"),
        np.array([Hostile(os.mkdir, "HOSTILE")], dtype=object),
        np.array([("x", 1)], dtype=[("a", "U1"), ("b", "i4")]),
        np.array(["text"]),
        {"a": 1},
    ],
)
def test_hostile_pickles_are_refused_and_run_nothing(
    value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceFormatError, match="a packed"):
        unpack_array(pack(value), "x")
    rows = {"eps_id": [1], "obs": pack(value), "actions": [0], "rewards": [0.0], "dones": [True]}
    (tmp_path / "h.json").write_text(json.dumps({"type": "SampleBatch", **rows}))
    with pytest.raises(SourceFormatError, match=r"h\.json, line 1, column 'obs': got a packed"):
        import_dataset(tmp_path / "h.json", tmp_path / "d.zarr")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["h.json"]


@pytest.mark.parametrize("text", ["BCJNGG!!", "BCJNGGhA", pack(np.arange(100))[:-40], pack(np.arange(9)) + "AAAA"])
def test_damaged_packed_columns(text: str) -> None:
    with pytest.raises(SourceFormatError, match=r"^x: got a (damaged|cut off) packed column"):
        unpack_array(text, "x")
