"""To and from the event trees of dp_accounting, which is imported only here and only when called."""

from typing import Any

from fljax.accounting import events
from fljax.accounting.events import Mechanism, NeighboringRelation, PrivacyEvent
from fljax.errors import UnsupportedEventError


def _dp_event() -> Any:
    try:
        from dp_accounting import dp_event
    except ImportError as error:
        raise ImportError("Expected dp_accounting to be installed: pip install dp-accounting.") from error
    return dp_event


def to_dp_event(event: PrivacyEvent | Mechanism) -> Any:
    """The dp_accounting event of a mechanism; unit and relation stay behind: pass the relation to their accountant.

    Raises:
      UnsupportedEventError: dp_accounting has no such event.
      ImportError: dp_accounting is not installed.
    """
    them = _dp_event()
    mechanism = event.mechanism if isinstance(event, PrivacyEvent) else event
    match mechanism:
        case events.Gaussian(noise):
            return them.GaussianDpEvent(noise)
        case events.Laplace(noise):
            return them.LaplaceDpEvent(noise)
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


def from_dp_event(event: Any, *, privacy_unit: str, neighboring_relation: NeighboringRelation | str) -> PrivacyEvent:
    """A dp_accounting event under a claim.

    Args:
      event: a `dp_accounting.DpEvent`.
      privacy_unit, neighboring_relation: as in `PrivacyEvent`; dp_accounting's own enum is accepted as the relation.

    Raises:
      UnsupportedEventError: fljax has no such record.
    """
    relation = getattr(neighboring_relation, "name", neighboring_relation)
    return PrivacyEvent(
        mechanism=_mechanism(event),
        privacy_unit=privacy_unit,  # type: ignore[arg-type]
        neighboring_relation=relation,  # type: ignore[arg-type]
    )


def _mechanism(event: Any) -> Mechanism:
    them = _dp_event()
    match event:
        case them.NoOpDpEvent():
            return events.Composed(())
        case them.NonPrivateDpEvent():
            return events.NonPrivate()
        case them.GaussianDpEvent():
            return events.Gaussian(float(event.noise_multiplier))
        case them.LaplaceDpEvent():
            return events.Laplace(float(event.noise_multiplier))
        case them.MixtureOfGaussiansDpEvent():
            return events.MixtureOfGaussians(
                float(event.standard_deviation), tuple(event.sensitivities), tuple(event.sampling_probs)
            )
        case them.PoissonSampledDpEvent():
            return events.PoissonSampled(float(event.sampling_probability), _mechanism(event.event))
        case them.SampledWithoutReplacementDpEvent():
            return events.SampledWithoutReplacement(
                event.source_dataset_size, event.sample_size, _mechanism(event.event)
            )
        case them.ZCDpEvent():
            return events.ZCdp(event.rho, event.xi)
        case them.ComposedDpEvent():
            return events.Composed(tuple(_mechanism(part) for part in event.events))
        case them.SelfComposedDpEvent():
            return events.SelfComposed(_mechanism(event.event), event.count)
    raise UnsupportedEventError(f"Expected a dp_accounting event that fljax has a record for, got {event!r}.")
