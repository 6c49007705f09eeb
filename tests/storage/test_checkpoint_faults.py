import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from dask_rl.storage.checkpoints.header import checksum
from dask_rl.storage.checkpoints.store import CheckpointStore, load_checkpoint, save_checkpoint
from dask_rl.storage.errors import CheckpointError
from dask_rl.storage.files import exchange

STATE = {"step": 7, "w": np.arange(64.0), "learner": {"w": np.ones(3)}, "rng": {"state": 1}}
METADATA = {"class_name": "Learner", "constructor": {"lr": 1e-3}}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def rewrite_header(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change metadata.json as an attacker would: with a fitting checksum."""
    header = json.loads((path / "metadata.json").read_text())
    change(header)
    header["checksum"] = checksum(header)
    (path / "metadata.json").write_text(json.dumps(header))


def plant(path: Path, name: str, data: bytes) -> None:
    (path / name).write_bytes(data)
    entry = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    rewrite_header(path, lambda header: header["files"].update({name: entry}))


def safetensors_of(header: dict[str, Any], body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def huge_shape(path: Path) -> None:
    tensor = {"dtype": "F32", "shape": [2**40, 2**20], "data_offsets": [0, 8]}
    plant(path, "state.safetensors", safetensors_of({"x": tensor}, b"\0" * 8))


def empty_but_huge_shape(path: Path) -> None:
    tensor = {"dtype": "F32", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}
    plant(path, "state.safetensors", safetensors_of({"x": tensor}, b""))


def outside(path: Path) -> None:
    (path.parent / "secret.json").write_text("{}")
    rewrite_header(path, lambda h: h["components"].append("../../secret"))


def outside_file(path: Path) -> None:
    (path.parent / "secret.json").write_text("{}")
    rewrite_header(path, lambda h: h["files"].update({"../secret.json": {"size": 2, "sha256": "0"}}))


def orphan(path: Path) -> None:
    rewrite_header(path, lambda h: h["components"].append("nobody/child"))


def deep_json(path: Path) -> None:
    plant(path, "state.json", b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


def replace_by_link(path: Path) -> None:
    (path / "state.json").rename(path.parent / "elsewhere.json")
    (path / "state.json").symlink_to(path.parent / "elsewhere.json")


def fifo(path: Path) -> None:
    (path / "state.json").unlink()
    os.mkfifo(path / "state.json")


FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing checkpoint": (lambda p: p.rename(p.with_name("moved")), "c: got no such directory"),
    "no metadata": (lambda p: (p / "metadata.json").unlink(), "no metadata.json"),
    "foreign metadata": (
        lambda p: (p / "metadata.json").write_text('{"a": 1}'),
        r"metadata\.json: got format None",
    ),
    "metadata not JSON": (
        lambda p: (p / "metadata.json").write_bytes(b"\x80\x04."),
        r"metadata\.json: got unreadable",
    ),
    "newer format": (
        lambda p: rewrite_header(p, lambda h: h.update(format_version=2)),
        "version 2; allowed: .* 1",
    ),
    "metadata changed": (
        lambda p: (p / "metadata.json").write_text((p / "metadata.json").read_text().replace("0.001", "0.002")),
        r"metadata\.json: got a checksum mismatch",
    ),
    "malformed header": (lambda p: rewrite_header(p, lambda h: h.update(files=[])), "malformed header"),
    "flipped bit": (lambda p: flip(p / "state.safetensors"), r"state\.safetensors: got a sha256 mismatch"),
    "truncated": (
        lambda p: os.truncate(p / "state.safetensors", 20),
        r"state\.safetensors: got 20 bytes; allowed: \d+",
    ),
    "file missing": (lambda p: (p / "state/rng.json").unlink(), r"rng\.json: got no such file"),
    "unlisted file": (lambda p: (p / "state/evil.pkl").write_bytes(b"x"), r"evil\.pkl"),
    "symlink": (replace_by_link, r"state\.json: got a link"),
    "fifo": (fifo, r"state\.json: got a link or device"),
    "component outside": (outside, r"\.\./\.\./secret"),
    "file outside": (outside_file, r"secret\.json: got no such file; allowed: only files of listed"),
    "orphan": (orphan, "nobody/child.*no parent"),
    "huge shape": (huge_shape, r"state\.safetensors: got unreadable arrays"),
    "empty but huge shape": (empty_but_huge_shape, r"state\.safetensors: got unreadable arrays"),
    "deep JSON": (deep_json, r"state\.json: got unreadable JSON"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_damaged_or_hostile_checkpoints_are_refused_by_name(fault: str, tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "c", STATE, METADATA)
    damage, message = FAULTS[fault]
    damage(path)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_checkpoint(path)
    assert "\n" not in str(caught.value)


def test_a_replacement_that_fails_leaves_the_checkpoint_it_was_to_replace(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "c", STATE, METADATA)
    rename = os.rename

    def fail_to_place(source: Path, target: Path) -> None:
        if Path(target) == path and not Path(source).name.endswith(".old.tmp"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    by_renames = mock.patch("dask_rl.storage.checkpoints.files.exchange", return_value=False)
    failing = mock.patch("os.rename", fail_to_place)
    with by_renames, failing, pytest.raises(CheckpointError, match="Input/output error"):
        save_checkpoint(path, {"step": 8}, METADATA)
    assert load_checkpoint(path)[0]["step"] == 7
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_while_a_checkpoint_is_replaced_leaves_one_of_the_two(tmp_path: Path, after: bool) -> None:
    path = save_checkpoint(tmp_path / "c", STATE, METADATA)

    def die(one: Path, other: Path) -> bool:
        assert not after or exchange(one, other)
        raise Killed

    with mock.patch("dask_rl.storage.checkpoints.files.exchange", die), pytest.raises(Killed):
        save_checkpoint(path, {"step": 8}, METADATA)
    assert load_checkpoint(path)[0]["step"] == (8 if after else 7)


def test_a_disk_that_is_full_when_latest_is_written_is_one_clear_line(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with (
        mock.patch("dask_rl.storage.checkpoints.store.replace_file", side_effect=full),
        pytest.raises(CheckpointError, match=r"got No space left on device; choose a place"),
    ):
        CheckpointStore(tmp_path).save(1, STATE, METADATA)


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("at", ["fdatasync", "replace"])
def test_a_kill_while_the_only_checkpoint_gets_its_score_leaves_it(tmp_path: Path, at: str) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    store.save(5, STATE, METADATA)
    with mock.patch.object(os, at, side_effect=Killed), pytest.raises(Killed):
        store.set_score(5, 2.5)
    state, metadata = CheckpointStore(tmp_path).load()
    assert (state["step"], metadata["score"]) == (7, None)
    store.set_score(5, 2.5)
    assert store.load()[1] == {**METADATA, "step": 5, "score": 2.5}
    assert store.best() == store.latest()
    store.set_score(5, float("nan"))
    assert store.best() is None
    with pytest.raises(CheckpointError, match="step-000000000006: got no such directory"):
        store.set_score(6, 1.0)


def test_a_better_score_ends_the_keeping_of_the_best_before(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    for step, score, kept in [(1, 1.0, [1]), (2, 0.5, [1, 2]), (3, 2.0, [3])]:
        store.save(step, STATE, METADATA)
        store.set_score(step, score)
        assert list(store.checkpoints()) == kept
