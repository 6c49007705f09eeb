"""--log-format json: every line on stderr is a record, whoever wrote it; stdout and exit codes stay as they are."""

import json
import os
import signal
import subprocess
import sys
from datetime import datetime

import pytest
from run_commands import TIMEOUT_SECONDS, wait_for

from dask_rl.pipeline.runs.logs import current_records, records_on_stderr
from dask_rl.pipeline.runs.progress import make_progress
from dask_rl.pipeline.views.cli import run

pytestmark = pytest.mark.service

NOISE = """
import logging, os, sys, warnings
print("a line of its own", file=sys.stderr)
warnings.warn("mind the gap")
logging.getLogger("noise").error("it creaks", exc_info=ValueError("loudly"))
os.system("echo from a shell >&2")
os.write(2, b"torn, and not even text: \\xff")
"""


def start(*arguments, **options):
    command = [sys.executable, "-m", "dask_rl", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **pipes, start_new_session=True, **options)


def dask_rl(*arguments, **options):
    process = start(*arguments, **options)
    stdout, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
    return process.returncode, stdout, stderr


def records(stderr):
    """All of stderr, every line of which must be a record."""
    found = []
    for line in stderr.splitlines():
        record = json.loads(line)
        assert list(record) == ["time", "level", "event", "fields"]
        assert datetime.fromisoformat(record["time"]).utcoffset().total_seconds() == 0
        assert record["level"] in ("debug", "info", "warning", "error", "critical")
        found.append(record)
    return found


def write_job(folder, dataset, **settings):
    job = {"dataset": str(dataset), "algorithm": {"name": "bc", "hidden_sizes": [8]}, "batch_size": 16, "num_steps": 50}
    file = folder / "job.yaml"
    file.write_text(json.dumps(job | {"run": str(folder / "run")} | settings))
    return file


@pytest.mark.slow
def test_a_run_with_a_learner_of_its_own_and_much_noise(feed_dataset, tmp_path):
    (tmp_path / "noise.py").write_text(NOISE)
    cluster = {"kind": "local", "log_level": "info"}
    job = write_job(tmp_path, feed_dataset, imports=["noise"], learners={"num_learners": 1}, cluster=cluster)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    code, stdout, stderr = dask_rl("train", job, "--json", "--log-format", "json", cwd=tmp_path, env=environment)
    assert code == 0, stderr
    assert json.loads(stdout)["num_steps"] == 50
    found = records(stderr)
    logs = {r["fields"]["logger"]: r for r in found if r["event"] == "log"}
    assert "mind the gap" in logs["py.warnings"]["fields"]["message"]
    assert logs["py.warnings"]["level"] == "warning"
    assert logs["noise"]["level"] == "error"
    assert "ValueError: loudly" in logs["noise"]["fields"]["traceback"]
    assert any(name.startswith("distributed.") for name in logs), sorted(logs)
    texts = [r["fields"]["text"] for r in found if r["event"] == "output"]
    assert "a line of its own" in texts
    assert "from a shell" in texts
    assert any(text.startswith("torn, and not even text: \ufffd") for text in texts)
    last = [r for r in found if r["event"] == "progress"][-1]["fields"]
    assert (last["activity"], last["done"], last["total"], last["unit"]) == ("train", 50, 50, "steps")
    assert last["loss"] > 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["data", "info", "/nope.zarr", "--log-format", "json"], 1, "/nope.zarr"),
        (["--log-format", "json", "data", "info", "/nope.zarr"], 1, "/nope.zarr"),
        (["train", "--log-format=json"], 2, "Missing argument 'JOB.yaml'"),
        (["nonsense", "--log-format", "json"], 2, "No such command 'nonsense'"),
        (["train", "/nope.yaml", "--log-format", "json"], 2, "job file: got /nope.yaml"),
    ],
)
def test_errors_are_records_with_their_exit_code(arguments, code, words, capfd):
    assert run(arguments) == code
    stdout, stderr = capfd.readouterr()
    (record,) = records(stderr)
    assert stdout == ""
    assert (record["level"], record["event"], record["fields"]["exit_code"]) == ("error", "error", code)
    assert words in record["fields"]["message"]
    assert "traceback" not in record["fields"]


def test_debug_adds_the_traceback_to_the_record():
    code, _, stderr = dask_rl("data", "info", "/nope.zarr", "--debug", "--log-format", "json")
    (record,) = records(stderr)
    assert code == 1
    assert "DatasetNotFoundError" in record["fields"]["traceback"]


def test_an_unknown_format_is_wrong_usage(capfd):
    assert run(["data", "info", "x", "--log-format", "xml"]) == 2
    assert "Invalid value for '--log-format'" in capfd.readouterr().err


@pytest.mark.slow
def test_a_run_that_is_stopped_ends_with_3_and_no_line_that_is_none(feed_dataset, tmp_path):
    job = write_job(
        tmp_path, feed_dataset, num_steps=100_000, learners={"compile": "off"}, checkpoint={"every_steps": 100}
    )
    process = start("train", job, "--log-format", "json", "--json")
    wait_for(lambda: (tmp_path / "run/checkpoints/latest").exists() or process.poll() is not None, "a checkpoint")
    os.killpg(process.pid, signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 3, stderr
    assert json.loads(stdout)["num_steps"] >= 100
    assert records(stderr)[-1]["event"] == "progress"


def test_records_keep_their_order_and_text_returns_afterwards(capfd):
    with records_on_stderr() as stream:
        assert current_records() is stream
        with make_progress("count", 3, "sheep") as progress:
            progress.note("one is black")
            progress.update(3, loss=float("nan"))
    subprocess.run(["sh", "-c", "echo text >&2"], check=True)
    lines = capfd.readouterr().err.splitlines()
    note, done = records("\n".join(lines[:-1]))
    assert note["fields"] == {"activity": "count", "message": "one is black"}
    assert (done["fields"]["done"], done["fields"]["loss"]) == (3, None)
    assert lines[-1] == "text"
    assert current_records() is None


def test_much_output_of_many_lines_is_complete(capfd):
    """More than a pipe holds, and a line that is longer than a record may be."""
    code = (
        "import sys; [print(i, 'x' * 99, file=sys.stderr) for i in range(20000)]; print('y' * 100_000, file=sys.stderr)"
    )
    with records_on_stderr():
        subprocess.run([sys.executable, "-c", code], check=True)
    texts = [record["fields"]["text"] for record in records(capfd.readouterr().err)]
    assert [int(text.split()[0]) for text in texts[:20000]] == list(range(20000))
    assert "".join(texts[20000:]) == "y" * 100_000


def test_records_of_a_command_that_was_started_by_this_one_are_passed_on_as_they_are(capfd):
    with records_on_stderr():
        command = [sys.executable, "-m", "dask_rl", "data", "info", "/nope.zarr", "--log-format", "json"]
        assert subprocess.run(command, check=False).returncode == 1
    (record,) = records(capfd.readouterr().err)
    assert record["event"] == "error"
