"""The report: one file, nothing from outside, everything escaped."""

import html.parser
import re

import pytest

from dask_rl.pipeline.runs.run_directory import RunDirectory
from dask_rl.pipeline.views.report import write_report
from dask_rl.storage.errors import RunStateError

JOB = """
dataset: <b>evil</b>.zarr
algorithm: {name: iql, learning_rate: 0.0003}
num_steps: 200
evaluation: null
"""
VOID = {"meta", "br", "img", "link", "hr"}


class Checker(html.parser.HTMLParser):
    """Collects text and sources, and fails on tags that do not nest."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.attributes = [], [], []

    def handle_starttag(self, tag, attributes):
        self.attributes += [(tag, name, value) for name, value in attributes]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture
def run(tmp_path):
    directory = RunDirectory(tmp_path / "pendulum-iql")
    with directory.locked():
        directory.job_file.write_text(JOB)
    return directory


def fill(run):
    run.append(
        "dataset",
        0,
        {
            "num_steps": 16231,
            "return_mean": -143.5,
            "environment": "Pendulum-v1",
            "ref_scores": None,
            "length_mean": 100 / 3,
        },
    )
    for step in (50, 100, 150, 200):
        split = {"data_wait_seconds": 0.01, "compute_seconds": 0.8, "collective_seconds": 0.2}
        losses = {"default_module/value_loss": 1 / step, "default_module/policy_loss": None}
        run.append("train", step, {"steps_per_second": 50.0 + step} | split | losses)
    run.append("evaluation", 100, {"return_mean": -900.0, "return_standard_error": 30.0, "num_episodes": 20})
    run.append(
        "evaluation",
        200,
        {"return_mean": -151.25, "return_standard_error": None, "num_episodes": 1, "normalized_score": 91.0},
    )
    run.append("event", 120, {"name": "learner lost", "rank": 1, "error": "<script>alert(1)</script>"})


def check(path):
    page = path.read_text()
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    return page, " ".join(" ".join(checker.text).split()), checker.attributes


def test_a_full_run_is_told_in_one_self_contained_page(run):
    fill(run)
    page, text, attributes = check(write_report(run))
    assert page.count("<svg") == 3  # evaluation, the one loss with numbers, throughput
    for words in (
        "pendulum-iql",
        "iql",
        "200 of 200",
        "-151.2",
        "91.0",
        "16231",
        "Pendulum-v1",
        "learner lost",
        "ref_scores none",
        "33.3333 ",
    ):
        assert words in text
    assert "Learning curve: default_module/value_loss" in text
    assert "policy_loss" not in text
    assert "algorithm.learning_rate" in text
    outside = [a for a in attributes if a[1] in ("src", "href", "xlink:href") and not a[2].startswith("#")]
    assert outside == []
    assert not re.search(r"@import|url\((?!#)|<script|<!DOCTYPE svg|<\?xml", page)


def test_a_run_of_several_modules_tells_of_each(run):
    run.job_file.write_text("dataset: {b: b.zarr, a: a.zarr}\nalgorithm: {name: bc}\nmodules: {b: {name: iql}}\n")
    facts = {"a": {"num_steps": 111}, "b": {"num_steps": 222, "return_mean": 7.5}}
    run.append("dataset", 0, {"modules": facts})
    run.append("train", 50, {"a/total_loss": 1.0, "b/value_loss": 2.0, "a/epoch": 0.5})
    run.append("evaluation", 50, {"module_id": "b", "return_mean": 6.0, "num_episodes": 2})
    page, text, _ = check(write_report(run))
    assert "a: bc, b: iql" in text
    assert page.count("<svg") == 3
    for words in ("Learning curve: a/total_loss", "Learning curve: b/value_loss", "modules.a.num_steps 111"):
        assert words in text
    assert "step module environment episodes" in text
    assert "50 b 2 6.00" in text
    assert "<!-- mean of the data -->" in page  # of b's, as a's is not known


def test_what_users_write_is_escaped(run):
    fill(run)
    page, text, _ = check(write_report(run))
    assert "<b>evil" not in page
    assert "<b>evil</b>.zarr" in text
    assert "<script>alert(1)</script>" in text


def test_a_run_that_has_just_begun_has_a_report_too(run):
    _, text, _ = check(write_report(run))
    assert "No metrics yet." in text
    run.append("train", 10, {"loss": 1.0, "compute_seconds": 1.0})
    page, _, _ = check(write_report(run))
    assert page.count("<svg") == 2


def test_a_policy_whose_returns_are_not_finite_has_a_report_too(run):
    run.append("evaluation", 100, {"return_mean": -900.0, "return_standard_error": 30.0, "num_episodes": 20})
    run.append("evaluation", 200, {"return_mean": float("nan"), "return_standard_error": None, "num_episodes": 1})
    _, text, _ = check(write_report(run))
    assert "Mean return not finite" in text
    assert "normalised score" not in text


@pytest.mark.parametrize("damage", [b"", b"[1", b"\x8a\x00"])
def test_a_damaged_job_is_refused(run, damage):
    run.job_file.write_bytes(damage)
    with pytest.raises(RunStateError, match=r"job\.yaml: got no job; allowed: what the run wrote there; restore it"):
        write_report(run)


def test_a_directory_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunStateError, match=r"holds no job\.yaml"):
        write_report(RunDirectory(tmp_path))
