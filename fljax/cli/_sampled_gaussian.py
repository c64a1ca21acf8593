"""What `account` and `calibrate` share: the event of a sampled Gaussian, its words, the cache of
compiled code.
"""

import os
import pathlib
from collections.abc import Sequence
from typing import Literal, cast

import jax

from fljax import _validate, accounting
from fljax.accounting import events
from fljax.accounting.accountant import Method
from fljax.accounting.words import at_most, neighbors
from fljax.errors import UnsupportedEventError

_MOST_STEPS = 2**53  # float64 counts no further

Accountant = Literal["all", "auto", "rdp", "pld", "gdp"]


def methods(accountant: Accountant) -> tuple[Method, ...]:
    """The accountants to ask. Raises ValueError for a name that is none of them."""
    _validate.one_of(("all", *accounting.ACCOUNTANTS), accountant=accountant)
    chosen = accounting.METHODS if accountant == "all" else (accountant,)
    return tuple(cast(Method, method) for method in chosen)


def some_bound(accountant: Accountant, methods: Sequence[Method], without: Sequence[str]) -> None:
    """Raises UnsupportedEventError where all of `methods` are `without` a bound, for these
    reasons.
    """
    if len(without) == len(methods):
        raise UnsupportedEventError(
            "Expected an accountant with a bound for this mechanism, got "
            f"accountant={accountant!r}: {without[0]}"
        )


def event(
    noise_multiplier: float, sampling_prob: float, steps: int, relation: str
) -> events.PrivacyEvent:
    """The event of `steps` Poisson-sampled Gaussian mechanisms. Raises ValueError for a number out
    of range.
    """
    _validate.non_negative(noise_multiplier=noise_multiplier)
    _validate.probability(sampling_prob=sampling_prob)
    _validate.positive_int(steps=steps)
    if steps > _MOST_STEPS:
        raise ValueError(f"Expected steps <= {_MOST_STEPS}, got steps={steps}.")
    one = events.PoissonSampled(sampling_prob, events.Gaussian(noise_multiplier))
    return events.PrivacyEvent(
        mechanism=events.SelfComposed(one, steps),
        privacy_unit="example",  # no number depends on it: the caller's unit may be anything
        neighboring_relation=events.NeighboringRelation(relation),
    )


def assumptions(sampling_prob: float, steps: int, relation: str, delta: float) -> str:
    """The conditions under which the numbers hold, in words."""
    joins = (
        "every unit joins every step"
        if sampling_prob == 1
        else (
            f"each unit joins each step by its own coin with chance {at_most(sampling_prob)} "
            "(Poisson, not shuffling)"
        )
    )
    # A sampled unit that is exchanged was there with a norm of its own, and so is the other.
    moves, whole = "one unit moves the sum of a step by at most the clip norm", ""
    if relation == "REPLACE_ONE":
        moves, whole = f"{moves}, exchanging it by at most twice that", "2 * "
    return (
        f"Assumed: {steps} step{'s'[: steps > 1]}; {joins}; {moves}; the noise on that sum is "
        f"Gaussian, real-valued, of standard deviation {whole}noise multiplier * clip norm; the "
        "output of every step is published; "
        f"neighbours differ by {neighbors(relation, 'unit')} ({relation}); delta = "
        f"{at_most(delta)}."
    )


def use_cache(where: pathlib.Path | None) -> None:
    """Keeps compiled code on disk, so that the next call starts at once. None: fljax in the user's
    cache folder.
    """
    if where is None:
        where = (
            pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
            / "fljax"
        )
    jax.config.update("jax_compilation_cache_dir", str(where))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
