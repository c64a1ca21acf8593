"""To and from the event trees of dp_accounting, which is imported only here and only when
called.
"""

from typing import Any

from fljax import _validate
from fljax.accounting import events, mechanisms
from fljax.accounting.events import Mechanism, NeighboringRelation, PrivacyEvent
from fljax.errors import UnsupportedEventError


def _dp_event() -> Any:
    try:
        from dp_accounting import dp_event
    except ImportError as error:
        raise ImportError(
            "Expected dp_accounting to be installed: pip install dp-accounting."
        ) from error
    return dp_event


def to_dp_event(event: PrivacyEvent | Mechanism) -> Any:
    """The dp_accounting event of a mechanism; unit and relation stay behind: pass the relation to
    their accountant.

    Noise multipliers stay relative to the sensitivity under the event's own relation. So does their
    Renyi accountant read them. Their PLD accountant takes them under REPLACE_ONE as relative to the
    sensitivity to adding or removing, and doubles the latter: its epsilon is then an upper bound,
    about twice ours.

    Raises:
      UnsupportedEventError: dp_accounting has no such event.
      ImportError: dp_accounting is not installed.
    """
    them = _dp_event()
    mechanism = event.mechanism if isinstance(event, PrivacyEvent) else event
    match mechanism:
        case events.Gaussian(noise):
            return them.GaussianDpEvent(noise)
        case (
            events.CorrelatedGaussian() | events.SampledCorrelatedGaussian()
        ):  # the one Gaussian mechanism that it is
            return them.GaussianDpEvent(mechanisms.effective_noise(mechanism))
        case events.Laplace(noise):
            return them.LaplaceDpEvent(noise)
        case events.DiscreteLaplace(noise, sensitivity):
            return them.DiscreteLaplaceDpEvent(noise, sensitivity)
        case events.RandomizedResponse(noise, buckets):
            return them.RandomizedResponseDpEvent(noise, buckets)
        case events.TreeAggregation(noise, counts):
            return them.SingleEpochTreeAggregationDpEvent(noise, list(counts))
        case events.RepeatAndSelect(inner, mean, shape):
            number = float("inf") if shape == "poisson" else shape
            return them.RepeatAndSelectDpEvent(to_dp_event(inner), mean, number)
        case events.SampledWithReplacement(population, size, inner):
            return them.SampledWithReplacementDpEvent(population, size, to_dp_event(inner))
        case events.TruncatedPoissonGaussian(population, prob, most, noise):
            return them.TruncatedSubsampledGaussianDpEvent(population, prob, most, noise)
        case events.MixtureOfGaussians(stddev, sensitivities, probs):
            return them.MixtureOfGaussiansDpEvent(stddev, list(sensitivities), list(probs))
        case events.PoissonSampled(prob, inner):
            return them.PoissonSampledDpEvent(prob, to_dp_event(inner))
        case events.SampledWithoutReplacement(population, size, inner):
            return them.SampledWithoutReplacementDpEvent(population, size, to_dp_event(inner))
        case events.ZCdp(rho, xi):
            return them.ZCDpEvent(rho, xi)
        case events.NonPrivate():
            return them.NonPrivateDpEvent()
        case events.Composed(()):
            return them.NoOpDpEvent()
        case events.Composed(parts):
            return them.ComposedDpEvent([to_dp_event(part) for part in parts])
        case events.SelfComposed(inner, count):
            return them.SelfComposedDpEvent(to_dp_event(inner), count)
    raise UnsupportedEventError(f"Expected an event that dp_accounting has, got {mechanism!r}.")


def from_dp_event(
    event: Any,
    *,
    privacy_unit: str,
    neighboring_relation: NeighboringRelation | str,
    noise_relative_to: NeighboringRelation | str | None = None,
) -> PrivacyEvent:
    """A dp_accounting event under a claim.

    Args:
      event: a `dp_accounting.DpEvent`.
      privacy_unit, neighboring_relation: as in `PrivacyEvent`; dp_accounting's own enum is accepted
        as the relation.
      noise_relative_to: the relation under which the event's noise multipliers are noise /
        sensitivity. Needed under REPLACE_ONE where the event adds noise, since dp_accounting's
        accountants differ there. "REPLACE_ONE", as its Renyi accountant reads them: they stay.
        "ADD_OR_REMOVE_ONE" or "REPLACE_SPECIAL", as its PLD accountant does: exchanging a unit
        moves twice as far as removing it, and they are halved; of discrete Laplace noise the
        sensitivity is doubled. Truncated samples count a unit's own share in all relations.

    Raises:
      ValueError: `noise_relative_to` is missing where it is needed, or does not go with the
        relation.
      UnsupportedEventError: fljax has no such record, or a mixture, whose amounts have no twice, is
        to be halved.
    """
    relation = getattr(neighboring_relation, "name", neighboring_relation)
    stated = getattr(noise_relative_to, "name", noise_relative_to)
    names = [each.value for each in NeighboringRelation]
    _validate.one_of(names, neighboring_relation=relation)
    _validate.one_of([None, *names], noise_relative_to=stated)
    replaced = NeighboringRelation.REPLACE_ONE
    if relation == replaced and stated is None and _adds_noise(event):
        raise ValueError(
            "Expected noise_relative_to to say under which relation noise multipliers are noise / "
            "sensitivity, where neighboring_relation is REPLACE_ONE: 'REPLACE_ONE', or "
            "'ADD_OR_REMOVE_ONE' for half of that sensitivity; got noise_relative_to=None."
        )
    if relation != replaced and stated == replaced:
        raise ValueError(
            "Expected noise_relative_to other than REPLACE_ONE for "
            f"neighboring_relation={relation!r}, of which it "
            f"says nothing, got noise_relative_to={stated!r}."
        )
    return PrivacyEvent(
        mechanism=_mechanism(event, halved=relation == replaced and stated not in (None, replaced)),
        privacy_unit=privacy_unit,  # type: ignore[arg-type]
        neighboring_relation=relation,  # type: ignore[arg-type]
    )


def _adds_noise(event: Any) -> bool:
    them = _dp_event()
    match event:
        case (
            them.GaussianDpEvent()
            | them.LaplaceDpEvent()
            | them.DiscreteLaplaceDpEvent()
            | them.MixtureOfGaussiansDpEvent()
        ):
            return True
        case them.ComposedDpEvent():
            return any(_adds_noise(part) for part in event.events)
    return _adds_noise(event.event) if hasattr(event, "event") else False


def _mechanism(event: Any, *, halved: bool) -> Mechanism:
    them = _dp_event()
    scale = 0.5 if halved else 1.0
    match event:
        case them.NoOpDpEvent():
            return events.Composed(())
        case them.NonPrivateDpEvent():
            return events.NonPrivate()
        case them.GaussianDpEvent():
            return events.Gaussian(scale * float(event.noise_multiplier))
        case them.LaplaceDpEvent():
            return events.Laplace(scale * float(event.noise_multiplier))
        case them.DiscreteLaplaceDpEvent():
            return events.DiscreteLaplace(
                float(event.noise_parameter), event.sensitivity * (2 if halved else 1)
            )
        case them.RandomizedResponseDpEvent():
            return events.RandomizedResponse(float(event.noise_parameter), event.num_buckets)
        case them.SingleEpochTreeAggregationDpEvent():
            counts = event.step_counts
            return events.TreeAggregation(
                float(event.noise_multiplier),
                tuple(counts) if isinstance(counts, list | tuple) else (counts,),
            )
        case them.RepeatAndSelectDpEvent():
            inner = _mechanism(event.event, halved=halved)
            return events.RepeatAndSelect(
                inner, event.mean, "poisson" if event.shape == float("inf") else event.shape
            )
        case them.TruncatedSubsampledGaussianDpEvent():
            return events.TruncatedPoissonGaussian(
                event.dataset_size,
                float(event.sampling_probability),
                event.truncated_batch_size,
                float(event.noise_multiplier),
            )
        case them.MixtureOfGaussiansDpEvent():
            if halved:
                raise UnsupportedEventError(
                    "Expected a mixture of Gaussians with sensitivities under REPLACE_ONE, "
                    f"got noise_relative_to another relation for {event!r}."
                )
            return events.MixtureOfGaussians(
                float(event.standard_deviation),
                tuple(event.sensitivities),
                tuple(event.sampling_probs),
            )
        case them.PoissonSampledDpEvent():
            return events.PoissonSampled(
                float(event.sampling_probability), _mechanism(event.event, halved=halved)
            )
        case them.SampledWithoutReplacementDpEvent() | them.SampledWithReplacementDpEvent():
            inner = _mechanism(event.event, halved=halved)
            if event.sample_size == 0:  # which looks at no unit
                return events.Composed(())
            again = isinstance(event, them.SampledWithReplacementDpEvent)
            kind = events.SampledWithReplacement if again else events.SampledWithoutReplacement
            return kind(event.source_dataset_size, event.sample_size, inner)
        case them.ZCDpEvent():
            return events.ZCdp(event.rho, event.xi)
        case them.ComposedDpEvent():
            return events.Composed(tuple(_mechanism(part, halved=halved) for part in event.events))
        case them.SelfComposedDpEvent():
            return events.SelfComposed(_mechanism(event.event, halved=halved), event.count)
    raise UnsupportedEventError(
        f"Expected a dp_accounting event that fljax has a record for, got {event!r}."
    )
