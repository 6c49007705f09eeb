import hashlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_rl.storage.checkpoints.component_tree import assemble, flatten
from dask_rl.storage.checkpoints.store import CheckpointStore, load_checkpoint, load_metadata, save_checkpoint
from dask_rl.storage.errors import CheckpointError

METADATA = {"class_name": "Learner", "constructor": {"lr": 1e-3, "hidden": [64, 64]}, "dataset": "abc"}


def make_state(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "step": 7,
        "root_array": np.arange(3, dtype=np.uint8),
        "learner": {
            "rl_module": {
                "p0": {
                    "net.0.weight": rng.normal(size=(4, 3)).astype(np.float32),
                    "frozen": [True, None, "x"],
                },
                "p1": {"net.0.weight": rng.normal(size=(2, 2)), "scalar": np.array(2.5)},
            },
            "optimizer": {"moment": rng.normal(size=(6, 4))[::2, ::-1], "lr": 0.1 + 0.2, "empty": {}},
        },
        "rng": rng.bit_generator.state,
    }


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def assert_same(left: Any, right: Any) -> None:
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, np.ndarray):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
        assert left.shape == right.shape
    else:
        assert type(left) is type(right)
        assert left == right


def test_round_trip_keeps_every_bit_and_writable_arrays(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "c", make_state(), METADATA)
    state, metadata = load_checkpoint(path)
    assert_same(make_state(), state)
    assert metadata == METADATA == load_metadata(path)
    state["learner"]["rl_module"]["p0"]["net.0.weight"][:] = 0  # torch.from_numpy needs writable memory


def test_files_are_one_per_component_and_listed(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "c", make_state(), METADATA)
    names = {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()}
    assert "state/learner/rl_module/p0.safetensors" in names
    assert "state/learner/optimizer.json" in names
    assert {"state.json", "state.safetensors"} < names
    header = json.loads((path / "metadata.json").read_text())
    assert header["class_name"] == "Learner"
    assert header["constructor"] == METADATA["constructor"]
    assert "learner/optimizer/empty" in header["components"]
    for name, entry in header["files"].items():
        data = (path / name).read_bytes()
        assert entry == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert names == set(header["files"]) | {"metadata.json"}
    assert [p.name for p in tmp_path.iterdir()] == ["c"]  # no temporary directory is left


def test_one_component_is_loaded_alone(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "c", make_state(), METADATA)
    part, _ = load_checkpoint(path, "learner/rl_module")
    assert_same(make_state()["learner"]["rl_module"], part)
    # damage elsewhere does not matter to it, damage inside does
    flip(path / "state/learner/optimizer.safetensors")
    assert_same(load_checkpoint(path, "learner/rl_module/p1")[0], part["p1"])
    flip(path / "state/learner/rl_module/p1.safetensors")
    with pytest.raises(CheckpointError, match=r"p1\.safetensors.*sha256"):
        load_checkpoint(path, "learner/rl_module/p1")
    with pytest.raises(CheckpointError, match=r"got 'learner/rl_module/p2'; allowed: .*learner/rl_module/p0"):
        load_checkpoint(path, "learner/rl_module/p2")


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.lists(st.integers()),
)
keys = st.from_regex(r"[a-z0-9_]{1,6}", fullmatch=True)
arrays = st.builds(lambda n, t: np.arange(n).astype(t), st.integers(0, 5), st.sampled_from(["f4", "f8", "i8", "?"]))
states = st.recursive(
    st.dictionaries(keys, st.one_of(leaves, arrays), max_size=3),
    lambda inner: st.dictionaries(keys, st.one_of(leaves, arrays, inner), max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(states)
def test_flatten_and_assemble_are_inverse(state: dict[str, Any]) -> None:
    assert_same(state, assemble(flatten(state)))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"../x": {}}, "component"),
        ({"a": {"..": {"w": 1}}}, "component"),
        ({"a.json": {"w": 1}}, "component"),
        ({".hidden": {}}, "component"),
        ({"a/b": {}}, "no '/' in a key"),
        ({1: np.ones(1)}, "state key"),
        ({"a": {"b": object()}}, "state 'a/b': got object"),
        ({"a": [1, {2, 3}]}, r"state 'a\[1\]': got set"),
        ({"a": np.array([None])}, "dtype object"),
        ({"a": b"bytes"}, "got bytes"),
    ],
)
def test_states_that_cannot_be_stored_are_refused_and_leave_nothing(
    state: dict[Any, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        save_checkpoint(tmp_path / "c", state, {})
    assert list(tmp_path.iterdir()) == []


def test_saving_again_replaces_and_never_touches_foreign_directories(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c", make_state(0), {})
    save_checkpoint(tmp_path / "c", {"only": 1}, {})
    assert load_checkpoint(tmp_path / "c") == ({"only": 1}, {})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("x")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        save_checkpoint(tmp_path / "mine", {}, {})
    assert (tmp_path / "mine/thesis.tex").read_text() == "x"
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match=r"got File exists; choose a place"):
        save_checkpoint(tmp_path / "file/c", {}, {})


def test_store_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep_last=2)
    assert store.latest() is None
    with pytest.raises(CheckpointError, match="no checkpoint"):
        store.load()
    for step, score in [(100, 1.0), (200, 9.0), (300, float("nan")), (400, 3.0), (500, None)]:
        store.save(step, {"step": step}, {"class_name": "X"}, score=score)
    assert list(store.checkpoints()) == [200, 400, 500]
    assert store.best() == store.checkpoints()[200]
    assert store.latest() == store.checkpoints()[500]
    assert store.load() == ({"step": 500}, {"class_name": "X", "step": 500, "score": None})
    assert store.load(store.best())[0] == {"step": 200}
    names = {p.name for p in store.directory.iterdir()}
    assert names == {"latest", *(p.name for p in store.checkpoints().values())}


def test_a_run_that_went_back_keeps_what_it_saves_last(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1, keep_best=False)
    store.save(1000, {}, {})
    path = store.save(600, {}, {})
    assert store.latest() == path
    assert path.is_dir()


def test_what_a_killed_process_left_half_removed_neither_blocks_nor_stays(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=3)
    for step in (1, 2, 3):
        store.save(step, {"step": step}, {})
    for step in (1, 3):
        (store.checkpoints()[step] / "metadata.json").unlink()
    store.save(3, {"step": 33}, {})
    assert store.load()[0] == {"step": 33}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-000000000002", "step-000000000003"]


def test_store_survives_a_lost_latest_and_a_damaged_old_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=3)
    for step in (1, 2):
        store.save(step, {"step": step}, {}, score=step)
    (tmp_path / "latest").write_text("../../etc")
    assert store.latest() == store.checkpoints()[2]
    (store.checkpoints()[1] / "metadata.json").write_text("{")
    store.save(3, {"step": 3}, {})
    assert store.load()[0] == {"step": 3}


KILLED = """
import numpy as np, sys
from dask_rl.storage.checkpoints.store import CheckpointStore
store = CheckpointStore(sys.argv[1], keep_last=2)
step = 0
while True:
    step += 1
    store.save(step, {"step": step, "a": {"w": np.full(50_000, step)}}, {}, score=-step)
    print(step, flush=True)
"""


def test_kill_9_at_any_moment_leaves_a_loadable_latest(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    stdout = process.stdout
    assert stdout is not None
    for _ in range(5):
        seen = int(stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.communicate()
    store = CheckpointStore(tmp_path)
    state, _ = store.load()
    assert state["step"] >= seen
    assert (state["a"]["w"] == state["step"]).all()
    store.save(10**6, {"step": 10**6}, {})
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".step")]
