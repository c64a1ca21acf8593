"""What a run cost each subject, where subjects sit unevenly in silos; every answer is private,
unlike the claim.

A run's claim is about the worst subject that the public caps allow. A subject with few items, or in
few silos, lost less: the sum over silos i that hold it of steps * RDP(its items there, noise of
silo i).
"""

from types import ModuleType
from typing import Any

import numpy as np

from fljax import _validate
from fljax.accounting import events, renyi_of_mechanism
from fljax.accounting.renyi import conversion, rdp
from fljax.errors import PrivacyPreconditionError
from fljax.schemes import base


def epsilons(
    scheme: ModuleType, config: Any, counts: np.ndarray, *, num_rounds: int, delta: float
) -> np.ndarray:
    """Epsilon of each subject after `num_rounds` rounds in which all silos took part; PRIVATE.

    Removing a subject touches all silos at once: their Renyi curves add up, each with its own
    noise. With `silos_per_round` silos this is an upper bound, for all that a subject lies in
    count, and it may be above the run's claim.

    Args:
      scheme: a module of `fljax.schemes` whose unit is a subject and which has `step`.
      config: its config, with a noise_multiplier and a sound formula.
      counts: items of each subject in each silo, integers `[num_subjects, num_parties]`:
        `data.subjects.counts`. Items above `max_items_per_subject` were left out in the rounds and
        count for nothing.
      num_rounds: >= 1.
      delta: in (0, 1).

    Returns:
      float64 `[num_subjects]`; 0 for a subject without items.

    Raises:
      ValueError: an argument is out of range, or counts do not fit num_parties.
      PrivacyPreconditionError: a subject lies in more silos than `silos_per_subject` claims.
    """
    _validate.positive_int(num_rounds=num_rounds)
    _validate.open_unit(delta=delta)
    counts = np.asarray(counts)
    shaped = counts.ndim == 2 and counts.shape[1] == config.parties
    if not shaped or counts.dtype.kind not in "iu" or (counts < 0).any():
        raise ValueError(
            "Expected counts to be integers >= 0 of shape [num_subjects, "
            f"num_parties={config.parties}], got {counts.dtype} of shape {list(counts.shape)}."
        )
    if scheme.event(config).mechanism == events.NonPrivate():
        return np.where(counts.sum(axis=1) > 0, np.inf, 0.0)
    met = (counts > 0).sum(axis=1)
    if met.size and met.max() > config.holders:
        raise PrivacyPreconditionError(
            f"Expected every subject to lie in at most silos_per_subject={config.holders} silos, "
            f"got {met.max()} of subject {int(met.argmax())}: the run's claim does not cover it."
        )
    counts = np.minimum(counts, config.max_items_per_subject)
    noise, orders = base.noise_multiplier(config), rdp.DEFAULT_ORDERS
    relation = events.NeighboringRelation.ADD_OR_REMOVE_ONE
    total = np.zeros((counts.shape[0], len(orders)))
    factors = np.asarray(config.noise_factors)
    for factor in np.unique(factors):
        here = counts[:, factors == factor]
        for size in np.unique(here[here > 0]):
            step = scheme.step(config, int(size))(noise * float(factor))
            steps = -(-config.num_local_steps * num_rounds // config.cycle)
            times = steps * (here == size).sum(axis=1)
            curve = renyi_of_mechanism.curve(step, relation, orders)
            total += np.where(times[:, None] > 0, times[:, None] * curve, 0.0)
    found = np.asarray(conversion.rdp_to_epsilons(total, np.asarray(orders), delta)).min(axis=1)
    return np.where(met > 0, np.maximum(found, 0.0), 0.0)
