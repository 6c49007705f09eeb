"""Files damaged at random, and sound ones with odd values: refused in one line without a trace, or read as they are."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.data

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.mark.parametrize(
    ("what", "seed", "seconds", "cases"),
    [
        ("import", 0, 3, 30),
        ("open", 0, 3, 100),
        ("values", 0, 5, 60),
        *(pytest.param("import", seed, 150, 2000, marks=pytest.mark.storm) for seed in (1, 2)),
        *(pytest.param("open", seed, 100, 5000, marks=pytest.mark.storm) for seed in (1,)),
        *(pytest.param("values", seed, 150, 8000, marks=pytest.mark.storm) for seed in (1, 2)),
    ],
)
def test_no_crash_no_hang_no_partial_dataset(sample_data, tmp_path, what, seed, seconds, cases):
    program = ["fuzzed_values.py"] if what == "values" else ["fuzzed_files.py", what, str(sample_data)]
    command = [sys.executable, "-W", "error::RuntimeWarning", str(SUPPORT / program[0]), *program[1:]]
    command += [str(tmp_path), str(seed), str(seconds), str(cases)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 240)
    now = (tmp_path / "now").read_text() if (tmp_path / "now").exists() else "before the first case"
    assert result.returncode == 0, f"{now}: ended with {result.returncode}\n{result.stderr[-4000:]}"
    ends = json.loads(result.stdout)
    assert ends.get("refused"), ends
    assert ends.get("imported") or what != "values", ends
