"""No public pure function of the accountants makes a claim from a number that cannot be: eager,
jitted, vmapped.

Each function stands here with numbers that it can answer and, for each argument, numbers that it
must not: it raises ValueError where it can look (host numbers), and otherwise answers NaN or +inf.
A function that is missing fails a test.
"""

import importlib
import inspect
import pkgutil
from typing import Any

import jax
import numpy as np
import pytest

import fljax.accounting
from fljax.accounting import x64
from tests.accounting._bad_numbers import HOST, INF, INFORMATION, NOT_OF_NUMBERS, OF_EVENTS, TRACED


def _says_nothing(answer: Any) -> bool:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(answer)]
    return all(np.all(np.isnan(leaf) | (leaf == INF)) for leaf in leaves if leaf.dtype.kind == "f")


@pytest.mark.parametrize("case", TRACED, ids=repr)
def test_a_bad_number_under_jit_and_vmap_makes_no_claim(case):
    good = {name: np.asarray(value, np.float64) for name, value in case.good.items()}
    rows, labels = [good], ["good"]
    for name, values in case.bad.items():
        for value in values:
            rows.append(good | {name: np.full_like(good[name], value)})
            labels.append(f"{name}={value}")
    with x64():
        run = jax.jit(jax.vmap(lambda numbers: case.fun(**numbers, **case.fixed)))
        out = jax.tree.map(np.asarray, run(jax.tree.map(lambda *parts: np.stack(parts), *rows)))
    for row, label in enumerate(labels):
        answer = jax.tree.map(lambda leaf, row=row: leaf[row], out)
        if row:
            assert _says_nothing(answer), (label, answer)
        else:
            assert not _says_nothing(answer)


def _is_one_program(case):
    """`@float64 @jax.jit` alone: what it does outside jit is what it does under it."""
    return hasattr(getattr(case.fun, "__wrapped__", None), "lower")


@pytest.mark.parametrize(
    "case", [c for c in TRACED if not _is_one_program(c)] + HOST + INFORMATION, ids=repr
)
def test_a_bad_number_outside_jit_makes_no_claim(case):
    if "pld" not in case.name:  # those compile for seconds, and have tests of their own
        assert case.fun(**case.good, **case.fixed) is not None
    for name, values in case.bad.items():
        for value in values:
            bad = np.full(np.shape(case.good[name]), value) if np.ndim(case.good[name]) else value
            try:
                answer = case.fun(**case.good | {name: bad}, **case.fixed)
            except ValueError as error:
                said = str(error)
            else:
                said = "Expected" if _says_nothing(answer) else f"an answer: {answer}"
            assert "Expected" in said, (name, value, said)


def test_every_public_function_of_numbers_stands_in_the_lists():
    public = set()
    for module in pkgutil.walk_packages(fljax.accounting.__path__, "fljax.accounting."):
        short = module.name.removeprefix("fljax.accounting.")
        if "._" in module.name or short.split(".")[0] in OF_EVENTS:
            continue
        public |= {
            f"{short}.{key}"
            for key, value in vars(importlib.import_module(module.name)).items()
            if inspect.isfunction(value)
            and value.__module__ == module.name
            and not key.startswith("_")
        }
    assert public - {case.name for case in TRACED + HOST + INFORMATION} == NOT_OF_NUMBERS
