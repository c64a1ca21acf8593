"""A record outside the span of the others is seen in a sum that random weights alone hide, and not
behind the noise that is certified.
"""

import jax
import numpy as np
import pytest

from fljax import schemes
from fljax.attacks import rounds, span


def played(name, noise_multiplier, trials=200, **changes):
    config = rounds.config(name, noise_multiplier=noise_multiplier, **changes)
    game = span.span(schemes.get(name), config)
    return game, rounds.play(game, jax.random.key(1), trials)


@pytest.mark.slow(reason="plays thousands of rounds of two schemes")
@pytest.mark.parametrize("name", ["gd_dp", "gsgd_dp"])
def test_weights_alone_give_the_record_away_and_certified_noise_does_not(name):
    _, (present, absent) = played(name, 1e-6)
    assert absent.max() < present.min()
    game, scores = played(name, 1.0, trials=2000)
    certified = rounds.certified_epsilon(game.event, 0.05)
    found = rounds.judge(game.event, scores, certified=certified, delta=0.05, confidence=0.999)
    assert found.measured <= certified
    # A tenth of the noise that is certified is seen by the same scores.
    _, little = played(name, 0.1, trials=2000)
    assert (
        rounds.judge(game.event, little, certified=certified, delta=0.05, confidence=0.999).measured
        > certified
    )


@pytest.mark.slow(reason="compiles two rounds")
def test_two_rounds_add_up():
    config = rounds.config("gd_dp", noise_multiplier=1e-6)
    one, two = (
        rounds.play(span.span(schemes.get("gd_dp"), config, num_rounds=k), jax.random.key(0), 8)[0]
        for k in (1, 2)
    )
    np.testing.assert_allclose(two, 2 * one, rtol=1e-3)


@pytest.mark.parametrize("name", ["dp_fedavg", "dp_fedsgd", "higradavg"])
def test_it_is_for_schemes_whose_example_is_replaced(name):
    with pytest.raises(ValueError, match="Expected a scheme that protects one example"):
        span.span(schemes.get(name), rounds.config(name, noise_multiplier=1.0))
