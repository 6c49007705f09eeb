"""A group without a client starts workers of its own, and takes them along when it ends, in whatever way."""

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import psutil
import pytest
from own_workers import whole_life

pytestmark = pytest.mark.storm
SUPPORT = Path(__file__).parent.parent / "support"
NEVER_SHUT_DOWN = """
import sys
import psutil
from own_workers import begun

if __name__ == "__main__":
    group = begun(2)
    print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
    sys.exit(5)
"""


@pytest.mark.parametrize("fate", ["idle", "killed", "replaced"])
def test_nothing_of_its_workers_is_left(fate):
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as process:  # which has no client of a test's
        assert process.submit(whole_life, fate).result(timeout=120) == {}


def test_a_process_ends_with_a_group_that_nobody_shut_down(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(NEVER_SHUT_DOWN)
    environment = os.environ | {"PYTHONPATH": str(SUPPORT)}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=False, env=environment
    )
    assert done.returncode == 5, done.stderr
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) >= 2
    left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    assert not psutil.wait_procs(left, timeout=20)[1]  # multiprocessing's resource tracker ends after its process
