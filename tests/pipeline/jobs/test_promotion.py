"""Which run is in use: never worse than before, replaced in one step."""

import json
import subprocess
import sys

import pytest

from dask_rl.pipeline.jobs.promotion import Verdict, current_run, initial_weights, judge, promote
from dask_rl.pipeline.jobs.run_results import dataset_hashes
from dask_rl.pipeline.runs.batch_config import BatchConfig
from dask_rl.storage.checkpoints.store import CheckpointStore
from dask_rl.storage.errors import RunStateError

pytestmark = pytest.mark.service

BETTER = BatchConfig(keep_if="better")


@pytest.fixture
def base(tmp_path):
    """Two runs, of which the first is in use."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    promote(tmp_path / "first")
    return tmp_path


def evaluated(run, return_mean, environment="CartPole-v1"):
    evaluation = {"environment": environment, "return_mean": return_mean}
    (run / "result.json").write_text(json.dumps({"evaluation": evaluation}))
    return evaluation


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (1.0, 2.0, None),
        (1.0, 1.0, None),
        (1.0, 0.5, "not promoted: return 0.5 after 1 of first"),
        (1.0, None, "not promoted: return none after 1 of first"),
        (None, 0.5, None),
        (None, None, None),
    ],
)
def test_only_a_policy_that_is_not_worse_is_promoted(base, before, after, reason):
    evaluated(base / "first", before)
    evaluated(base / "second", after)
    assert judge(BETTER, base / "second") == Verdict(reason is None, reason)
    assert judge(BatchConfig(), base / "second") == Verdict(True)


def test_what_cannot_be_compared_is_promoted(base):
    evaluated(base / "second", 1.0)
    evaluated(base / "first", 2.0, "Pendulum-v1")
    assert judge(BETTER, base / "second") == Verdict(True)
    (base / "first" / "result.json").unlink()
    (base / "first").rmdir()  # by somebody who tidied up
    assert current_run(base) is None
    assert judge(BETTER, base / "second") == Verdict(True)


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("[]", ""),
        ("{", ""),
        ('{"evaluation": {"return_mean": "high", "environment": "CartPole-v1"}}', "evaluation.return_mean"),
        ('{"evaluation": {"return_mean": NaN, "environment": "CartPole-v1"}}', "evaluation.return_mean"),
        ('{"evaluation": {"return_mean": true, "environment": "CartPole-v1"}}', "evaluation.return_mean"),
        ('{"evaluation": "x"}', "evaluation"),
        ('{"weights_hash": 1}', "weights_hash"),
    ],
)
def test_a_damaged_result_is_named_and_is_no_bar_for_the_next_run(base, content, place):
    evaluated(base / "second", 1.0)
    (base / "first" / "result.json").write_text(content)
    verdict = judge(BETTER, base / "second")
    assert verdict.is_promoted
    assert verdict.reason.startswith(f"promoted without a comparison: {base}/first/result.json: got something else")
    assert place in verdict.reason
    with pytest.raises(RunStateError, match=r"first/result\.json"):
        judge(BatchConfig(), base / "first")


@pytest.mark.parametrize(
    "facts",
    [
        '{"modules": [1]}',
        '{"modules": {"a": "b"}}',
        '{"path": 1, "content_hash": "x"}',
        '{"path": "x"}',
    ],
)
def test_damaged_facts_about_datasets_are_none(base, facts):
    row = json.dumps({"version": 1, "run": "first", "step": 0, "time": 0, "kind": "dataset", **json.loads(facts)})
    (base / "first" / "metrics.jsonl").write_text(row + "\n")
    assert dataset_hashes(base / "first") == {}


def test_a_run_that_is_in_use_already_stays(base):
    """Its process was killed after the promotion, and it is looked at again."""
    evaluated(base / "first", 1.0)
    assert judge(BETTER, base / "first") == Verdict(True)


def test_whoever_looks_sees_the_old_or_the_new_run(base):
    """Never none: the link is replaced, not removed."""
    code = "import os, sys\nwhile True: sys.argv[2] == os.readlink(sys.argv[1])"
    with subprocess.Popen([sys.executable, "-c", code, base / "current", ""], stderr=subprocess.PIPE) as looking:
        for _ in range(500):
            promote(base / "second")
            promote(base / "first")
        looking.kill()
        assert looking.communicate()[1] == b""
    assert sorted(path.name for path in base.iterdir()) == ["current", "first", "second"]


def test_current_may_be_moved_with_its_directory(base):
    base.rename(base.with_name("elsewhere"))
    assert current_run(base.with_name("elsewhere")) == base.with_name("elsewhere") / "first"
    base.with_name("elsewhere").rename(base)


def test_a_current_that_is_no_link_is_refused(base):
    (base / "current").unlink()
    (base / "current").mkdir()
    with pytest.raises(RunStateError, match="current: got something that is no link"):
        current_run(base)


def test_a_run_begins_with_the_last_checkpoint_of_the_one_in_use(base):
    previous = BatchConfig(initialize_from="previous")
    assert initial_weights(previous, base) is None  # it has none
    path = CheckpointStore(base / "first" / "checkpoints").save(3, {"x": 1}, {})
    assert initial_weights(previous, base) == str(path)
    assert initial_weights(BatchConfig(), base) is None
    assert initial_weights(BatchConfig(initialize_from="some/run"), base) == "some/run"
    (base / "current").unlink()
    assert initial_weights(previous, base) is None
