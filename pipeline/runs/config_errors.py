"""Pydantic's problems in the words of this project: one line each, with the nearest allowed key."""

import difflib
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from dask_rl.storage.errors import ConfigError, DaskRLError, explain

_MAX_GOT_CHARACTERS = 80

Model = type[BaseModel]
M = TypeVar("M", bound=BaseModel)


def validate(model: type[M], values: Mapping[str, Any], prefix: str = "") -> M:
    """Build `model` from `values`; problems raise ConfigError, a line each.

    Args:
        model: the config class.
        values: what the user gave.
        prefix: dotted place of `values`, such as "algorithm", for the messages.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(problem_lines(error, model, prefix))) from None


def problem_lines(error: ValidationError, model: Model, prefix: str = "") -> list[str]:
    """Return one line per problem: what was got, what is allowed, what to do."""
    lines: list[str] = []
    unions: dict[str, tuple[Any, list[str]]] = {}
    for problem in error.errors():
        cause = problem.get("ctx", {}).get("error")
        owner, place = _walk(model, problem["loc"])
        subject = ".".join(filter(None, [prefix, *place]))
        if problem["type"] == "default_factory_not_called":
            continue  # a default that follows from a setting that is wrong itself
        if isinstance(cause, DaskRLError):
            lines.append(str(cause))
        elif problem["type"] == "extra_forbidden":
            lines.append(unknown_key(subject, owner.model_fields))
        elif problem["type"] == "missing":
            lines.append(explain(subject or "job", got="nothing", allowed="a value", fix="add this key"))
        else:
            unions.setdefault(subject, (problem["input"], []))[1].append(_allowed(problem["msg"]))
    for subject, (got, allowed) in unions.items():
        lines.append(explain(subject or "job", got=_short(got), allowed=" or ".join(allowed), fix="correct the value"))
    return lines


def unknown_key(subject: str, known: Iterable[str]) -> str:
    """Return the line for a key that does not exist."""
    known = list(known)
    near = difflib.get_close_matches(subject.rpartition(".")[2], known, n=1)
    fix = f"did you mean {near[0]!r}?" if near else "remove it or correct its name"
    return explain(subject, got="an unknown key", allowed=", ".join(known), fix=fix)


def _walk(model: Model, location: tuple[int | str, ...]) -> tuple[Model, list[str]]:
    """Return the innermost model on the way to a problem, and the place without pydantic's union tags."""
    place: list[str] = []
    for part in location:
        place.append(str(part))
        field = model.model_fields.get(str(part))
        inner = None if field is None else _model_of(field.annotation)
        if inner is None:
            break
        model = inner
    return model, place


def _model_of(annotation: Any) -> Model | None:
    candidates = [annotation, *typing.get_args(annotation)]
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def _allowed(message: str) -> str:
    """Turn `Input should be a valid integer` into `a valid integer`."""
    for opening in ("Input should be ", "Value error, "):
        message = message.removeprefix(opening)
    return message


def _short(got: Any) -> str:
    text = " ".join(repr(got).split())
    return text if len(text) <= _MAX_GOT_CHARACTERS else f"{text[:_MAX_GOT_CHARACTERS]}…"
