import os

import pytest
from job_cases import Jobs


@pytest.fixture(autouse=True)
def _own_home(monkeypatch, tmp_path):
    """No test may touch the home of whoever runs it."""
    monkeypatch.setenv("DASK_RL_HOME", str(tmp_path / "default-home"))
    assert os.environ["DASK_RL_HOME"]


@pytest.fixture
def jobs(tmp_path, feed_dataset):
    made = Jobs(tmp_path / "a place", feed_dataset)
    yield made
    made.close()
