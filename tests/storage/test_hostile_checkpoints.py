"""Checkpoints that a stranger made to do harm: refused by name, at once, in little memory; nothing runs."""

import hashlib
import json
import os
import pickle
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dask_rl.storage.checkpoints.header import checksum
from dask_rl.storage.checkpoints.store import CheckpointStore, load_checkpoint, load_metadata, save_checkpoint
from dask_rl.storage.errors import CheckpointError

STATE = {"step": 7, "w": np.arange(64.0), "learner": {"w": np.ones(3), "name": "x"}}
METADATA = {"class_name": "Learner", "constructor": {"lr": 1e-3}}
MIB = 2**20


def change(path: Path, **values: Any) -> None:
    """Change metadata.json, with a fitting checksum."""
    header = json.loads((path / "metadata.json").read_text()) | values
    (path / "metadata.json").write_text(json.dumps(header | {"checksum": checksum(header)}))


def header_of(path: Path) -> dict[str, Any]:
    header: dict[str, Any] = json.loads((path / "metadata.json").read_text())
    return header


def with_file(name: str, data: bytes, **entry: Any) -> Callable[[Path], None]:
    """Put a file there, listed with its size and digest unless `entry` says otherwise."""

    def damage(path: Path) -> None:
        (path / name).write_bytes(data)
        described = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} | entry
        change(path, files=header_of(path)["files"] | {name: described})

    return damage


def with_component(*names: str) -> Callable[[Path], None]:
    return lambda path: change(path, components=[*header_of(path)["components"], *names])


def with_listed_file(name: str) -> Callable[[Path], None]:
    entry = {"size": 4, "sha256": hashlib.sha256(b"true").hexdigest()}
    return lambda path: change(path, files=header_of(path)["files"] | {name: entry})


def arrays(tensors: dict[str, Any] | str, body: bytes = b"", length: int | None = None) -> Callable[[Path], None]:
    text = (tensors if isinstance(tensors, str) else json.dumps(tensors)).encode()
    size = len(text) if length is None else length
    return with_file("state.safetensors", size.to_bytes(8, "little") + text + body)


def tensor(shape: list[int], end: int, dtype: str = "F32", begin: int = 0) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def linked(name: str, target: str) -> Callable[[Path], None]:
    """Put a link in place of a file or folder, to a copy of it outside or to a file of the system."""

    def damage(path: Path) -> None:
        place = Path(target) if target.startswith("/") else path.parent / target
        if place.exists():
            (path / name).unlink()
        else:
            (path / name).rename(place)
        (path / name).symlink_to(place)

    return damage


def with_holes(name: str, size: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        os.truncate(path / name, size)
        files = header_of(path)["files"] if name != "metadata.json" else {}
        if files:
            change(path, files=files | {name: files[name] | {"size": size}})

    return damage


class Payload:
    """What a pickle would do if somebody unpickled it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(Path(os.environ["HOSTILE_FOLDER"]) / "executed"),))


def pickled(name: str, *, listed: bool) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = pickle.dumps(Payload())
        with_file(name, data)(path) if listed else (path / name).write_bytes(data)

    return damage


def metadata_text(text: str) -> Callable[[Path], None]:
    return lambda path: (path / "metadata.json").write_text(text) and None


def key_twice(path: Path) -> None:
    text = (path / "metadata.json").read_text()
    metadata_text(text.replace('"metadata": {', '"format_version": 1, "metadata": {'))(path)


def nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def signed(**values: Any) -> Callable[[Path], None]:
    return lambda path: change(path, **values)


HOSTILE: dict[str, tuple[Callable[[Path], Any], str]] = {
    # names that lead outside
    **{
        f"component {name!r}": (with_component(name), "checkpoint component: got ")
        for name in ("../x", "/etc/passwd", "a/../../b", "a//b", ".hidden", "a\\..\\b", "a\0b", "a\nb", "a/", "~", "ä")
    },
    "component file": (with_component("x.safetensors"), "checkpoint component: got "),
    "deep component": (with_component("/".join("a" * 5000)), "got 5000 levels; allowed: at most 32"),
    "long component": (with_component("ä" * 4 * MIB), "checkpoint component: got "),
    **{
        f"file {name!r}": (with_listed_file(name), "no such file; allowed: only files of listed components")
        for name in ("../secret.json", "/etc/hostname", "state/../../secret.json", "x\0", "y" * 4 * MIB)
    },
    # links
    "link to a folder": (linked("state", "moved"), r"c/state: got a link"),
    "link to arrays": (linked("state.safetensors", "moved"), r"c/state\.safetensors: got a link"),
    "link to the system": (linked("state.json", "/etc/hostname"), r"c/state\.json: got a link"),
    "link as metadata": (linked("metadata.json", "moved"), r"c/metadata\.json: got a link"),
    "endless link": (lambda p: (p / "state/again").symlink_to(p), r"c/state/again: got a link"),
    # sizes
    "arrays with holes": (with_holes("state.safetensors", 2**42), "c: got 4398046511\\d+ bytes to load"),
    "metadata with holes": (with_holes("metadata.json", 2**42), r"metadata\.json: got 4398046511104 bytes"),
    "negative size": (with_file("state.json", b"{}", size=-1), r"state\.json: got 2 bytes; allowed: -1"),
    "size in words": (with_file("state.json", b"{}", size="2"), "malformed header"),
    # digests
    "no digest": (with_file("state.json", b"{}", sha256=None), r"state\.json: got a sha256 mismatch"),
    "other digest": (with_file("state.json", b"{}", sha256="0" * 64), r"state\.json: got a sha256 mismatch"),
    # JSON
    "deep metadata": (signed(metadata={"a": nested(300)}), r"metadata\.json: got JSON nested too deeply"),
    "deepest metadata": (metadata_text('{"a":' * 200_000), r"metadata\.json: got unreadable JSON"),
    "deep values": (with_file("state.json", json.dumps({"a": nested(300)}).encode()), "nested too deeply"),
    "giant number": (with_file("state.json", b'{"a":' + b"9" * 100_000 + b"}"), r"state\.json: got unreadable JSON"),
    "bomb of brackets": (with_file("state.json", b'{"a":[' + b"{}," * 10 * MIB + b"0]}"), r"state\.json: got JSON of"),
    "bomb of values": (with_file("state.json", b'{"a":[' + b"0," * 15 * MIB + b"0]}"), r"state\.json: got JSON of"),
    "bomb as metadata": (metadata_text('{"a":[' + "[]," * 10 * MIB + "0]}"), r"metadata\.json: got JSON of"),
    "long format": (signed(format="x" * 4 * MIB), r"metadata\.json: got format 'xxx"),
    "not UTF-8": (with_file("state.json", b'{"\xff": 1}'), r"state\.json: got unreadable JSON"),
    "a list": (with_file("state.json", b"[]"), r"state\.json: got list"),
    # names twice
    "metadata key twice": (key_twice, r"metadata\.json: got unreadable JSON \(one key twice\)"),
    "value twice": (with_file("state.json", b'{"a": 1, "a": 2}'), r"state\.json: got unreadable JSON \(one key twice"),
    "component twice": (with_component("learner"), "malformed header"),
    "array twice": (
        arrays('{"x": %s, "x": %s}' % ((json.dumps(tensor([1], 4)),) * 2), bytes(4)),
        r"state\.safetensors: got unreadable JSON \(one key twice",
    ),
    "array and value": (with_file("state.json", b'{"w": 1}'), "one name twice"),
    "value and component": (with_file("state.json", b'{"learner": 1}'), "one name twice"),
    # arrays
    "huge header": (arrays({}, length=2**63 - 1), r"state\.safetensors: got unreadable arrays \(a header of"),
    "no header": (with_file("state.safetensors", b"\1"), r"state\.safetensors: got unreadable arrays"),
    "empty file": (with_file("state.safetensors", b""), r"state\.safetensors: got unreadable"),
    "bomb as header": (arrays('{"a":[' + "{}," * 10 * MIB + "0]}"), r"state\.safetensors: got JSON of"),
    "huge shape": (arrays({"x": tensor([2**40, 2**20], 8)}, bytes(8)), r"state\.safetensors: got unreadable arrays"),
    "negative shape": (arrays({"x": tensor([-1], 4)}, bytes(4)), r"state\.safetensors: got unreadable arrays"),
    "no bytes": (arrays({"x": tensor([2**30], 2**32)}), r"state\.safetensors: got unreadable arrays"),
    "overlap": (arrays({"x": tensor([1], 4), "y": tensor([1], 4)}, bytes(4)), r"state\.safetensors: got unreadable"),
    "gap": (arrays({"x": tensor([1], 8, begin=4)}, bytes(8)), r"state\.safetensors: got unreadable arrays"),
    "no tensor": (arrays({"x": 3}), r"state\.safetensors: got unreadable arrays"),
    **{
        f"type {code}": (arrays({"x": tensor([4], 8, code)}, bytes(8)), r"state\.safetensors: got unreadable arrays")
        for code in ("BF16", "F8_E4M3", "OBJECT", "F4")
    },
    # code
    "pickle beside": (pickled("data.pkl", listed=False), r"data\.pkl: got \d+ bytes; allowed: only files of listed"),
    "pickle listed": (pickled("data.pkl", listed=True), r"data\.pkl: got \d+ bytes; allowed: only files of listed"),
    "pickle as arrays": (pickled("state.safetensors", listed=True), r"state\.safetensors: got unreadable arrays"),
    "pickle as values": (pickled("state.json", listed=True), r"state\.json: got unreadable JSON"),
    "pickle as metadata": (pickled("metadata.json", listed=False), r"metadata\.json: got unreadable JSON"),
}


def everything_below(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path != folder / "c"
    }


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_checkpoint_is_refused_at_once_and_does_nothing(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOSTILE_FOLDER", str(tmp_path))
    damage, message = HOSTILE[name]
    (tmp_path / "secret.json").write_text("true")
    path = save_checkpoint(tmp_path / "c", STATE, METADATA)
    damage(path)
    before, modules, began = everything_below(tmp_path), set(sys.modules), time.monotonic()
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=message) as caught:
            load_checkpoint(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.monotonic() - began < 5
    assert peak < 96 * MIB  # the largest of these files has 30
    assert set(sys.modules) == modules
    assert everything_below(tmp_path) == before
    assert len(str(caught.value)) < 1500
    assert str(caught.value).isprintable()


def test_the_largest_harmless_json_takes_little_memory(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "c", STATE, METADATA)
    with_file("state.json", b'{"a":[' + b"{}," * (2**18 - 8) + b'"' + b"x" * 40 * MIB + b'"]}')(path)
    tracemalloc.start()
    load_checkpoint(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200 * MIB


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"a": nested(200)}, "nested too deeply"),
        ({"a": [[]] * 300_000}, r"30000\d brackets"),
        ({"a": [0] * 2_200_000}, r"2\d{6} values"),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(values: dict[str, Any], words: str, tmp_path: Path) -> None:
    for state, metadata in ((values, {}), ({}, values)):
        with pytest.raises(CheckpointError, match=words):
            save_checkpoint(tmp_path / "c", state, metadata)
    assert list(tmp_path.iterdir()) == []


def test_links_in_a_run_are_no_checkpoints_and_nothing_behind_them_is_removed(tmp_path: Path) -> None:
    outside = save_checkpoint(tmp_path / "precious", STATE, METADATA)
    store = CheckpointStore(tmp_path / "run", keep_last=1)
    store.directory.mkdir()
    (store.directory / "step-000000000001").symlink_to(outside)
    (store.directory / ".step-000000000001.x.tmp").symlink_to(outside)
    assert store.latest() is None
    for step in (2, 3, 4):
        store.save(step, STATE, METADATA)
    assert load_metadata(outside)["class_name"] == "Learner"
    assert list(store.checkpoints()) == [4]


def test_a_pipe_or_a_giant_as_latest_is_passed_over(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    path = store.save(1, STATE, METADATA)
    (tmp_path / "latest").unlink()
    os.mkfifo(tmp_path / "latest")
    assert store.latest() == path
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").touch()
    os.truncate(tmp_path / "latest", 2**42)
    assert store.latest() == path


@pytest.mark.parametrize("score", [10**400, float("nan"), float("inf"), "1", True])
def test_a_score_that_is_no_number_is_none(score: Any, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    good = store.save(1, STATE, METADATA, score=0.5)
    bad = store.save(2, STATE, METADATA, score=0.1)
    change(bad, metadata=header_of(bad)["metadata"] | {"score": score})
    assert store.best() == good
