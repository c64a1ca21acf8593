"""Accountants with the methods of dp_accounting's, for code that was written for those.

    from fljax.accounting.dp_accountants import PLDAccountant, RdpAccountant

in place of `from dp_accounting.pld import PLDAccountant` and `from dp_accounting.rdp import
RdpAccountant`: the arguments are the same, events are dp_accounting's or fljax's, and
`dp_accounting.calibrate_dp_mechanism` takes them. Bounds are those of `fljax.accounting`, and what
it does not prove is refused.
"""

import abc
import math
import sys
from collections.abc import Sequence
from typing import Any

from fljax import _validate
from fljax.accounting import accountant, events, interop, pld, renyi_of_mechanism
from fljax.accounting.events import Mechanism, NeighboringRelation, PrivacyEvent
from fljax.accounting.pld import of_mechanism, without_replacement
from fljax.accounting.pld.solve import ACCURACY
from fljax.errors import UnsupportedEventError

_ALMOST_ONE = math.nextafter(1.0, 0.0)
_FAR_EPSILON = 1e4  # delta at a larger epsilon is no larger than here


class _Accountant(abc.ABC):
    """What was composed so far, under one unit and one relation."""

    _noise_relative_to = NeighboringRelation.REPLACE_ONE

    def __init__(self, neighboring_relation: Any, privacy_unit: str) -> None:
        self.neighboring_relation = neighboring_relation
        relation = getattr(neighboring_relation, "name", neighboring_relation)
        self._event = PrivacyEvent(
            mechanism=events.Composed(()),
            privacy_unit=privacy_unit,  # type: ignore[arg-type]
            neighboring_relation=relation,
        )
        self._composed: list[tuple[Any, int]] = []

    @property
    def event(self) -> PrivacyEvent:
        """Everything so far, for `fljax.accounting`."""
        return self._event

    @property
    def ledger(self) -> Any:
        """Everything so far as an event of dp_accounting."""
        from dp_accounting import dp_event_builder

        builder = dp_event_builder.DpEventBuilder()
        for event, count in self._composed:
            theirs = interop.to_dp_event(event) if isinstance(event, Mechanism) else event
            builder.compose(theirs, count)
        return builder.build()

    def supports(self, event: Any) -> bool:
        """Whether there is a proved bound for `event` under the relation.

        Raises:
          TypeError: no event. ValueError: one with a number out of its range.
        """
        try:
            self._check(self._claim(self._mechanism(event)))
        except UnsupportedEventError:
            return False
        return True

    def compose(self, event: Any, count: int = 1) -> Any:
        """Counts `event` `count` more times; returns the accountant.

        Raises:
          TypeError: no event. ValueError: `count` < 1, or an event with a number out of its range.
          UnsupportedEventError: nothing is proved of it, or not beside what was composed before.
            Where dp_accounting is imported, its error of this name catches it, too.
        """
        _validate.positive_int(count=count)
        before = self._event.mechanism
        try:
            added = events.SelfComposed(self._mechanism(event), count)
            parts = before.events if isinstance(before, events.Composed) else (before,)
            whole = self._claim(events.Composed((*parts, added)))
            self._check(whole)
        except UnsupportedEventError as error:
            raise _also_theirs(str(error)) from error
        self._event = whole
        self._composed.append((event, count))
        return self

    def get_epsilon(self, target_delta: float) -> float:
        """Upper bound on epsilon at `target_delta` in [0, 1]."""
        _validate.closed_unit(target_delta=target_delta)
        if target_delta == 1:  # which all but a release without any guarantee meet
            return math.inf if self._epsilon(_ALMOST_ONE) == math.inf else 0.0
        if target_delta == 0:
            return accountant.epsilon(self._event, delta=0.0)
        return self._epsilon(target_delta)

    def get_delta(self, target_epsilon: float) -> float:
        """Upper bound on delta at `target_epsilon` >= 0, infinity included."""
        return self._delta(min(target_epsilon, _FAR_EPSILON))

    def _mechanism(self, event: Any) -> Mechanism:
        if isinstance(event, Mechanism):
            return event
        if not events.is_foreign(event):
            raise TypeError(
                "Expected event to be one of dp_accounting or fljax.accounting.events, got "
                f"event={event!r}."
            )
        relation = self._event.neighboring_relation
        replaced = relation == NeighboringRelation.REPLACE_ONE
        return interop.from_dp_event(
            event,
            privacy_unit=self._event.privacy_unit,
            neighboring_relation=relation,
            noise_relative_to=self._noise_relative_to if replaced else None,
        ).mechanism

    def _claim(self, mechanism: Mechanism) -> PrivacyEvent:
        return PrivacyEvent(
            mechanism=mechanism,
            privacy_unit=self._event.privacy_unit,
            neighboring_relation=self._event.neighboring_relation,
        )

    @abc.abstractmethod
    def _check(self, event: PrivacyEvent) -> None:
        """Raises UnsupportedEventError where there is no bound."""

    @abc.abstractmethod
    def _epsilon(self, delta: float) -> float:
        """A proved upper bound at `delta`."""

    @abc.abstractmethod
    def _delta(self, epsilon: float) -> float:
        """A proved upper bound at `epsilon`."""


class RdpAccountant(_Accountant):
    """Renyi divergences, as `method="rdp"`.

    Under REPLACE_ONE a noise multiplier of dp_accounting's events is relative to how far an
    exchange of units moves the sum, as its Renyi accountant takes it.
    """

    def __init__(
        self,
        orders: Sequence[float] | None = None,
        neighboring_relation: Any = NeighboringRelation.ADD_OR_REMOVE_ONE,
        *,
        privacy_unit: str = "example",
    ) -> None:
        """orders: >= 1, infinity included; None: fljax's, which grow where their end is best."""
        super().__init__(neighboring_relation, privacy_unit)
        self._orders = None if orders is None else tuple(map(float, orders))

    def _check(self, event: PrivacyEvent) -> None:
        renyi_of_mechanism.curve(event.mechanism, event.neighboring_relation, (2.0,))

    def _epsilon(self, delta: float) -> float:
        return accountant.epsilon(self._event, delta=delta, orders=self._orders)

    def _delta(self, epsilon: float) -> float:
        return accountant.delta(self._event, epsilon=epsilon, orders=self._orders)


class PLDAccountant(_Accountant):
    """Privacy-loss distributions, as `method="pld"`.

    Under REPLACE_ONE a noise multiplier of dp_accounting's events is relative to how far one unit
    moves the sum by being there, as its PLD accountant takes it: an exchange moves it twice as far.
    """

    _noise_relative_to = NeighboringRelation.ADD_OR_REMOVE_ONE

    def __init__(
        self,
        neighboring_relation: Any = NeighboringRelation.ADD_OR_REMOVE_ONE,
        value_discretization_interval: float = 1e-4,
        *,
        privacy_unit: str = "example",
    ) -> None:
        """value_discretization_interval: bounds are about as close as on lattices of this step;
        they hold for every step.
        """
        super().__init__(neighboring_relation, privacy_unit)
        _validate.positive(value_discretization_interval=value_discretization_interval)
        self._interval = value_discretization_interval

    def _check(self, event: PrivacyEvent) -> None:
        if without_replacement.rounds_of(event) is None:
            of_mechanism.leaves(event.mechanism, event.neighboring_relation)

    def _epsilon(self, delta: float) -> float:
        if without_replacement.rounds_of(self._event) is not None:
            return accountant.epsilon(self._event, delta=delta, method="pld")
        return pld.epsilon(self._event, delta, accuracy=self._accuracy())

    def _delta(self, epsilon: float) -> float:
        if without_replacement.rounds_of(self._event) is not None:
            return accountant.delta(self._event, epsilon=epsilon, method="pld")
        # of the logarithm of delta, which falls some times as fast as epsilon rises
        return pld.delta(self._event, epsilon, accuracy=20 * self._accuracy())

    def _accuracy(self) -> float:
        """A step h errs by about h^2 in each composition."""
        found = of_mechanism.leaves(self._event.mechanism, self._event.neighboring_relation)
        return min(max(sum(found.values()), 1) * self._interval**2, ACCURACY)


def _also_theirs(message: str) -> UnsupportedEventError:
    """An error that dp_accounting's own of this name catches, where that is imported."""
    them = sys.modules.get("dp_accounting.privacy_accountant")
    if them is None:
        return UnsupportedEventError(message)
    both = (UnsupportedEventError, them.UnsupportedEventError)
    return type("UnsupportedEventError", both, {})(message)
