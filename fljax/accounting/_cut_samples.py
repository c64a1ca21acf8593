"""Poisson samples that are cut to a largest size: the chances of what a unit meets.

With n units, sampling chance q and room for b, others fill the sample with chance `full`: at least
b of the n - 1 others are sampled. Else the unit is in by its own coin alone. Where others fill it,
the unit is in with chance `share`, and in the place of one of them.

Source: arXiv:2508.15089.
"""

from fljax.accounting import events

TAIL_ERROR = 1e-11  # relative, of a chance of a binomial tail as scipy computes it


def chances(mechanism: events.TruncatedPoissonGaussian) -> tuple[float, float]:
    """(full, share), see above; share is 1 where nobody can fill the sample."""
    population, prob, most = mechanism.population, mechanism.sampling_prob, mechanism.most
    full = _more_than(most - 1, population - 1, prob)
    if full == 0:
        return 0.0, 1.0
    return full, min(_more_than(most, population, prob) * most / (full * population), 1.0)


def _more_than(most: int, trials: int, prob: float) -> float:
    """The chance that more than `most` of `trials` units are sampled."""
    if most >= trials:
        return 0.0
    if prob == 1:
        return 1.0
    from scipy.special import bdtrc

    return float(bdtrc(most, trials, prob))
