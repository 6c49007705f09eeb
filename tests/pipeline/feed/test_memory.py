"""Data that is larger than the memory it may take, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from dask_rl.storage.episode import Episode
from dask_rl.storage.writer import DatasetWriter

pytestmark = pytest.mark.data

BUDGET_BYTES = 40 * 2**20
EPISODE_STEPS, FRAME = 400, (32, 32)
SEQUENCES = {"sampler": "sequences", "sequence_length": 20, "frame_stack": 4}
SCRIPT = Path(__file__).parents[2] / "support" / "feed_memory.py"


def write_frames(path: Path, num_bytes: int) -> Path:
    space, actions = gymnasium.spaces.Box(0, 255, FRAME, np.uint8), gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (2 * EPISODE_STEPS, *FRAME), np.uint8)
    flags = np.zeros(EPISODE_STEPS, np.bool_)
    with DatasetWriter(path, observation_space=space, action_space=actions) as writer:
        for number in range(num_bytes // noise[0].nbytes // EPISODE_STEPS + 1):
            first = number % EPISODE_STEPS
            writer.add_episode(
                Episode(
                    observations=noise[first : first + EPISODE_STEPS + 1] + np.uint8(number % 251),
                    actions=rng.uniform(-1, 1, (EPISODE_STEPS, 2)).astype(np.float32),
                    rewards=rng.normal(size=EPISODE_STEPS).astype(np.float32),
                    terminations=flags,
                    truncations=np.arange(EPISODE_STEPS) == EPISODE_STEPS - 1,
                )
            )
    return path


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A dataset of ten times the budget, and a small one."""
    path = tmp_path_factory.mktemp("memory")
    return write_frames(path / "large.zarr", 10 * BUDGET_BYTES), write_frames(path / "small.zarr", 2**20)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "case",
    [
        {"sampling": {}},
        {"sampling": {}, "num_shards": 1},
        {"sampling": {"sampler": "uniform", "n_step": 5, "frame_stack": 4}},
        {"sampling": SEQUENCES},
        {"sampling": SEQUENCES, "batch_size": 80, "num_shards": 1},
    ],
)
def test_streaming_stays_within_its_budget_and_gives_what_is_resident(
    datasets: tuple[Path, Path], case: dict[str, Any]
) -> None:
    command = [sys.executable, str(SCRIPT), *map(str, datasets), str(BUDGET_BYTES), "150", json.dumps(case)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["checksum"] == result["resident_checksum"]
    assert 0.4 * BUDGET_BYTES < result["peak_bytes"] < 1.2 * BUDGET_BYTES
