"""A round by each protocol for secure sums, of noisy whole numbers, with clients that drop out.

python examples/secure_sum.py
"""

import jax
import numpy as np

from fljax import accounting, errors
from fljax.accounting import events
from fljax.upload import integer_grid, secure_sum
from fljax.upload.secure_sum import protocol
from fljax_kernels import discrete

NUM_CLIENTS = 20
SIZE = 10_000
GRID_NORM = 100  # longest vector of a client, in steps
NOISE_STDDEV = 50.0  # of a client's own noise, in steps
MAX_DROPOUTS = 4
MAX_COLLUDERS = 2
DELTA = 1e-5
PROTOCOLS = secure_sum.FAST


def terms(name: str) -> protocol.Terms:
    """What all parties agree on; with one secret key for all clients nobody may collude."""
    most = GRID_NORM + integer_grid.most_noise("discrete_gaussian", NOISE_STDDEV)
    return protocol.Terms(
        num_clients=NUM_CLIENTS,
        size=SIZE,
        bits=(NUM_CLIENTS * most).bit_length() + 1,  # no sum can wrap around
        max_dropouts=MAX_DROPOUTS,
        max_colluders=0 if name == "ckks" else MAX_COLLUDERS,
    )


def epsilon(agreed: protocol.Terms) -> float:
    """Of one client towards whoever sees the sum: those that collude or drop out add no noise."""
    mechanism = events.DiscreteGaussianSum(
        stddev=NOISE_STDDEV,
        count=NUM_CLIENTS - agreed.max_colluders - agreed.max_dropouts,
        l2_sensitivity=2.0 * GRID_NORM,
    )
    event = accounting.PrivacyEvent(
        mechanism=mechanism,
        privacy_unit="client",
        neighboring_relation=accounting.NeighboringRelation.REPLACE_ONE,
    )
    return accounting.epsilon(event, delta=DELTA)


def vectors() -> np.ndarray:
    """Noisy integers of all clients, int64 `[N, SIZE]`."""
    clean = np.zeros((NUM_CLIENTS, SIZE), np.int64)
    clean[:, : GRID_NORM**2 // 4] = 2  # of norm GRID_NORM
    keys = jax.random.split(jax.random.key(0), NUM_CLIENTS)

    def draw(key: jax.Array) -> jax.Array:
        return discrete.discrete_gaussian_noise(key, (SIZE,), NOISE_STDDEV)

    noisy: np.ndarray = clean + np.asarray(jax.vmap(draw)(keys))
    return noisy


def one_round(name: str, integers: np.ndarray, num_dropouts: int) -> None:
    """Runs a round whose first clients drop out, and compares it with the plain sum."""
    made = secure_sum.simulated(name, terms(name))
    words = protocol.as_words(made.terms, integers)
    dropouts = dict.fromkeys(range(num_dropouts), made.upload_step)
    try:
        found = protocol.run(made, words, dropouts=dropouts)
    except errors.DropoutError as reason:
        print(f"  {name:14} aborts: {reason}")
        return
    plain = protocol.as_words(made.terms, integers[num_dropouts:].sum(axis=0))
    up = sum(cost.bytes_up for cost in found.costs) / NUM_CLIENTS
    seconds = sum(cost.client_seconds for cost in found.costs) / NUM_CLIENTS
    print(
        f"  {name:14} exact: {np.array_equal(found.total, plain)}   up {up / 1e3:6.1f} kB and "
        f"{1e3 * seconds:5.1f} ms a client   epsilon {epsilon(made.terms):.3f} at delta {DELTA:g}"
    )


def main() -> None:
    """As many dropouts as are allowed, then one more."""
    integers = vectors()
    for num_dropouts in (MAX_DROPOUTS, MAX_DROPOUTS + 1):
        print(f"{num_dropouts} of {NUM_CLIENTS} clients drop out:")
        for name in PROTOCOLS:
            one_round(name, integers, num_dropouts)


if __name__ == "__main__":
    main()
