"""Whatever is wrong with a job: one line that says what to do, a non-zero exit code, nothing left behind."""

import json
import os
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
import yaml
import zarr

from dask_rl.pipeline.views.cli import run


@pytest.fixture
def copy(continuous_dataset, tmp_path) -> Path:
    return shutil.copytree(continuous_dataset, tmp_path / "copy.zarr")


@pytest.fixture
def train(copy, tmp_path, capsys):
    """Run a job that has `settings` of its own; return the exit code and the error lines."""

    def go(**settings) -> tuple[int, list[str]]:
        job = {
            "dataset": str(copy),
            "algorithm": {"name": "bc"},
            "num_steps": 20,
            "batch_size": 32,
            "run": str(tmp_path / "run"),
            **settings,
        }
        file = tmp_path / "job.yaml"
        file.write_text(yaml.safe_dump(job))
        code = run(["train", str(file)])
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "Traceback" not in captured.err
        lines = captured.err.splitlines()
        assert lines
        assert all(line.startswith("error: ") for line in lines), lines
        return code, lines

    return go


def shard_of(dataset: Path, array: str) -> Path:
    return next(path for path in sorted((dataset / "data" / array / "c").rglob("*")) if path.is_file())


def assert_one_line(outcome: tuple[int, list[str]], code: int, *words: str) -> None:
    assert outcome[0] == code
    assert len(outcome[1]) == 1, outcome[1]
    for word in words:
        assert word in outcome[1][0]


def assert_nothing_left(tmp_path: Path) -> None:
    assert not (tmp_path / "run").exists()
    assert {path.name for path in tmp_path.iterdir()} <= {"copy.zarr", "job.yaml"}


def test_missing_path(train, tmp_path):
    assert_one_line(train(dataset=str(tmp_path / "nowhere.zarr")), 1, "nowhere.zarr")
    assert_nothing_left(tmp_path)


def test_a_name_with_line_breaks_stays_on_one_line(train, tmp_path):
    assert_one_line(
        train(dataset=str(tmp_path / "no\nsuch\u2028data")), 1, "no such data", "no such path", "check the path"
    )


def test_foreign_zarr(train, copy, tmp_path):
    shutil.rmtree(copy)
    zarr.create_array(str(copy), data=np.zeros(4))
    assert_one_line(train(), 1, "copy.zarr")
    assert_nothing_left(tmp_path)


def test_truncated_chunk_file(train, copy, tmp_path):
    shard = shard_of(copy, "observations")
    os.truncate(shard, shard.stat().st_size - 10)
    assert_one_line(train(), 1, "observations", "bytes")
    assert_nothing_left(tmp_path)


def test_deleted_shard(train, copy, tmp_path):
    shard_of(copy, "actions").unlink()
    assert_one_line(train(), 1, "actions", "no such file")
    assert_nothing_left(tmp_path)


def test_flipped_bit(train, copy, tmp_path):
    shard = shard_of(copy, "observations")
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    assert_one_line(train(), 1, "observations", "checksum")
    assert not (tmp_path / "run" / "result.json").exists()
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


def test_wrong_yaml_key(train, tmp_path):
    assert_one_line(train(batchsize=32), 2, "batchsize", "batch_size")
    assert_nothing_left(tmp_path)


def test_unknown_algorithm(train, tmp_path):
    assert_one_line(train(algorithm={"name": "iqql"}), 2, "iqql", "did you mean 'iql'")
    assert_nothing_left(tmp_path)


def test_more_learners_than_workers(train, cluster_client, tmp_path):
    cluster = {"kind": "address", "address": cluster_client.scheduler.address, "startup_timeout_seconds": 0.5}
    outcome = train(learners={"num_learners": 3}, cluster=cluster)
    assert_one_line(outcome, 2, "got 2 after 0.5 s", "at least 3")
    assert_nothing_left(tmp_path)


def test_port_in_use(train, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        outcome = train(learners={"num_learners": 1}, cluster={"kind": "local", "dashboard_port": port})
    assert_one_line(outcome, 2, str(port), "dashboard_port")
    assert_nothing_left(tmp_path)


def test_spaces_of_dataset_and_environment_differ(train, tmp_path):
    outcome = train(evaluation={"environment": "Pendulum-v1", "num_episodes": 1})
    assert_one_line(outcome, 2, "(5,)", "(3,)", "--environment Pendulum-v1")
    assert_nothing_left(tmp_path)


def test_read_only_output(train, tmp_path):
    (tmp_path / "file").write_text("")
    assert_one_line(train(run=str(tmp_path / "file" / "run")), 2, "file/run")
    assert_one_line(train(run="/proc/dask-rl/run"), 2, "/proc/dask-rl/run")


def test_a_mended_job_may_begin_where_a_wrong_one_failed(train, tmp_path, capsys):
    assert_one_line(train(batch_size=31), 2, "batch_size", "24 or 32")
    assert_one_line(train(num_shards=4096, batch_size=4096), 2, "num_shards")
    file = tmp_path / "job.yaml"
    job = yaml.safe_load(file.read_text()) | {"num_shards": 8, "batch_size": 32}
    file.write_text(yaml.safe_dump(job))
    assert run(["train", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_steps"] == 20


def make_source(directory: Path, **columns) -> Path:
    h5py = pytest.importorskip("h5py")
    rows = 20
    values = {
        "observations": np.zeros((rows, 3), np.float32),
        "actions": np.zeros((rows, 1), np.float32),
        "rewards": np.zeros(rows, np.float32),
        "terminals": np.zeros(rows, np.float32),
        "episode_terminals": np.eye(1, rows, rows - 1, dtype=np.float32)[0],
    } | columns
    path = directory / "source.h5"
    with h5py.File(path, "w") as file:
        for name, column in values.items():
            file[name] = column
        file["discrete_action"] = False
        file["version"] = "1.0"
    return path


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"observations": np.where(np.arange(60).reshape(20, 3) == 31, np.nan, 0)}, ("observations", "step 10", "nan")),
        ({"actions": np.where(np.arange(20).reshape(20, 1) == 7, 9.0, 0)}, ("actions", "step 7", "9.0")),
    ],
    ids=["NaN observation", "action outside the space"],
)
def test_values_that_no_learner_may_see(tmp_path, capsys, columns, words):
    source = make_source(tmp_path, **columns)
    code = run(["data", "import", str(source), str(tmp_path / "new.zarr"), "--environment", "Pendulum-v1"])
    lines = capsys.readouterr().err.splitlines()
    assert code == 1
    assert len(lines) == 1, lines
    for word in words:
        assert word in lines[0]
    assert {path.name for path in tmp_path.iterdir()} == {"source.h5"}
