"""Conditions on episodes as text: comparisons, `and`, `or`, `not` and arithmetic over named facts. Never `eval`.

What is not named here does not exist: no calls, attributes, subscripts, strings or powers. A condition is worked out
for all episodes at once, on their columns.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_rl.storage.errors import ConfigError, explain

Value = Any
"""A number, or one for each episode, (num_episodes,)."""

FACTS = {
    "return_": "undiscounted return",
    "length": "steps",
    "terminated": "whether the environment ended it",
    "truncated": "whether it was cut off",
    "seed": "seed of the environment, -1: unknown",
    "id": "id in its source",
    "index": "number in its source, from 0",
    "source": "number of its source, from 0",
    "has_final_observation": "whether the final observation is there",
}
"""What a condition may name, by name."""

_MAX_CHARACTERS = 1000
_MAX_INTEGER = 2**63 - 1
_FIX = 'write e.g. "return_ > 100 and not truncated"'


def _checked(operation: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    """Return an operation that raises where integers outgrow 64 bits: numpy's wrap around in silence."""

    def apply(left: Value, right: Value) -> Value:
        result = np.asarray(operation(left, right))
        about = np.abs(operation(np.asarray(left, np.float64), np.asarray(right, np.float64)))
        if result.dtype.kind != "f" and (about >= 2.0**63).any():
            raise OverflowError("integers that outgrow 64 bits")
        return result

    return apply


_ARITHMETIC: dict[type[ast.operator], Callable[[Value, Value], Value]] = {
    ast.Add: _checked(operator.add),
    ast.Sub: _checked(operator.sub),
    ast.Mult: _checked(operator.mul),
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Value, Value], Value]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


class Condition:
    """A condition on an episode.

    Args:
        text: such as "return_ > 100 and not truncated" or "id in (3, 5)"; names are those of FACTS.

    Raises:
        ConfigError: it is none.
    """

    def __init__(self, text: str) -> None:
        """Parse it, and check every part of it."""
        self.text = text
        try:
            if len(text) > _MAX_CHARACTERS:
                raise self._error(f"{len(text)} characters", f"at most {_MAX_CHARACTERS}", "shorten it")
            self._body = ast.parse(text.strip(), mode="eval").body
            # Worked out once for one episode: what is not allowed shows before any data is read.
            self._result({name: np.ones(1, _is_flag(name) or np.int64) for name in FACTS}, check=False)
        except (SyntaxError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            reason = "(the name is return_, with an underscore)" if "return" in text else f"({error})"
            raise self._error(f"{text!r} {reason}", "a condition") from None
        except (RecursionError, MemoryError):
            raise self._error(f"{text!r}", "a condition of less depth", "shorten it") from None

    @property
    def names(self) -> frozenset[str]:
        """The facts that it needs."""
        return frozenset(node.id for node in ast.walk(self._body) if isinstance(node, ast.Name))

    def holds(self, facts: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.bool_]:
        """Return for which episodes it holds, (num_episodes,).

        Args:
            facts: columns by name, all that it needs, (num_episodes,).

        Raises:
            ConfigError: it divides by zero, or its integers outgrow 64 bits.
        """
        size = len(next(iter(facts.values())))
        return np.broadcast_to(self._result(facts, check=True), (size,))

    def _result(self, facts: Mapping[str, npt.NDArray[Any]], check: bool) -> Value:
        try:
            with np.errstate(all="raise" if check else "ignore", under="ignore", over="ignore"):
                return self._flag(self._body, facts)
        except (FloatingPointError, ZeroDivisionError, OverflowError) as error:
            if not check and not isinstance(error, OverflowError):
                return True  # what this stands in for may be other than zero
            raise self._error(f"{self.text!r} ({error})", "finite numbers of 64 bits") from None

    def _flag(self, node: ast.expr, facts: Mapping[str, npt.NDArray[Any]]) -> Value:
        value = self._value(node, facts)
        if np.asarray(value).dtype != bool:
            raise self._error(f"the number {ast.unparse(node)!r}", "a comparison, or a flag")
        return value

    def _number(self, node: ast.expr, facts: Mapping[str, npt.NDArray[Any]]) -> Value:
        value = self._value(node, facts)
        return value + 0 if np.asarray(value).dtype == bool else value

    def _value(self, node: ast.expr, facts: Mapping[str, npt.NDArray[Any]]) -> Value:
        match node:
            case ast.Name(id=name) if name in FACTS:
                return facts[name]
            case ast.Constant(value=bool() | int() | float() as number) if _fits(number):
                return number
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return np.logical_not(self._flag(operand, facts))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._number(operand, facts)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return _ARITHMETIC[type(op)](self._number(left, facts), self._number(right, facts))
            case ast.BoolOp(op=op, values=values):
                join = np.logical_and if isinstance(op, ast.And) else np.logical_or
                return join.reduce(np.broadcast_arrays(*(self._flag(value, facts) for value in values)))
            case ast.Compare(left=left, ops=ops, comparators=others):
                return self._compare([left, *others], ops, facts)
        name = f"the name {node.id!r}" if isinstance(node, ast.Name) else repr(ast.unparse(node))
        raise self._error(name, f"comparisons, and, or, not, + - * / // % and numbers over {', '.join(FACTS)}")

    def _compare(self, nodes: list[ast.expr], ops: list[ast.cmpop], facts: Mapping[str, npt.NDArray[Any]]) -> Value:
        result: Value = True
        for left, op, right in zip(nodes[:-1], ops, nodes[1:], strict=True):
            if isinstance(op, ast.In | ast.NotIn) and isinstance(right, ast.Tuple | ast.List):
                value = self._number(left, facts)
                found: Value = False
                for item in right.elts:
                    found = np.logical_or(found, value == self._number(item, facts))
                one = np.logical_not(found) if isinstance(op, ast.NotIn) else found
            elif type(op) in _COMPARISONS:
                one = _COMPARISONS[type(op)](self._number(left, facts), self._number(right, facts))
            else:
                raise self._error(f"{ast.unparse(nodes[0])!r} {type(op).__name__}", "< <= > >= == !=, in (…, …)")
            result = np.logical_and(result, one)
        return result

    def _error(self, got: str, allowed: str, fix: str = _FIX) -> ConfigError:
        return ConfigError(explain("where", got=got, allowed=allowed, fix=fix))


def _is_flag(name: str) -> type[np.bool_] | None:
    return np.bool_ if name in ("terminated", "truncated", "has_final_observation") else None


def _fits(number: float) -> bool:
    return not isinstance(number, int) or abs(number) <= _MAX_INTEGER
