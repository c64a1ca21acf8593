"""A deployment in small: parties that share nothing but bytes, a budget, a client that is gone.

Clients hold their own keys, clip, round, add noise drawn under 256 bits of the operating system,
and mask what they send; the server learns the sum of a round, books it before it does, and stops at
its budget. `docs/howto/deploy.md` says what each part is for.
"""

import pathlib
import secrets
import tempfile
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from fljax import accounting, errors, schemes
from fljax.accounting import events
from fljax.upload import integer_grid
from fljax.upload.secure_sum import protocol, secagg, signing
from fljax_kernels import chacha20, discrete

NUM_CLIENTS, NUM_PARAMS, MISSING, COLLUDING, DELTA = 30, 20, 5, 3, 1e-5
SCHEME = schemes.get("distributed_dgauss")
CONFIG = SCHEME.Config(
    num_parties=NUM_CLIENTS,
    max_stragglers=MISSING,
    max_colluders=COLLUDING,
    l2_clip_norm=1.0,
    noise_multiplier=1.0,
)
EVENT = SCHEME.event(CONFIG)
assert isinstance(EVENT.mechanism, events.DiscreteGaussianSum)
STDDEV = EVENT.mechanism.stddev  # of each client's noise, in steps of the grid
GRID = integer_grid.plan(
    NUM_PARAMS,
    l2_clip_norm=CONFIG.l2_clip_norm,
    most_norm=CONFIG.grid_norm,
    num_clients=NUM_CLIENTS,
    most_noise=integer_grid.most_noise("discrete_gaussian", STDDEV),
)
TERMS = protocol.Terms(
    num_clients=NUM_CLIENTS,
    size=GRID.size,
    bits=GRID.bits,
    max_dropouts=MISSING,
    max_colluders=COLLUDING,
)


def fresh_key() -> jax.Array:
    """Of 256 bits that nobody keeps."""
    return chacha20.key(secrets.token_bytes(32))


def public_key(round_index: int) -> jax.Array:
    """Of what all parties draw alike: a rotation, where the grid has one."""
    return jax.random.key(round_index)


@jax.jit
def noisy_words(
    update: jax.Array, rotation_key: jax.Array, rounding_key: jax.Array, noise_key: jax.Array
) -> jax.Array:
    """What a client sends, clipped and noisy, before it is masked."""
    update = jnp.where(jnp.all(jnp.isfinite(update)), update, 0.0)
    update = update / jnp.maximum(1.0, jnp.linalg.norm(update) / CONFIG.l2_clip_norm)
    integers = integer_grid.rounded(GRID, update, rotation_key=rotation_key, key=rounding_key)
    integers += discrete.discrete_gaussian_noise(noise_key, integers.shape, stddev=STDDEV)
    return integer_grid.words(GRID, integers)


def begin(
    identity: signing.Identity, roster: Mapping[int, bytes], update: jax.Array, round_index: int
) -> protocol.Client:
    """A client's part in a round."""
    words = noisy_words(update, public_key(round_index), fresh_key(), fresh_key())
    mine = secagg.SecAgg(terms=TERMS, roster=roster, identities={identity.client: identity})
    return mine.client(identity.client, np.asarray(words), round_index)


def total(
    clients: Mapping[int, protocol.Client],
    roster: Mapping[int, bytes],
    round_index: int,
    gone: set[int],
) -> jax.Array:
    """The server's part: bytes in, bytes out, and in the end the sum of those who stayed."""
    server = secagg.SecAgg(terms=TERMS, roster=roster, identities={}).server(round_index)
    inbox: Mapping[int, bytes] = dict.fromkeys(clients, b"")
    for step in secagg.STEPS:
        there = [number for number in inbox if number not in gone]
        inbox = server.collect(step, {n: clients[n].send(step, inbox[n]) for n in there})
    return jnp.asarray(server.total())


def main() -> None:
    identities = {number: signing.Identity(number) for number in range(NUM_CLIENTS)}
    with tempfile.TemporaryDirectory() as folder:
        for number, identity in identities.items():  # each on a machine of its own
            identity.save(pathlib.Path(folder, f"{number}.key"), passphrase="long, of its owner")
        roster = {number: identity.public_key for number, identity in identities.items()}
        ledger = accounting.Ledger(
            privacy_unit=EVENT.privacy_unit, neighboring_relation=EVENT.neighboring_relation
        )
        rng, params = np.random.default_rng(0), jnp.zeros(NUM_PARAMS)
        truth = rng.normal(0, NUM_PARAMS**-0.5, NUM_PARAMS)
        gone: dict[int, set[int]] = {1: {3}, 2: set(range(MISSING + 1))}
        for round_index in range(100):
            if ledger.would_exceed(EVENT, target_epsilon=12.0, delta=DELTA):
                break
            ledger.append(EVENT)  # before the sum is known: a round that aborts is paid for, too
            updates = truth - np.asarray(params) + rng.normal(0, 0.01, (NUM_CLIENTS, NUM_PARAMS))
            clients = {
                number: begin(identities[number], roster, jnp.float32(updates[number]), round_index)
                for number in identities
            }
            try:
                words = total(clients, roster, round_index, gone.get(round_index, set()))
            except errors.SecureSumError as error:
                print(f"round {round_index} aborted: {type(error).__name__}")
                continue
            released = integer_grid.decoded(GRID, words, rotation_key=public_key(round_index))
            params = params + released / NUM_CLIENTS
            # In a deployment: params and ledger.to_json() are written as one file, then sent.
    off = float(jnp.linalg.norm(params - truth) / np.linalg.norm(truth))
    print(
        f"{ledger.num_events} rounds booked: epsilon {ledger.epsilon(delta=DELTA):.2f} at delta "
        f"{DELTA:g}; the mean is {100 * off:.0f} % of its length off"
    )


if __name__ == "__main__":
    main()
