"""README's section on jobs, followed word by word in a fresh directory."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from job_cases import TIMEOUT_SECONDS, wait_for

from dask_rl.pipeline.jobs.history import History
from dask_rl.pipeline.rollouts.collect import CollectConfig, collect
from dask_rl.pipeline.runs.trained_policy import load_policy

SECTION = re.search(
    r"^## Again and again\n(.*?)^## ", (Path(__file__).parents[3] / "README.md").read_text(), re.DOTALL | re.MULTILINE
)


def blocks(language: str) -> list[str]:
    assert SECTION is not None
    return re.findall(rf"^```{language}\n(.*?)^```$", SECTION[1], re.DOTALL | re.MULTILINE)


@pytest.mark.storm
def test_the_section_works_word_by_word(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    monkeypatch.setenv("DASK_RL_HOME", str(home))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    collect(CollectConfig(environment="Pendulum-v1", num_episodes=4, policy="pendulum-swing-up"), "pendulum.zarr")
    job = blocks("yaml")[0]
    name = re.match(r"# (\S+)\n", job)[1]
    Path(name).write_text(job)
    lines = "".join(blocks("console")).splitlines()
    assert any(line.startswith("dask-rl jobs exec") for line in lines)
    server = None

    def records():
        return History(home / "jobs.sqlite").latest()[::-1]

    try:
        for line in lines:
            if " render " in line or " stop " in line:
                continue  # tested where it is made; nothing is at work here
            if line == "dask-rl jobs serve":
                server = subprocess.Popen(line, shell=True, start_new_session=True)
                continue
            done = subprocess.run(
                line, shell=True, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
            )
            assert done.returncode == 0, (line, done.stdout, done.stderr)
            if " run-now " in line:
                wait_for(lambda: records() and not records()[-1].is_open, "the run")
        first, second = records()
        assert (first.status, first.promoted, first.message) == ("complete", True, None)
        assert (second.status, second.message) == ("skipped", "no dataset has changed")  # by exec, once more
        assert Path(first.run, "report.html").is_file()
        assert load_policy("runs/nightly/current") is not None
        assert not Path("failures.txt").exists()
    finally:
        if server is not None:
            os.killpg(server.pid, signal.SIGTERM)
            assert server.wait(TIMEOUT_SECONDS) in (0, -signal.SIGTERM)
