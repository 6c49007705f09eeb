"""A dataset that is replaced while a run reads it: never half of each."""

import json

import pytest
from job_cases import TIMEOUT_SECONDS, wait_for, write_small_dataset
from run_commands import has_checkpoint_beyond

TIME = "2027-01-01T02:00:00Z"


@pytest.mark.storm
@pytest.mark.parametrize(
    ("data", "status"),
    [({"resident": True}, "complete"), ({"resident": False, "block_rows": 16, "window_rows": 64}, "failed")],
    ids=["in memory", "streamed"],
)
def test_a_run_goes_on_with_what_it_has_or_fails(jobs, tmp_path, data, status):
    """What is in memory is used to its end. Streamed, with more files than stay open, the next one is missed."""
    jobs.dataset = write_small_dataset(tmp_path / "data.zarr", num_episodes=100, shard_rows=16)
    new = write_small_dataset(tmp_path / "new.zarr", 1.0, num_episodes=100, shard_rows=16)
    job = jobs.write(num_steps=4000, data=data, num_shards=1, batch={"max_retries": 1})
    exec_ = jobs.start("exec", job, "--time", TIME)
    run = jobs.base() / TIME.replace(":", "-")
    wait_for(lambda: has_checkpoint_beyond(run, 20) or exec_.poll() is not None, "a checkpoint")
    jobs.dataset.rename(tmp_path / "before.zarr")
    new.rename(jobs.dataset)
    output = exec_.communicate(timeout=TIMEOUT_SECONDS)[0]
    (record,) = jobs.history()
    assert record.status == status, output
    facts = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    assert list(record.datasets.values()) == [facts["content_hash"]]
    if status == "failed":
        assert "got another file than when it was opened; allowed: a dataset that stays as it is while it is" in output
        assert "which was asked for; restore that dataset, or start anew" in record.message
