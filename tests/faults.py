"""Plants one fault at a time where it would break a promise, and sees that its test fails.

`python -m tests.faults` copies the tree, passes all chosen tests there once, then runs each of them
with its fault alone; it writes `tests/faults.json` and ends with 1 where a fault went unseen. Names
on the command line choose faults.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULT = ROOT / "tests/faults.json"
COPIED = ("fljax", "kernels", "tests", "pyproject.toml")


class Fault(NamedTuple):
    """`sound`, which stands in `path` once, becomes `faulty`; `test` must fail."""

    path: str
    sound: str
    faulty: str
    test: str


_RENYI = "fljax/accounting/renyi/"
_SUM = "kernels/fljax_kernels/clipped_sum/"
FAULTS = {
    # What is claimed.
    "a Gaussian costs half": Fault(
        _RENYI + "rdp.py",
        "orders / (2 * safe**2)",
        "orders / (4 * safe**2)",
        "accounting/test_conversion.py::test_the_renyi_bound_is_never_below_the_exact_epsilon",
    ),
    "a conversion gains a term": Fault(
        _RENYI + "conversion.py",
        "epsilon = rdp + jnp.log1p(-1 / orders) - (log_delta + jnp.log(orders))",
        "epsilon = rdp + jnp.log1p(-1 / orders) - (log_delta + 2 * jnp.log(orders))",
        "accounting/test_conversion.py::test_agrees_with_dp_accounting_on_its_own_curves",
    ),
    "the last round is free": Fault(
        "fljax/accounting/renyi_of_mechanism.py",
        "mechanism.count * curve(",
        "(mechanism.count - 1) * curve(",
        "accounting/test_accountant.py::test_epsilon_meets_the_golden_values",
    ),
    "composition takes the largest": Fault(
        "fljax/accounting/gaussian.py",
        "jnp.sum(_x64.non_negative(mus) ** 2, -1)",
        "jnp.max(_x64.non_negative(mus) ** 2, -1)",
        "accounting/test_gaussian.py::test_known_values",
    ),
    "surplus items vanish": Fault(
        "fljax/accounting/mixture.py",
        "math.fsum(pmf[top:])",
        "math.fsum(pmf[top : top + 1])",
        "accounting/test_mixture.py::test_count_distribution_capped_at_three",
    ),
    "losses are rounded down": Fault(
        "fljax/accounting/pld/discretise.py",
        "masses = jnp.concatenate([stays, zero]) + jnp.concatenate([zero, to_top])",
        "masses = jnp.concatenate([stays + to_top, zero])",
        "accounting/test_pld.py::test_laplace_holds_its_closed_form",
    ),
    # Clipping and sums.
    "short rows are stretched": Fault(
        _SUM + "matmul.py",
        "jnp.where(mask, jnp.minimum(1, clip / jnp.where(norms > 0, norms, 1)), 0)",
        "jnp.where(mask, clip / jnp.where(norms > 0, norms, 1), 0)",
        "kernels/test_clip_and_sum.py::test_agrees_with_float64",
    ),
    "masked rows count": Fault(
        _SUM + "matmul.py",
        "jnp.where(mask, jnp.minimum(1, clip / jnp.where(norms > 0, norms, 1)), 0)",
        "jnp.minimum(1, clip / jnp.where(norms > 0, norms, 1))",
        "kernels/test_clip_and_sum.py::test_a_masked_row_of_ordinary_numbers_adds_zero",
    ),
    "a row of NaN counts": Fault(
        _SUM + "reference.py",
        "mask & jnp.isfinite(squares)",
        "mask & (squares != jnp.inf)",
        "kernels/test_clip_and_sum.py::test_a_row_that_is_not_finite_adds_zero",
    ),
    "large squares are dropped": Fault(
        _SUM + "two_reads.py",
        "_UP, _DOWN = 2.0**80, 2.0**-90",
        "_UP, _DOWN = 2.0**80, 2.0**-10",
        "kernels/test_clip_and_sum.py::"
        "test_a_finite_row_whose_square_overflows_is_clipped_not_dropped",
    ),
    # Noise.
    "noise without its root of two": Fault(
        "kernels/fljax_kernels/gaussian/reference.py",
        "jnp.asarray(np.sqrt(2), dtype)",
        "jnp.asarray(1, dtype)",
        "kernels/test_gaussian.py::test_law_is_normal_with_the_stated_stddev",
    ),
    "leaves share their noise": Fault(
        "kernels/fljax_kernels/gaussian/unrolled.py",
        "_threefry.fold_in(key, i))(np.arange(len(shapes), dtype=np.uint32))",
        "_threefry.fold_in(key, 0 * i))(np.arange(len(shapes), dtype=np.uint32))",
        "kernels/test_gaussian.py::test_clients_and_leaves_are_uncorrelated",
    ),
    # Sampling.
    "one unit too many": Fault(
        "kernels/fljax_kernels/sampling/api.py",
        "jnp.arange(capacity, dtype=jnp.int32) < count",
        "jnp.arange(capacity, dtype=jnp.int32) <= count",
        "kernels/test_sampling.py::test_every_unit_and_every_pair_has_its_poisson_chance",
    ),
    "a count read upside down": Fault(
        "kernels/fljax_kernels/sampling/binomial.py",
        "(high < bits[0])",
        "(high > bits[0])",
        "kernels/test_sampling.py::test_counts_are_binomial",
    ),
    "a capacity that overflows": Fault(
        "kernels/fljax_kernels/sampling/binomial.py",
        "np.argmax(tail <= tail_prob)",
        "np.argmax(tail <= 10 * tail_prob)",
        "kernels/test_sampling.py::test_capacity_is_the_smallest_with_that_tail",
    ),
    # Styles of clipping.
    "a bound a tenth too long": Fault(
        "fljax/local/clipping.py",
        "jnp.where(least > clip, clip / least, one)",
        "jnp.where(least > clip, clip * 1.1 / least, one)",
        "local/test_clipping.py::test_no_row_gets_longer_than_the_bound",
    ),
    "the longest part stands for all": Fault(
        "fljax/local/clipping.py",
        "functools.reduce(jnp.add, [jnp.square(n / unit) for n in parts])",
        "functools.reduce(jnp.maximum, [jnp.square(n / unit) for n in parts])",
        "local/test_clipping.py::test_the_joint_norm_of_parts_is_finite_where_it_is_in_range",
    ),
    "the count's noise is free": Fault(
        "fljax/local/quantile.py",
        "noise_multiplier**-2 - (2 * count_stddev) ** -2",
        "noise_multiplier**-2 - (4 * count_stddev) ** -2",
        "local/test_clipping.py::test_the_count_takes_its_share_of_the_noise",
    ),
    # Aggregation.
    "padding of a chunk counts": Fault(
        "fljax/server/aggregate.py",
        "jnp.pad(present, (0, pad)).reshape(-1, chunk_size)",
        "jnp.concatenate([present, present[:pad]]).reshape(-1, chunk_size)",
        "server/test_aggregate.py::test_the_sum_does_not_depend_on_the_chunk_size",
    ),
    "the last chunk is left out": Fault(
        "fljax/server/aggregate.py",
        "(last + chunk_size - 1) // chunk_size",
        "last // chunk_size",
        "server/test_aggregate.py::test_the_sum_does_not_depend_on_the_chunk_size",
    ),
    # Schemes.
    "noise that forgets the bound": Fault(
        "fljax/schemes/central/round.py",
        "stddev = multiplier * config.l2_clip_norm\n",
        "stddev = multiplier * config.l2_clip_norm**2\n",
        "schemes/test_contracts.py::test_every_scheme_keeps_every_contract[dp_fedavg]",
    ),
    "an event with twice the noise": Fault(
        "fljax/schemes/central/round.py",
        "config.sampling_prob, events.Gaussian(base.noise_multiplier(config))",
        "config.sampling_prob, events.Gaussian(2 * base.noise_multiplier(config))",
        "schemes/test_contracts.py::test_every_scheme_keeps_every_contract[dp_fedavg]",
    ),
    "every round draws the same noise": Fault(
        "fljax/_keys.py",
        "_threefry.fold_in(_threefry.fold_in(key, round_index), SERVER)",
        "_threefry.fold_in(_threefry.fold_in(key, 0 * round_index), SERVER)",
        "schemes/test_rounds_stay.py::test_two_rounds_give_the_committed_model[dp_fedavg]",
    ),
}


def _copy(to: pathlib.Path) -> None:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, to / name)


def failing(tree: pathlib.Path, tests: list[str]) -> bool:
    """Whether one of the tests fails in this tree.

    Raises:
      RuntimeError: pytest did not get as far as to run them.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    command += [f"tests/{test}" for test in tests]
    path = os.pathsep.join(str(tree / name) for name in (".", "kernels"))
    done = subprocess.run(
        command, cwd=tree, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{tests}: pytest ended with {done.returncode}:\n{done.stdout[-2000:]}")
    return done.returncode == 1


def main(names: list[str]) -> int:
    chosen = {name: FAULTS[name] for name in names or FAULTS}
    caught = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder)
        _copy(tree)
        if failing(tree, sorted({fault.test for fault in chosen.values()})):
            raise RuntimeError("a chosen test fails without a fault")
        for name, fault in chosen.items():
            place = tree / fault.path
            text = place.read_text()
            place.write_text(text.replace(fault.sound, fault.faulty))
            caught[name] = failing(tree, [fault.test])
            place.write_text(text)
            print(f"{'caught' if caught[name] else 'UNSEEN'}: {name}", flush=True)
    caught = {name: caught[name] for name in FAULTS if name in caught}
    RESULT.write_text(json.dumps(caught, indent=2) + "\n")
    return 0 if all(caught.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
