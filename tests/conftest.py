"""Fixtures and settings that all tests share."""

import faulthandler
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from dask_rl.pipeline.runs.clusters.config import ClusterConfig
from dask_rl.pipeline.runs.clusters.opened import open_cluster

# Timing is no property of the code: machines that run tests are busy. The examples are the same in every run.
settings.register_profile(
    "dask-rl",
    deadline=None,
    derandomize=True,
    max_examples=50,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
# More examples, other ones each time: HYPOTHESIS_PROFILE=explore
settings.register_profile("explore", settings.get_profile("dask-rl"), derandomize=False, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dask-rl"))

# Shells have what they start in the background ignore it, and so would all processes of the tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A test that hangs shows its stacks on `kill -USR1`; pytest's own faulthandler_timeout ends it.
if sys.__stderr__ is not None:
    faulthandler.register(signal.SIGUSR1, file=sys.__stderr__, all_threads=True)


@pytest.fixture(scope="session")
def sample_data() -> Path:
    """The folder of real files, named by DASK_RL_SAMPLE_DATA."""
    folder = os.environ.get("DASK_RL_SAMPLE_DATA")
    if not folder:
        pytest.skip("DASK_RL_SAMPLE_DATA is not set")
    path = Path(folder).resolve()
    if not path.is_dir():
        pytest.fail(f"DASK_RL_SAMPLE_DATA: got {path}, which is no directory; set it to the folder of sample files.")
    return path


@pytest.fixture(scope="session")
def cluster_client():
    """A client of two spawned worker processes, set up as for learners; one cluster for the whole session."""
    with open_cluster(ClusterConfig(log_level="critical"), num_workers=2) as client:
        yield client
