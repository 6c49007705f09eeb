"""The learners page in a real browser, while a run trains, loses a learner and goes on."""

import json
import os
import signal
from pathlib import Path

import pytest
from browser import Browser, needs_chromium
from dashboards import address_of, fetch_json, wait_until
from distributed import Client, LocalCluster
from group_cases import SPEC, group_config
from run_messages import begin, row

from dask_rl.learners.group import LearnerGroup
from dask_rl.pipeline.dashboard import TOPIC, install
from dask_rl.pipeline.runs.clusters.config import ClusterConfig
from dask_rl.pipeline.runs.clusters.opened import open_cluster
from dask_rl.pipeline.runs.job import TrainJob
from dask_rl.pipeline.runs.train import train

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.service]
NUM_LEARNERS = 2
LOSSES = ("total_loss", "policy_loss", "value_loss", "critic_loss")


@pytest.fixture
def artefacts(tmp_path) -> Path:
    """Where screenshots go: a folder that DASK_RL_ARTEFACTS names, to be kept."""
    folder = Path(os.environ.get("DASK_RL_ARTEFACTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def client():
    """Two workers for the learners and a spare one, which makes a repair quick."""
    with open_cluster(ClusterConfig(num_workers=3), num_workers=NUM_LEARNERS) as client:
        yield client


def rows_of(run, kind):
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


def is_drawn(figure: str, count: int) -> str:
    return f"{count} <= ({FIRST_COLUMN % json.dumps(figure)})"


FIRST_COLUMN = """(() => {
  const figure = window.Bokeh?.documents[0]?.get_model_by_name(%s);
  const column = figure?.renderers.find((each) => each.data_source).data_source.get_array('xs')[0];
  return column === undefined ? 0 : column.length;
})()"""


def assert_legible(browser: Browser, width: int) -> None:
    """Nothing is wider than the window, and no letter smaller than 14 px."""
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    sizes = browser.evaluate("""(() => {
      const sizes = {};
      const look = (node) => {
        if (['SCRIPT', 'STYLE'].includes(node.nodeName) || node.classList?.contains('bk-Toolbar')) return;
        if (node.nodeType === 1 && [...node.childNodes].some((each) => each.nodeType === 3 && each.textContent.trim()))
          sizes[node.textContent.trim()] = parseFloat(getComputedStyle(node).fontSize);
        for (const each of [...(node.shadowRoot?.childNodes ?? []), ...node.childNodes]) look(each);
      };
      for (const each of document.querySelectorAll('.content')) look(each);
      const losses = Bokeh.documents[0].get_model_by_name('losses');
      for (const axis of [...losses.below, ...losses.left])
        sizes[axis.axis_label] = parseFloat(axis.major_label_text_font_size);
      return sizes;
    })()""")
    assert {"gradient step", "loss, mean over rows", "Learners"} <= set(sizes)
    assert {text: size for text, size in sizes.items() if size < 14} == {}


def test_the_page_shows_a_run_its_learners_a_loss_and_the_numbers_of_its_metrics(
    client, cartpole_dataset, tmp_path, artefacts
):
    address = address_of(client)
    with Browser() as browser:
        browser.open(address + "learners")
        browser.wait_for("window.Bokeh?.documents.length > 0")
        assert "No learners on this cluster yet" in browser.text
        job = TrainJob(
            dataset=str(cartpole_dataset),
            algorithm={"name": "iql", "hidden_sizes": [64, 64]},
            num_steps=20_000,
            batch_size=256,
            learners={"num_learners": NUM_LEARNERS, "compile": "off", "num_threads_per_learner": 1},
            evaluation={"environment": "CartPole-v1", "num_episodes": 3, "every_steps": 400},
            checkpoint={"every_steps": 400},
            run=str(tmp_path / "cartpole-iql"),
        )
        run = train(job, client=client, background=True)
        try:
            browser.wait_for(is_drawn("losses", 2))
            browser.wait_for(is_drawn("rates", 2))
            browser.wait_for(f"({STATUS})() === 'running'")
            assert_legible(browser, 1280)
            browser.screenshot(artefacts / "learners-while-training.png")

            kill_a_learner(address)
            browser.wait_for(f"({LOST})()")
            wait_until(lambda: [row for row in rows_of(run, "event") if row["name"] == "rejoined"], "the repair")
            browser.wait_for(is_drawn("losses", len(rows_of(run, "train")) + 1))
            browser.screenshot(artefacts / "learners-after-a-loss.png")
            assert_shows_the_loss(browser, run, address)
        finally:
            run.stop()
        browser.wait_for(f"({STATUS})() === 'interrupted'")
        assert_shows_the_numbers_of(browser, run)
        assert_groups_are_chosen(browser, client, artefacts)
        assert browser.problems == []


LOST = """() => Bokeh.documents[0].get_model_by_name('health').text.includes('>lost<')"""
STATUS = """() => /class='chip [a-z]+'>([a-z]+)</.exec(Bokeh.documents[0].get_model_by_name('heading').text)?.[1]"""


def kill_a_learner(address: str) -> None:
    [group] = fetch_json(address + "learners.json")["groups"]
    [victim] = [each for each in group["learners"] if each["rank"] == 1]
    os.kill(victim["pid"], signal.SIGKILL)


def assert_shows_the_loss(browser: Browser, run, address: str) -> None:
    [lost] = [row for row in rows_of(run, "event") if row["name"] == "learner_lost"]
    [group] = fetch_json(address + "learners.json")["groups"]
    assert [each["worker"] for each in group["lost"]] == [lost["address"]]
    assert sorted((each["rank"], each["generation"]) for each in group["learners"]) == [(0, 2), (1, 2)]
    for part in (f"learner 1 was lost: {lost['cause']}", "2 learners go on after", lost["address"]):
        assert part in browser.text


def assert_shows_the_numbers_of(browser: Browser, run) -> None:
    """What is drawn is what metrics.jsonl has, to the last bit."""
    train_rows, evaluations = rows_of(run, "train"), rows_of(run, "evaluation")
    browser.wait_for(is_drawn("losses", len(train_rows)))
    drawn = browser.columns("losses")
    losses = {name.replace("_", " "): [row[name] for row in train_rows] for name in LOSSES}
    assert dict(zip(drawn["label"], drawn["ys"], strict=True)) == losses
    assert drawn["xs"] == [[row["step"] for row in train_rows]] * len(LOSSES)
    returns = browser.columns("returns")
    assert returns["step"] == [row["step"] for row in evaluations]
    assert returns["mean"] == [row["return_mean"] for row in evaluations]
    errors = [row["return_standard_error"] for row in evaluations]
    assert returns["upper"] == [mean + error for mean, error in zip(returns["mean"], errors, strict=True)]
    assert f"step {train_rows[-1]['step']:,} of 20,000" in browser.text
    assert f"epoch {train_rows[-1]['epoch']:,.2f} of cartpole.zarr" in browser.text


def assert_groups_are_chosen(browser: Browser, client, artefacts) -> None:
    """A second group comes to the page; each can be looked at."""
    with LearnerGroup(group_config(1, {"name": "bc"}), module_spec=SPEC, client=client, name="by hand") as group:
        browser.wait_for("Bokeh.documents[0].get_model_by_name('select').options.length === 3")
        browser.wait_for("Bokeh.documents[0].get_model_by_name('heading').text.includes('by hand')")
        assert "cartpole-iql interrupted" in browser.text  # in the table of all runs
        browser.screenshot(artefacts / "learners-of-two-groups.png")
        first = "select.options.find((each) => each[1].startsWith('cartpole'))[0]"
        select = "const select = Bokeh.documents[0].get_model_by_name('select')"
        browser.evaluate(f"(() => {{ {select}; select.value = {first} }})()")
        browser.wait_for(f"({STATUS})() === 'interrupted'")
        assert group.identity.group_id not in browser.text.split("Learners rank")[1].split("All runs")[0]


def test_the_plot_for_jupyterlab_is_drawn(artefacts):
    options = {"n_workers": 0, "processes": False, "host": "127.0.0.1", "protocol": "tcp://"}
    with (
        LocalCluster(**options, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client,
        Browser(600, 500) as browser,
    ):
        install(client)
        browser.open(address_of(client) + "individual-learners")
        browser.wait_for("window.Bokeh?.documents.length > 0")
        assert "No learners on this cluster yet" in browser.text
        for message in (begin(), row(10), row(20)):
            client.log_event(TOPIC, message)
        browser.wait_for(is_drawn("losses", 2))
        browser.screenshot(artefacts / "individual-learners.png")
        assert "a run running step 20 of 100 (20%)" in browser.text
        assert browser.columns("losses")["ys"] == [[1 / 10, 1 / 20]]
        assert browser.columns("rates")["ys"] == [[5.0, 5.0]]  # the run's own, as it has no learners here
        assert browser.problems == []
