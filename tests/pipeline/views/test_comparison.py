"""The report that compares runs: one file, each run with a line of its own, what differs said in words."""

import html.parser
import json
import re

import pytest

from dask_rl.pipeline.runs.run_directory import RunDirectory
from dask_rl.pipeline.views.cli import run as command
from dask_rl.pipeline.views.comparison import write_comparison
from dask_rl.storage.errors import ConfigError, RunStateError


class Tables(html.parser.HTMLParser):
    """The tables of a page, cell by cell, and every attribute."""

    def __init__(self, page):
        super().__init__()
        self.tables, self.attributes, self.headings, self.open = [], [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        self.attributes += [(tag, name, value) for name, value in attributes]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag in ("h1", "h2", "h3"):
            self.headings.append("")

    def handle_endtag(self, tag):
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def handle_data(self, data):
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += " ".join(data.split())
        elif self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.headings[-1] += data


@pytest.fixture
def make_run(tmp_path):
    def make(name, rate, environment="Pendulum-v1", content_hash="abc", complete=True, **job):
        run = RunDirectory(tmp_path / name)
        with run.locked():
            settings = {"dataset": "d.zarr", "algorithm": {"name": "iql", "learning_rate": rate}, "num_steps": 200}
            run.job_file.write_text(json.dumps(settings | {"run": str(run.path)} | job))
            facts = {"num_steps": 800, "return_mean": -500.0, "content_hash": content_hash}
            run.append("dataset", 0, facts)
            for step in (50, 100, 150, 200):
                run.append("train", step, {"policy_loss": rate / step, "steps_per_second": 100.0 + step})
            for step, mean in ((100, -300.0), (200, -400.0 * rate)):
                values = {"environment": environment, "return_mean": mean, "return_standard_error": 12.5}
                run.append("evaluation", step, values)
            if complete:
                run.result_file.write_text("{}")
        return run

    return make


def compare(runs, tmp_path):
    page = write_comparison(runs, tmp_path / "page.html").read_text()
    return page, Tables(page)


def test_runs_stand_side_by_side_and_what_differs_is_named(make_run, tmp_path):
    runs = [make_run("slow", 0.1), make_run("fast", 1.0, complete=False, seed=3)]
    page, shown = compare(runs, tmp_path)
    overview, differences, datasets = shown.tables
    assert overview[1:] == [
        ["", "slow", "iql", "200 of 200", "250", "-40.0 ± 12.5", "-40.0 ± 12.5 at step 200"],
        ["", "fast", "iql", "200 of 200, incomplete", "250", "-400.0 ± 12.5", "-300.0 ± 12.5 at step 100"],
    ]
    assert differences == [["", "slow", "fast"], ["algorithm.learning_rate", "0.1", "1"], ["seed", "unset", "3"]]
    assert ["num_steps", "800", "800"] in datasets
    assert shown.headings == [
        *("2 runs compared", "What differs between their jobs", "Learning and throughput"),
        *("Evaluation: Pendulum-v1", "Learning curve: policy_loss", "Throughput", "Datasets"),
    ]
    assert page.count("<!-- slow -->") == page.count("<!-- fast -->") == 3  # in the legend of every figure
    for label in ("step", "mean return ± std. error", "policy_loss", "steps per second", "mean of the data"):
        assert f"<!-- {label} -->" in page
    outside = [a for a in shown.attributes if a[1] in ("src", "href", "xlink:href") and not a[2].startswith("#")]
    assert outside == []
    assert not re.search(r"@import|url\((?!#)|<script|<!DOCTYPE svg|<\?xml", page)


def test_every_run_has_a_line_of_its_own(make_run, tmp_path):
    page, _ = compare([make_run(f"run{number}", 0.1) for number in range(9)], tmp_path)
    lines = re.findall(r'<line x1="0".*?stroke="(.*?)".*?stroke-dasharray="(.*?)"', page)
    assert len(set(lines[:9])) == 9
    for color, _ in lines[:7]:  # the curves have the colours of the table
        assert page.count(f"stroke: {color}") >= 3


def test_runs_of_one_name_are_told_apart_and_other_data_are_marked(make_run, tmp_path):
    runs = [make_run("a/run", 0.1), make_run("b/run", 0.1, content_hash="xyz")]
    page, shown = compare(runs, tmp_path)
    assert [row[1] for row in shown.tables[0][1:]] == ["a/run", "b/run"]
    assert "Nothing but their directories." in page
    marked = re.findall(r'<tr class="differs"><th>(.*?)</th>', page)
    assert marked == ["content_hash"]


def test_returns_of_different_environments_are_not_drawn_together(make_run, tmp_path):
    page, shown = compare([make_run("a", 0.1), make_run("b", 0.1, environment="CartPole-v1")], tmp_path)
    assert [text for text in shown.headings if "Evaluation" in text] == [
        *("Evaluation: CartPole-v1", "Evaluation: Pendulum-v1")
    ]
    cart, pendulum = (part for part in page.split("<h3>") if part.startswith("Evaluation"))
    assert ("<!-- a -->" in cart, "<!-- b -->" in cart) == (False, True)
    assert ("<!-- a -->" in pendulum, "<!-- b -->" in pendulum) == (True, False)


def test_names_are_shown_as_they_are_and_run_nothing(make_run, tmp_path):
    names = ["<script>alert(1)<", "_hidden", "$x$^", "政策"]
    page, shown = compare([make_run(name, 0.1) for name in names], tmp_path)
    assert [row[1] for row in shown.tables[0][1:]] == names
    assert "<script" not in page
    assert page.count("<!--  _hidden -->") == 3


def test_runs_that_have_just_begun_can_be_compared(tmp_path):
    runs = []
    for name in ("a", "b"):
        run = RunDirectory(tmp_path / name)
        with run.locked():
            run.job_file.write_text("num_steps: 5\nalgorithm: {name: bc}\n")
        runs.append(run)
    page, shown = compare(runs, tmp_path)
    assert "No metrics yet." in page
    assert "No facts recorded." in page
    assert shown.tables[0][1][1:4] == ["a", "bc", "0 of 5, incomplete"]


def test_a_run_twice_or_none_is_refused(make_run, tmp_path):
    run = make_run("a", 0.1)
    with pytest.raises(ConfigError, match=r"runs to compare: got .*/a twice; allowed: each once"):
        compare([run, RunDirectory(tmp_path / "a/../a")], tmp_path)
    with pytest.raises(RunStateError, match=r"holds no job\.yaml"):
        compare([run, RunDirectory(tmp_path / "none")], tmp_path)


def test_the_command_writes_where_it_is_told(make_run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    paths = [str(make_run(name, 0.1).path) for name in ("a", "b")]
    assert command(["report", *paths, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"report": "comparison.html"}
    assert "2 runs compared" in (tmp_path / "comparison.html").read_text()
    assert command(["report", *paths, "--output", "x.html"]) == 0
    assert command(["report", paths[0], "--output", "one.html"]) == 0
    assert capsys.readouterr().out == "x.html\none.html\n"
    assert "a · dask-rl" in (tmp_path / "one.html").read_text()
    assert not (tmp_path / "a/report.html").exists()
    assert command(["report", *paths, "--output", "none/x.html"]) == 1
