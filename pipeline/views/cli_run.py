"""Commands about runs: train, eval, report, demo."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dask_rl.pipeline.runs.progress import make_progress
from dask_rl.pipeline.runs.run_directory import RunDirectory, dataset_facts
from dask_rl.pipeline.runs.stop_request import StopRequest

from .cli_command import EXIT_DONE, EXIT_INTERRUPTED, Output, command, load, table

Run = Annotated[Path, typer.Argument(help="Directory of a run.", show_default=False)]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="MODULE", help="Import a module first, as one with an algorithm of your own."),
]


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this module to the root command."""
    for name, function in (("demo", demo), ("train", train), ("eval", evaluate), ("report", report)):
        command(app, name)(function)


def demo(
    directory: Annotated[Path, typer.Argument(help="Where everything goes.")] = Path("demo"),
) -> Output:
    """Collect data, train with two learners on a local cluster, evaluate, report; again: go on, or only report."""
    story = load("pipeline.views.demo")
    values = story.run_demo(directory, progress=make_progress)
    return Output(values, story.describe_demo(values), EXIT_INTERRUPTED if values["interrupted"] else EXIT_DONE)


def train(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job.", show_default=False)],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, as in a.b=c; as often as needed."),
    ] = None,
) -> Output:
    """Train; the same command again resumes an interrupted run and does nothing to a complete one."""
    with StopRequest() as stop:  # a signal may come while the modules are loaded
        resolved = load("pipeline.runs.job").load_job(job, set_ or (), run_imports=True)
        was_complete = RunDirectory(resolved.run).is_complete
        result = load("pipeline.runs.train").train(resolved, progress=make_progress, stop=stop)
    values = {
        "num_steps": result.num_steps,
        "run": str(result.run),
        "final_metrics": result.final_metrics,
        "evaluation": result.evaluation,
        "weights_hash": result.weights_hash,
        "was_complete": was_complete,
    }
    text = _describe(result)
    if result.interrupted:
        text = f"interrupted after {result.num_steps} steps; the same command resumes\n{text}"
        return Output(values, text, EXIT_INTERRUPTED)
    return Output(values, f"was complete, nothing was done again\n{text}" if was_complete else text)


def _describe(result: Any) -> str:
    """Return a training result for people: its numbers, and what to do with the run."""
    rows: dict[str, Any] = {"num_steps": result.num_steps, "run": str(result.run)}
    rows |= load("pipeline.runs.learning_curve").losses_of(result.final_metrics)
    if result.evaluation is not None:
        error = result.evaluation["return_standard_error"]
        mean = f"{result.evaluation['return_mean']:.6g}" + ("" if error is None else f" ± {error:.3g}")
        rows["return"] = f"{mean} over {result.evaluation['num_episodes']} episodes"
    rows["weights_hash"] = result.weights_hash
    rows["report"] = f"dask-rl report {result.run}"
    return table(rows)


def evaluate(
    run: Run,
    episodes: Annotated[int | None, typer.Option(min=1, help="Default: the job's.")] = None,
    environment: Annotated[str | None, typer.Option(help="Gymnasium id; default: the job's.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Episode i is reset with seed + i.")] = None,
    module: Annotated[
        str | None, typer.Option(help="Of several modules, the one that plays; default: the job's.")
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="Take the checkpoint with the best evaluation.")] = False,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes; 0: in this process.")] = 0,
    imports: Imports = None,
) -> Output:
    """Roll out the policy of a run's latest checkpoint, or of its best."""
    load("pipeline.runs.own_modules").import_modules(imports or ())
    directory = RunDirectory(run).require()
    job = load("pipeline.runs.job").load_job(directory.job_file)
    given = {"num_episodes": episodes, "environment": environment, "seed": seed, "module_id": module}
    choose, evaluating = load("pipeline.runs.chosen_evaluation"), load("pipeline.rollouts.evaluate")
    config = choose.choose_evaluation(job, given, directory=run, fix="add --environment ID")
    chosen = load("pipeline.runs.module_choice").choose_module(config.module_id, job.datasets, "--module")
    trained = load("pipeline.runs.trained_policy")
    policy, step = trained.load_checkpoint_policy(trained.find_checkpoint(directory, best=best), chosen)
    with (
        load("pipeline.runs.clusters.opened").open_workers(workers) as client,
        make_progress("evaluate", config.num_episodes, "episodes") as progress,
    ):
        result = evaluating.evaluate(
            policy, config, ref_scores=_ref_scores(directory, chosen), client=client, progress=progress.update
        )
    named = {"module_id": chosen} if len(job.datasets) > 1 else {}
    values = {"step": step} | named | result.summary()
    shown = {key: value for key, value in values.items() if key not in ("returns", "lengths")}
    return Output(values, table(shown))


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories of runs.", show_default=False)],
    output: Annotated[
        Path | None, typer.Option(help="The page; default: report.html in the run, or comparison.html here.")
    ] = None,
) -> Output:
    """Write a run's report, or one that compares several: one self-contained HTML file."""
    if len(runs) == 1:
        path = load("pipeline.views.report").write_report(RunDirectory(runs[0]), output)
    else:
        directories = [RunDirectory(run) for run in runs]
        path = load("pipeline.views.comparison").write_comparison(directories, output or Path("comparison.html"))
    return Output({"report": str(path)}, str(path))


def _ref_scores(run: RunDirectory, module_id: str) -> tuple[float, float] | None:
    """Return the reference scores of a module's dataset as the run recorded them."""
    scores = dataset_facts(run.rows("dataset"), module_id).get("ref_scores")
    return None if scores is None else (float(scores[0]), float(scores[1]))
