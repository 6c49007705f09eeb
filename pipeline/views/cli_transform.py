"""`dask-rl data transform`: datasets made of others."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from dask_rl.pipeline.runs.progress import make_progress
from dask_rl.storage.errors import ConfigError, explain

from .cli_command import Option, Output, command, load, table

_OPTIONS = (
    Option("min_return", float | None, None, "Smallest return of an episode."),
    Option("max_return", float | None, None, "Largest return of an episode."),
    Option("min_length", int | None, None, "Fewest steps of an episode."),
    Option("max_length", int | None, None, "Most steps of an episode."),
    Option("where", str | None, None, 'Condition on an episode, e.g. "return_ > 100 and not truncated".'),
    Option("top_fraction", float | None, None, "Share of what the other filters leave, the largest returns."),
    Option("step_reward", float | None, None, "What every reward becomes."),
    Option("termination_reward", float | None, None, "What the reward of a step that terminates becomes."),
    Option("reward_scale", float, 1.0, "Factor of all rewards."),
    Option("reward_shift", float, 0.0, "Added to all rewards, once they are scaled."),
    Option("min_reward", float | None, None, "Smaller rewards become this one."),
    Option("max_reward", float | None, None, "Larger rewards become this one."),
    Option("normalize", bool, False, "Standardise observations that are numbers; the statistics are kept."),
    Option("denormalize", bool, False, "Undo --normalize, by the statistics that it kept."),
    Option("infos", str | None, None, 'Infos to keep, e.g. "speed,height"; "" keeps none; default: all.'),
    Option("rename_infos", str | None, None, 'New names of infos, e.g. "v=speed,z=height".'),
    Option("ids", str, "keep", "keep, or renumber: 0, 1, … in their order."),
    Option("validation_fraction", float | None, None, "Share of the episodes that go to --validation."),
    Option("seed", int, 0, "Seed of the choice of those for --validation."),
    Option("shard_rows", int | None, None, "Rows of a shard on disk, a power of two; default: by size."),
)

Sources = Annotated[list[str], typer.Argument(metavar="SOURCE...", help="Datasets: paths or URLs.", show_default=False)]
Destination = Annotated[str, typer.Argument(help="The new dataset, e.g. best.zarr.", show_default=False)]
Validation = Annotated[str | None, typer.Option("--validation", help="The second dataset, of a split.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace datasets that are there.")]
Workers = Annotated[int, typer.Option("--workers", min=0, help="Worker processes; 0: in this process.")]


def add_transform(data: typer.Typer) -> None:
    """Add the command to those of datasets."""
    command(data, "transform", _OPTIONS)(_transform)


def _transform(
    sources: Sources,
    dest: Destination,
    validation: Validation = None,
    overwrite: Overwrite = False,
    workers: Workers = 0,
    **settings: Any,
) -> Output:
    """Choose, change, merge and split the episodes of datasets into a new one."""
    infos, renamed = settings.pop("infos"), settings.pop("rename_infos")
    settings["infos"] = None if infos is None else tuple(_listed(infos))
    settings["rename_infos"] = dict(map(_pair, _listed(renamed or "")))
    config = load("pipeline.runs.config_errors").validate(load("storage.transforming").TransformConfig, settings)
    with make_progress("transform", None, "steps") as progress:
        summary = load("pipeline.datasets.transforming").transform_dataset(
            sources,
            dest,
            config=config,
            validation=validation,
            overwrite=overwrite,
            progress=progress.update,
            num_workers=workers,
        )
    values = asdict(summary)
    return Output(values, table(values))


def _listed(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _pair(text: str) -> tuple[str, str]:
    old, separator, new = text.partition("=")
    if not separator:
        fix = 'write e.g. --rename-infos "v=speed"'
        raise ConfigError(explain("rename_infos", got=repr(text), allowed="OLD=NEW pairs", fix=fix))
    return old.strip(), new.strip()
