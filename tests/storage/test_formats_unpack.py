import base64
import json
import os
import pickle
import struct
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


@pytest.mark.parametrize(
    "text", ["BCJNGG!!", "BCJNGGhA", "BCJNGé", pack(np.arange(100))[:-40], pack(np.arange(9)) + "AAAA"]
)
def test_damaged_packed_columns(text: str) -> None:
    with pytest.raises(SourceFormatError, match=r"^x: got a (damaged|cut off) packed column"):
        unpack_array(text, "x")


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def array_of(shape: bytes, kind: str = "u1", state: bytes = b"", content: bytes = b"abcd") -> bytes:
    """A pickle of an array, with a BUILD of its type's state where there is one."""
    dtype = name("numpy", "dtype") + text(kind) + b"\x89\x88\x87R" + (state and state + b"b")
    from_buffer = name("numpy.core.numeric", "_frombuffer") + b"(C" + bytes([len(content)]) + content
    return b"\x80\x03" + from_buffer + dtype + shape + text("C") + b"tR."


U1 = name("numpy", "dtype") + text("u1") + b"\x89\x88\x87R"
SUBARRAY = b"(" + number(3) + text("|") + U1 + number(100) + b"\x85\x86NN" + number(-1) * 2 + number(0) + b"t"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        # a type of 100 values over the 4 bytes that follow: it showed what lies behind them in memory
        (array_of(number(400) + b"\x85", state=SUBARRAY), "no plain number"),
        (array_of(number(400) + b"\x85"), "4 bytes for an array"),
        (array_of(number(-1) + b"\x85"), "a shape of other than a few sizes"),
        (array_of(text("4") + b"\x85"), "a shape of other than a few sizes"),
        (array_of(b"\x8b" + struct.pack("<i", 200) + b"\x7f" * 200 + b"\x85"), "a shape of other than a few sizes"),
        (array_of(number(4) + b"\x85", kind="O"), "values of type 'O'"),
        (array_of(number(1) + b"\x85", kind="(4,)u1"), "values of type"),
        (b"\x80\x03Nr" + struct.pack("<I", 60_000_000) + b".", "longer than an array"),
        (b"\x80\x03" + b"N" * 1000 + b".", "longer than an array"),
        (name("numpy.core.numeric", "_frombuffer") + b"N}" + text("__defaults__") + b"N)\x86s\x86b.", "a state for"),
        (name("numpy", "ndarray") + b")\x81.", "refused"),
        (name("numpy", "ndarray") + b")R.", "it calls"),
        (name("numpy", "ndarray") + b".", "a packed _StandIn"),
    ],
)
def test_pickles_that_would_reach_beyond_their_bytes(data: bytes, reason: str) -> None:
    with pytest.raises(SourceFormatError, match=reason):
        unpack_array(base64.b64encode(lz4.frame.compress(data)).decode(), "x")


def test_such_a_pickle_that_is_sound() -> None:
    np.testing.assert_array_equal(
        unpack_array(base64.b64encode(lz4.frame.compress(array_of(number(4) + b"\x85"))).decode(), "x"), list(b"abcd")
    )
    flags = array_of(number(4) + b"\x85", kind="b1", content=b"\0\1\5\0")
    flags = unpack_array(base64.b64encode(lz4.frame.compress(flags)).decode(), "x")
    assert flags.view(np.uint8).tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("order", ["F", "K"])
def test_orders_of_axes(order: str) -> None:
    array = np.arange(24).reshape(2, 3, 4)
    array = np.asfortranarray(array) if order == "F" else array.transpose(2, 0, 1)
    np.testing.assert_array_equal(unpack_array(pack(array), "x"), array)
