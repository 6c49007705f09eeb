"""`dask-rl data …`: datasets."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from dask_rl.pipeline.runs.progress import make_progress

from .cli_command import Option, Output, command, load, table
from .cli_transform import add_transform

data = typer.Typer(help="Import, export, transform, inspect, verify and collect datasets.", no_args_is_help=True)

_IMPORT_OPTIONS = (
    Option("environment", str | None, None, "Gymnasium id whose spaces the dataset gets; its time limit: D4RL only."),
    Option("max_episode_steps", int | None, None, "An end after exactly so many steps is a truncation."),
    Option("normalized_actions", bool, False, "The source's actions lie in [-1, 1]; map them to the bounds."),
    Option("clip_actions", bool, False, "Clip actions to the bounds instead of refusing them."),
    Option("shard_rows", int | None, None, "Rows of a shard on disk, a power of two; default: by size."),
)
_COLLECT_OPTIONS = (
    Option("policy", str, "random", "random or pendulum-swing-up."),
    Option("num_episodes", int, 100, "Episodes to collect."),
    Option(
        "action_noise",
        float,
        0.0,
        "Std of noise in half ranges; discrete: share of random actions. Not for --policy random.",
    ),
    Option("max_episode_steps", int | None, None, "Steps after which an episode is truncated."),
    Option("seed", int, 0, "Episode i is reset with seed + i."),
    Option("shard_rows", int | None, None, "Rows of a shard on disk, a power of two; default: by size."),
)

Dataset = Annotated[str, typer.Argument(help="Path or URL of a dataset.", show_default=False)]
Destination = Annotated[str, typer.Argument(help="The new dataset, e.g. cartpole.zarr.", show_default=False)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a dataset that is there.")]
Workers = Annotated[int, typer.Option("--workers", min=0, help="Worker processes; 0: in this process.")]
Source = Annotated[Path, typer.Argument(help="File or folder of another library.", show_default=False)]
Format = Annotated[
    str | None, typer.Option("--format", help="minari, d4rl, d3rlpy, rllib, zarr-v2 or npz; default: detected.")
]
DropInvalid = Annotated[bool, typer.Option("--drop-invalid", help="Leave invalid episodes out.")]


@command(data, "import", _IMPORT_OPTIONS)
def import_(
    source: Source,
    dest: Destination,
    format_: Format = None,
    drop_invalid: DropInvalid = False,
    overwrite: Overwrite = False,
    workers: Workers = 0,
    **settings: Any,
) -> Output:
    """Convert another library's data into a dataset."""
    return _import("import", source, dest, format_, drop_invalid, workers, settings, overwrite=overwrite)


@command(data, "append", _IMPORT_OPTIONS)
def append(
    source: Source,
    dataset: Annotated[Path, typer.Argument(help="The dataset that grows.", show_default=False)],
    format_: Format = None,
    drop_invalid: DropInvalid = False,
    workers: Workers = 0,
    **settings: Any,
) -> Output:
    """Add another library's data to a dataset; who reads it meanwhile reads it as it was."""
    return _import("append", source, dataset, format_, drop_invalid, workers, settings, append=True)


def _import(
    what: str,
    source: Path,
    dest: Path | str,
    format_: str | None,
    drop_invalid: bool,
    workers: int,
    settings: dict[str, Any],
    **mode: bool,
) -> Output:
    options = load("pipeline.runs.config_errors").validate(
        load("storage.formats.base").ImportOptions, settings | {"on_invalid": "drop" if drop_invalid else "error"}
    )
    with make_progress(what, None, "steps read") as progress:
        summary = load("pipeline.datasets.imports").import_dataset(
            source, dest, format=format_, options=options, progress=progress.update, num_workers=workers, **mode
        )
    values = asdict(summary)
    return Output(values, table(values))


@command(data, "export")
def export(
    dataset: Dataset,
    dest: Annotated[Path, typer.Argument(help="The new file or directory, e.g. pendulum-v0.", show_default=False)],
    format_: Annotated[
        str, typer.Option("--format", help="minari, minari-arrow, minari-parquet or zarr-v2.", show_default=False)
    ],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export of this format.")] = False,
) -> Output:
    """Write a dataset in another library's format."""
    with make_progress("export", None, "episodes") as progress:
        summary = load("storage.exports").export_dataset(
            dataset, dest, format=format_, overwrite=overwrite, progress=progress.update
        )
    values = asdict(summary)
    return Output(values, table(values))


add_transform(data)


@command(data, "info")
def info(dataset: Dataset) -> Output:
    """Describe a dataset."""
    with load("storage.dataset").OfflineDataset.open(dataset) as opened:
        values = opened.describe()
    return Output(values, table(values))


@command(data, "verify")
def verify(
    dataset: Dataset,
    deep: Annotated[bool, typer.Option("--deep", help="Read every byte: checksums, values, flags.")] = False,
) -> Output:
    """Check a dataset against what was committed; the first fault is an error that names it."""
    with load("storage.dataset").OfflineDataset.open(dataset) as opened:
        report = asdict(opened.verify(deep=deep))
    return Output({"ok": True, **report}, f"{dataset} is sound\n{table(report)}")


@command(data, "collect", _COLLECT_OPTIONS)
def collect(
    environment: Annotated[str, typer.Argument(metavar="ENV", help="Gymnasium id.", show_default=False)],
    dest: Destination,
    overwrite: Overwrite = False,
    workers: Workers = 0,
    **settings: Any,
) -> Output:
    """Roll a behaviour in a Gymnasium environment into a dataset."""
    collecting = load("pipeline.rollouts.collect")
    config = load("pipeline.runs.config_errors").validate(
        collecting.CollectConfig, settings | {"environment": environment}
    )
    with (
        load("pipeline.runs.clusters.opened").open_workers(workers) as client,
        make_progress("collect", config.num_episodes, "episodes") as progress,
        collecting.collect(config, dest, client=client, overwrite=overwrite, progress=progress.update) as opened,
    ):
        values = opened.describe()
    return Output(values, table(values))
