"""Do the streams of ChaCha20's keys pass NIST's battery SP 800-22, by a package of others?

    pip install --no-deps --target DIR sp80022suite
    PYTHONPATH=DIR:.:kernels python -m bench.kernels.randomness [--keys 8]

The package compiles NIST's own C (it brings a folder `tests` of its own, so that no environment of
ours has it). Of streams of 2**20 bits, 14 tests each: one key's draws, and the first words of
neighbouring folds, neighbouring seeds and split keys. Beside them a cipher of two rounds in place
of twenty, which must be found, and NumPy's PCG64, which must not.
"""

import argparse
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from bench import _harness, _tables
from fljax_kernels import chacha20
from fljax_kernels.chacha20 import cipher, reference

BITS = 2**20
_WALKS = ("random_excursions", "random_excursions_variant")
TESTS: dict[str, tuple[int, ...]] = {
    "frequency": (),
    "block_frequency": (128,),
    "runs": (),
    "longest_run_of_ones": (),
    "rank": (),
    "discrete_fourier_transform": (),
    "overlapping_template_matchings": (9,),
    "universal": (),
    "approximate_entropy": (10,),
    "cumulative_sums": (),
    "random_excursions": (),
    "random_excursions_variant": (),
    "serial": (16,),
    "linear_complexity": (500,),
}


def streams(number: int) -> dict[str, np.ndarray]:
    """uint32 `[BITS / 32]` of each kind, of another key for each number."""
    key, count = chacha20.key(number.to_bytes(32, "little")), BITS // 32
    many = np.arange(count // 16, dtype=np.uint32)
    first = jax.vmap(lambda i: jax.random.bits(jax.random.fold_in(key, i), (16,)))
    seeded = jax.vmap(lambda i: jax.random.bits(jax.random.key(i, impl=chacha20.IMPL), (16,)))
    found = {
        "one key": jax.random.bits(key, (count,), jnp.uint32),
        "neighbouring folds": first(many),
        "neighbouring seeds": seeded(many + np.uint32(number * many.size)),
        "split keys": jax.random.key_data(jax.random.split(key, count // 8)),
    }
    return {name: np.asarray(bits).reshape(-1) for name, bits in found.items()}


def two_rounds(number: int) -> np.ndarray:
    """What the cipher would be after one double round."""
    words = [*reference.CONSTANTS, number, *[0] * 7]
    blocks = BITS // 32 // 16
    given = [jnp.full(blocks, word, jnp.uint32) for word in np.array(words, np.uint32)]
    given += [jnp.arange(blocks, dtype=jnp.uint32), *[jnp.zeros(blocks, jnp.uint32)] * 3]
    return np.asarray(jnp.concatenate(cipher.double_round(0, tuple(given))))


def p_values(suite: Any, bits: np.ndarray) -> dict[str, float]:
    """Of each test; one that cannot be told is left out."""
    ones, found = np.unpackbits(bits.view(np.uint8)).tobytes(), {}
    for name, args in TESTS.items():
        try:
            found[name] = float(getattr(suite, name)(*args, ones))
        except ValueError as reason:  # a walk returns too seldom to 0
            if "Insufficient number of cycles" not in str(reason):
                raise
    return found


def summary(name: str, found: list[dict[str, float]]) -> dict[str, Any]:
    """One row: how many p-values, the least, and whether they are spread as they should be.

    Of walks the package gives the least of several p-values, which is not spread so.
    """
    values = [p for each in found for p in each.values()]
    single = [p for each in found for test, p in each.items() if test not in _WALKS]
    least = min(((p, test) for each in found for test, p in each.items()))
    return {
        "stream": name,
        "bits": BITS * len(found),
        "p_values": len(values),
        "below_1_percent": sum(p < 0.01 for p in values),
        "least": least[0],
        "least_of": least[1],
        "spread_p": float(scipy.stats.kstest(single, "uniform").pvalue),
    }


def table(rows: _tables.Rows) -> str:
    """A row for each kind of stream."""
    cells = [
        [
            row["stream"],
            f"{row['p_values']}",
            f"{row['below_1_percent']}",
            f"{row['least']:.1e} ({row['least_of'].replace('_', ' ')})",
            f"{row['spread_p']:.2g}",
        ]
        for row in rows
    ]
    return _tables.markdown(
        ["stream", "p-values", "below 0.01", "the least", "of their spread"], cells
    )


def main() -> None:
    """Runs the battery, and writes the JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=8)
    keys = parser.parse_args().keys
    suite = importlib.import_module("sp80022suite")
    found: dict[str, list[dict[str, float]]] = {}
    for number in range(1, keys + 1):
        of_key = streams(number)
        of_key["NumPy's PCG64"] = np.random.default_rng(number).integers(
            0, 2**32, BITS // 32, np.uint32
        )
        of_key["two rounds of twenty"] = two_rounds(number)
        for name, bits in of_key.items():
            found.setdefault(name, []).append(p_values(suite, bits))
    rows = [summary(name, each) for name, each in found.items()]
    for row in rows:
        print(row)
    _harness.write("randomness", rows, note=(__doc__ or "").splitlines()[0])


if __name__ == "__main__":
    main()
