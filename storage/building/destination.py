"""Where a writer's episodes go: a dataset to be, or one that is there and grows."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dask_rl.storage.errors import ConfigError, DatasetError, InvalidDataError, explain
from dask_rl.storage.locate import local_path
from dask_rl.storage.remote.address import redact
from dask_rl.storage.schema import ArraySpec, DatasetAttributes, first_problem
from dask_rl.storage.spaces import Space, describe_space, space_from_json, space_to_json, spaces_equal
from dask_rl.storage.validation import check_space

from .append import AppendDirectory
from .builds import Build
from .open_build import open_build


@dataclass(frozen=True)
class Description:
    """What the user says of a dataset."""

    observation_space: Space | None
    action_space: Space | None
    environment: str | None
    ref_scores: tuple[float, float] | None
    provenance: Mapping[str, Any] | None


@dataclass(frozen=True)
class Destination:
    """A place that is taken, and what the episodes that go there must be."""

    build: Build
    observation_space: Space
    action_space: Space
    attributes: DatasetAttributes
    """But for the numbers of steps and episodes."""
    specs: Mapping[str, ArraySpec] | None = None
    """The arrays of the dataset that grows; None: the first episode decides."""
    first_episode: int = 0
    """Episodes that are there already."""


def create(path: str | os.PathLike[str], description: Description, overwrite: bool) -> Destination:
    """Take the place of a new dataset, here or behind a URL.

    Raises:
        ConfigError: a space is not given.
        InvalidDataError: a space whose elements no array can hold, or too large for those who read it.
        DatasetError: the place is taken or cannot be written, or an attribute is none that a dataset can have.
    """
    observation_space = _checked("observation_space", description.observation_space)
    action_space = _checked("action_space", description.action_space)
    minimum, maximum = description.ref_scores or (None, None)
    try:
        attributes = DatasetAttributes(
            observation_space=space_to_json(observation_space),
            action_space=space_to_json(action_space),
            environment=description.environment,
            ref_min_score=minimum,
            ref_max_score=maximum,
            provenance=_provenance(description),
            num_steps=1,
            num_episodes=1,
        )
    except ValidationError as error:
        raise DatasetError(
            explain(f"dataset {path}", got=first_problem(error), fix="correct this setting of the writer")
        ) from error
    return Destination(open_build(path, overwrite), observation_space, action_space, attributes)


def extend(path: str | os.PathLike[str], description: Description) -> Destination:
    """Take a dataset that is there, to append to it.

    Raises:
        DatasetNotFoundError: there is none.
        DatasetError: another writer is at work on it.
        ConfigError: what the description says is not so of this dataset, or it lies behind a URL.
    """
    provenance = _provenance(description)
    local = local_path(path)
    if local is None:
        allowed, fix = "a dataset on this machine", "append to a dataset here, then copy it there"
        raise ConfigError(
            explain("dataset to append to", got=f"the URL {redact(os.fspath(path))}", allowed=allowed, fix=fix)
        )
    # By its own name, not a link's: who holds it is told by the name.
    build = AppendDirectory(Path(os.path.realpath(local)))
    try:
        there = build.base.attributes
        observation_space, action_space = space_from_json(there.observation_space), space_from_json(there.action_space)
        for name, space in (("observation_space", observation_space), ("action_space", action_space)):
            given = getattr(description, name)
            if given is not None and not spaces_equal(given, space):
                raise _misfit(name, describe_space(given), describe_space(space))
        if description.environment not in (None, there.environment):
            raise _misfit("environment", description.environment, there.environment)
        scores = (there.ref_min_score, there.ref_max_score)
        if description.ref_scores not in (None, scores):
            raise _misfit("ref_scores", description.ref_scores, scores)
    except BaseException:
        build.close()
        raise
    attributes = there.model_copy(update={"provenance": provenance})
    first = build.base.commit.num_episodes
    return Destination(build, observation_space, action_space, attributes, build.base.arrays, first)


def _checked(name: str, space: Space | None) -> Space:
    if space is None:
        raise ConfigError(explain(name, got="none", allowed="a Gymnasium space", fix="give it"))
    check_space(name, space)
    try:
        space_from_json(space_to_json(space))  # its readers take no larger ones
    except DatasetError as error:
        allowed = "a space that can be read back"
        fix = "make its elements smaller: crop, scale or leave something out"
        raise InvalidDataError(
            explain(name, got=f"{describe_space(space)} ({error.__cause__})", allowed=allowed, fix=fix)
        ) from error
    return space


def _misfit(name: str, got: Any, allowed: Any) -> ConfigError:
    fix = "append episodes of the same kind, or write another dataset"
    return ConfigError(explain(name, got=got, allowed=f"{allowed}, as in the dataset", fix=fix))


def _provenance(description: Description) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(json.dumps(dict(description.provenance or {}), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise DatasetError(
            explain("provenance", got=str(error), allowed="finite JSON values", fix="convert them to text")
        ) from error
    return found
