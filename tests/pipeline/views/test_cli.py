"""The command line, as a user meets it: real processes, exit codes, one line per error."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys

import pytest

from dask_rl.pipeline.runs.run_directory import RunDirectory
from dask_rl.pipeline.views.cli import run
from dask_rl.pipeline.views.cli_command import table
from dask_rl.storage.errors import LearnerError


def dask_rl(*arguments, **options):
    command = [sys.executable, "-m", "dask_rl", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "pendulum.zarr"
    done = dask_rl(
        *("data", "collect", "Pendulum-v1", path, "--policy", "pendulum-swing-up"),
        *("--num-episodes", 4, "--seed", 5, "--workers", 1, "--json"),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["num_steps"] == 800
    return path


@pytest.fixture
def copy(dataset, tmp_path):
    return shutil.copytree(dataset, tmp_path / "copy.zarr")


def test_help_names_every_command_and_loads_nothing_heavy():
    code = (
        "import sys; from dask_rl.pipeline.views.cli import run; run(['--help']);"
        "print(sorted({'torch', 'distributed', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in ("demo", "data", "train", "eval", "report"):
        assert f" {name} " in done.stdout
    assert done.stdout.endswith("[]\n")


@pytest.mark.parametrize("path", [[], ["data"], ["data", "import"], ["data", "export"], ["train"], ["eval"], ["demo"]])
def test_every_command_has_help(path, capsys):
    assert run([*path, "--help"]) == 0
    assert "Usage: dask-rl" in capsys.readouterr().out


@pytest.mark.parametrize("path", [[], ["data"]])
def test_without_a_command_there_is_help_and_no_empty_error(path, capsys):
    assert run(path) == 2
    captured = capsys.readouterr()
    assert "Commands" in captured.out
    assert captured.err == ""


def test_the_version_is_shown(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"dask-rl {importlib.metadata.version('dask-rl')}\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nonsense"], "error: No such command 'nonsense'. See `dask-rl --help`."),
        (["data", "nonsense"], "error: No such command 'nonsense'. See `dask-rl data --help`."),
        (["train"], "error: Missing argument 'JOB.yaml'. See `dask-rl train --help`."),
    ],
)
def test_wrong_usage_points_to_the_help_of_that_command(arguments, line, capsys):
    assert run(arguments) == 2
    assert capsys.readouterr().err == f"{line}\n"


def test_training_again_says_that_nothing_was_done_and_eval_says_of_which_step(dataset, tmp_path, capsys):
    job = tmp_path / "job.yaml"
    job.write_text(f"dataset: {dataset}\nalgorithm: {{name: bc}}\nnum_steps: 3\nrun: {tmp_path / 'run'}\n")
    assert run(["train", str(job)]) == 0
    assert "was complete" not in capsys.readouterr().out
    assert run(["train", str(job)]) == 0
    assert capsys.readouterr().out.startswith("was complete, nothing was done again\nnum_steps     3\n")
    assert run(["train", str(job), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["was_complete"] is True
    assert run(["eval", str(tmp_path / "run"), "--environment", "Pendulum-v1", "--episodes", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 3


def test_info_has_the_promised_keys_and_needs_no_torch(dataset):
    code = (
        "import sys; from dask_rl.pipeline.views.cli import run; code = run(sys.argv[1:]);"
        "assert not {'torch', 'distributed'} & set(sys.modules); sys.exit(code)"
    )
    command = [sys.executable, "-c", code, "data", "info", str(dataset), "--json"]
    values = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    promised = "num_steps num_episodes num_terminated num_truncated return_mean return_min return_max"
    for key in [*promised.split(), "observation_space", "action_space", "content_hash"]:
        assert key in values
    assert (values["num_episodes"], values["num_truncated"], values["num_terminated"]) == (4, 4, 0)


def test_without_json_there_is_a_table(dataset, capsys):
    assert run(["data", "info", str(dataset)]) == 0
    captured = capsys.readouterr()
    assert "num_steps" in captured.out
    assert captured.err == ""


def test_an_export_comes_back(dataset, tmp_path, capsys):
    exported = tmp_path / "swing-v0"
    assert run(["data", "export", str(dataset), str(exported), "--format", "minari-parquet", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["num_steps"], values["num_episodes"], values["lost"]) == (800, 4, [])
    assert run(["data", "import", str(exported), str(tmp_path / "back.zarr"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "minari"
    assert run(["data", "export", str(dataset), str(exported), "--format", "csv"]) == 2
    assert "format: got 'csv'" in capsys.readouterr().err


def test_verify_says_that_a_sound_dataset_is_sound(dataset, capsys):
    assert run(["data", "verify", str(dataset), "--deep", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["ok"], values["deep"]) == (True, True)


def first_shard(path, array):
    return next(file for file in sorted((path / "data" / array / "c").rglob("*")) if file.is_file())


def damage_truncated(path):
    shard = first_shard(path, "observations")
    os.truncate(shard, shard.stat().st_size // 2)


def damage_deleted(path):
    first_shard(path, "actions").unlink()


def damage_flipped(path):
    shard = first_shard(path, "rewards")
    content = bytearray(shard.read_bytes())
    content[len(content) // 3] ^= 1
    shard.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "array"),
    [(damage_truncated, "observations"), (damage_deleted, "actions"), (damage_flipped, "rewards")],
)
def test_damage_is_one_line_that_names_the_array(copy, damage, array, capsys):
    damage(copy)
    assert run(["data", "verify", str(copy), "--deep"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ")
    assert array in line


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["data", "info", "/nope.zarr"], 1, "/nope.zarr"),
        (["data", "import", "/nope", "{tmp}/x.zarr"], 1, "/nope"),
        (["data", "import", "{tmp}", "{tmp}/x.zarr", "--shard-rows", "0"], 2, "shard_rows: got 0"),
        (["data", "collect", "Nope-v1", "{tmp}/x.zarr"], 2, "Nope"),
        (["data", "collect", "Pendulum-v1", "/proc/x.zarr"], 1, "/proc"),
        (["data", "collect", "Pendulum-v1", "{tmp}/x.zarr", "--num-episodes", "0"], 2, "num_episodes: got 0"),
        (["train", "/nope.yaml"], 2, "job file: got /nope.yaml"),
        (["train"], 2, "JOB.yaml"),
        (["train", sys.executable], 2, "no text"),
        (["eval", "/nope"], 2, "holds no job.yaml"),
        (["report", "/nope"], 2, "holds no job.yaml"),
        (["nonsense"], 2, "nonsense"),
        (["data", "info", "--colour", "red"], 2, "--colour"),
    ],
)
def test_mistakes_are_one_line_each_and_leave_nothing(arguments, code, words, tmp_path, capsys):
    assert run([argument.format(tmp=tmp_path) for argument in arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ")
    assert words in line
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_key_in_a_job_is_exit_code_2_with_a_suggestion(tmp_path, capsys):
    job = tmp_path / "job.yaml"
    job.write_text("dataset: a.zarr\nalgorithm: {name: bc}\nnum_steps: 5\nrun: r\nbatchsize: 8\n")
    assert run(["train", str(job), "--set", "num_steps=0"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert any("batchsize: got an unknown key" in line and "did you mean 'batch_size'?" in line for line in lines)


def test_debug_keeps_the_traceback():
    done = dask_rl("data", "info", "/nope.zarr", "--debug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "DatasetNotFoundError" in done.stderr


def test_a_remote_traceback_is_kept_for_debug(monkeypatch, capsys):
    def fail(run, output):
        raise LearnerError("learner 1: ValueError: boom\nTraceback …\n  File …")

    monkeypatch.setattr("dask_rl.pipeline.views.report.write_report", fail)
    assert run(["report", "x"]) == 1
    assert capsys.readouterr().err == "error: learner 1: ValueError: boom\n"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (TypeError("a\nb"), "TypeError: a b. Run it again with --debug to see where, and report it."),
        (OSError(28, "No space left on device"), "file system: got No space left on device; mend that, then run the"),
        (PermissionError(13, "Permission denied", "/x/y"), "/x/y: got Permission denied; mend that, then run the same"),
    ],
)
def test_what_nobody_foresaw_is_one_line_too(monkeypatch, capsys, error, line):
    def fail(run, output):
        raise error

    monkeypatch.setattr("dask_rl.pipeline.views.report.write_report", fail)
    assert run(["report", "x"]) == 1
    (shown,) = capsys.readouterr().err.splitlines()
    assert shown.startswith(f"error: {line}")
    with pytest.raises(type(error)):
        run(["report", "x", "--debug"])


def test_report_writes_the_page_and_says_where(tmp_path, capsys):
    directory = RunDirectory(tmp_path / "run")
    with directory.locked():
        directory.job_file.write_text("algorithm: {name: bc}\n")
    assert run(["report", str(directory.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"report": str(directory.report_file)}
    assert directory.report_file.is_file()


@pytest.mark.parametrize(("options", "best"), [([], False), (["--best"], True)])
def test_eval_takes_the_checkpoint_that_was_asked_for(tmp_path, monkeypatch, capsys, options, best):
    job = "dataset: a.zarr\nalgorithm: {name: bc}\nnum_steps: 5\nrun: r\nevaluation: {environment: Pendulum-v1}\n"
    (tmp_path / "job.yaml").write_text(job)

    def find_checkpoint(run, *, best=False):
        raise LearnerError(f"best {best}")

    monkeypatch.setattr("dask_rl.pipeline.runs.trained_policy.find_checkpoint", find_checkpoint)
    assert run(["eval", str(tmp_path), *options]) == 1
    assert capsys.readouterr().err == f"error: best {best}\n"


def test_a_table_is_readable():
    rows = {"many": list(range(9)), "a": 1.23456789, "long_name": [1, 2], "nothing": None, "facts": {"x": 0.5}}
    assert table(rows).splitlines() == [
        "many       0, 1, 2, 3, 4, 5, … (9 values)",
        "a          1.23457",
        "long_name  1, 2",
        "nothing    none",
        "facts      x: 0.5",
    ]
