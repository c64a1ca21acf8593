"""What a round of silos does to a subject: its items in a batch, and the silos that hold them.

Source: Marathe et al. (2022), "Subject Granular Differential Privacy in Federated Learning",
arXiv:2206.03617; the exact law of a subject's items: Ganesh (2024), arXiv:2401.10294.
"""

from collections.abc import Callable, Sequence

from fljax.accounting import events, mixture

Step = Callable[[float], events.Mechanism]  # of a noise multiplier


def event(
    step: Step,
    *,
    noise_multiplier: float,
    silo_noise: Sequence[float],
    holders: int,
    num_steps: int,
) -> events.PrivacyEvent:
    """One round at subject level; `step(noise_multiplier)`: what one local step of a silo does to
    its largest subject.

    The server sees every silo's update, so that a subject in `holders` silos meets as many
    mechanisms in each of `num_steps` local steps: at worst those with the least noise. silo_noise:
    for each silo a factor on its noise; empty: all 1.
    """
    factors = sorted(silo_noise)[:holders] or [1.0] * holders
    parts = [
        events.SelfComposed(step(noise_multiplier * factor), num_steps * factors.count(factor))
        for factor in dict.fromkeys(factors)
    ]
    return events.PrivacyEvent(
        mechanism=parts[0] if len(parts) == 1 else events.Composed(tuple(parts)),
        privacy_unit="subject",
        neighboring_relation=events.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


def counted(num_items: int, item_sampling_prob: float, *, cap: int | None = None) -> Step:
    """A step in which a subject moves the sum by min(J, cap) clip norms, J ~ Binomial(num_items,
    item_sampling_prob) its items in the batch; noise is counted in clip norms.
    """
    return lambda noise: mixture.item_sum(noise, num_items, item_sampling_prob, cap=cap)


def present(num_items: int, item_sampling_prob: float, *, move: float = 1) -> Step:
    """A step in which a subject moves the sum by `move` times the sensitivity if any of its items
    is in the batch.
    """
    prob = mixture.subject_sampling_prob(num_items, item_sampling_prob)
    return lambda noise: events.PoissonSampled(prob, events.Gaussian(noise / move))
