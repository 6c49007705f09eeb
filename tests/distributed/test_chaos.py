"""A short storm: a learner killed, one stopped, one paused; the long one is `make chaos`."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "chaos.py"


@pytest.mark.service
def test_random_faults_do_not_change_a_bit():
    command = [sys.executable, str(SCRIPT), "--faults", "4", "--steps-per-fault", "75", "--seed", "1"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "4 of 4 faults struck in 300 steps" in run.stdout
    assert ": equal" in run.stdout
