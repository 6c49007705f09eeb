"""Which tests show what a learner group promises: one that is removed or renamed is missed here.

Those in `distributed/` that are marked `*` run with one learner in process and on two learner processes. Those in
`learners/` show what needs exact control, on one learner or on ranks in threads.
"""

import ast
from functools import cache
from pathlib import Path

import pytest
from known_faults import BEHAVIOURS, FAULTS
from promises import GROUP, LEARNER, MANAGER, SPLITTING

TESTS = Path(__file__).parent

INDEX = {
    f"{table}: {promise}": tests
    for table, rows in {
        "group": GROUP,
        "learner": LEARNER,
        "splitting": SPLITTING,
        "manager": MANAGER,
        "fault": FAULTS,
        "behaviour": BEHAVIOURS,
    }.items()
    for promise, tests in rows.items()
}


@cache
def functions_of(path: str) -> dict[str, bool]:
    """The tests of a file, and whether each runs in process and on two learner processes."""
    functions = [node for node in ast.parse((TESTS / path).read_text()).body if isinstance(node, ast.FunctionDef)]
    both = {"num_learners"}
    for node in functions:
        decorators = " ".join(map(ast.unparse, node.decorator_list))
        if "fixture" in decorators and ("two learners" in decorators or "num_learners" in ast.unparse(node.args)):
            both.add(node.name)
    return {node.name: bool(both & {each.arg for each in node.args.args}) for node in functions}


@pytest.mark.parametrize("promise", INDEX)
def test_every_promise_has_its_tests(promise):
    assert INDEX[promise]
    for test in INDEX[promise]:
        path, name = test.removesuffix("*").split("::")
        assert name in functions_of(path), f"{promise}: {test} is gone"
        if path.startswith("distributed/"):
            assert functions_of(path)[name] == test.endswith("*"), f"{test}: in process and on two learners, or not?"


def test_no_fault_is_left_out():
    assert [fault.split(".")[0] for fault in FAULTS] == [str(number) for number in range(1, 16)]
