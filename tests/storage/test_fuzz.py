"""Real files that were damaged at random: refused in one line and without a trace, or imported and read as they are."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.data

PROGRAM = Path(__file__).parents[1] / "support/fuzzed_files.py"


@pytest.mark.parametrize(
    ("what", "seed", "seconds", "cases"),
    [
        ("import", 0, 3, 30),
        ("open", 0, 3, 100),
        *(pytest.param("import", seed, 150, 2000, marks=pytest.mark.storm) for seed in (1, 2)),
        *(pytest.param("open", seed, 100, 5000, marks=pytest.mark.storm) for seed in (1,)),
    ],
)
def test_no_crash_no_hang_no_partial_dataset(sample_data, tmp_path, what, seed, seconds, cases):
    command = [
        sys.executable,
        "-W",
        "error::RuntimeWarning",
        str(PROGRAM),
        what,
        str(sample_data),
        str(tmp_path),
        str(seed),
        str(seconds),
        str(cases),
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 240)
    now = (tmp_path / "now").read_text() if (tmp_path / "now").exists() else "before the first case"
    assert result.returncode == 0, f"{now}: ended with {result.returncode}\n{result.stderr[-4000:]}"
    ends = json.loads(result.stdout)
    assert ends.get("refused"), ends
