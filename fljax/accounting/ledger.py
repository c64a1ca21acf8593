"""The append-only record of everything a run released, and what it costs so far."""

from collections.abc import Mapping
from typing import Any

from fljax import _validate
from fljax.accounting import events
from fljax.accounting.accountant import Method, epsilon
from fljax.accounting.events import NeighboringRelation, PrivacyEvent
from fljax.errors import NoGuaranteeError

FORMAT = 1


class Ledger:
    """Append-only list of (event, count) under one unit and one relation; what `privacy.json`
    holds.

    Equal neighbours are counted, not repeated, so that a run of 10,000 equal rounds is one entry.
    Two ledgers are equal when they hold the same entries, and then give the same epsilon bit for
    bit.
    """

    def __init__(
        self, *, privacy_unit: str, neighboring_relation: NeighboringRelation | str
    ) -> None:
        """An empty ledger. Raises ValueError for an unknown unit or relation."""
        empty = PrivacyEvent(
            mechanism=events.Composed(()),
            privacy_unit=privacy_unit,  # type: ignore[arg-type]
            neighboring_relation=neighboring_relation,  # type: ignore[arg-type]
        )
        self._empty = empty
        self._entries: list[tuple[events.Mechanism, int]] = []

    @property
    def privacy_unit(self) -> str:
        """Whose contribution is protected."""
        return self._empty.privacy_unit

    @property
    def neighboring_relation(self) -> NeighboringRelation:
        """Which data sets are neighbours."""
        return self._empty.neighboring_relation

    @property
    def num_events(self) -> int:
        """How many events were appended, counts included."""
        return sum(count for _, count in self._entries)

    @property
    def event(self) -> PrivacyEvent:
        """Everything so far as one event."""
        return self._composed(self._entries)

    def append(self, event: PrivacyEvent, count: int = 1) -> None:
        """Records that `event` ran `count` times.

        Raises:
          ValueError: `count` is not an integer >= 1.
          NoGuaranteeError: the event makes another claim than this ledger.
        """
        self._entries = self._extended(event, count)

    def epsilon(self, *, delta: float, method: Method = "rdp") -> float:
        """Epsilon spent so far at `delta`; see `fljax.accounting.epsilon`."""
        return epsilon(self.event, delta=delta, method=method)

    def would_exceed(
        self,
        event: PrivacyEvent,
        *,
        target_epsilon: float,
        delta: float,
        count: int = 1,
        method: Method = "rdp",
    ) -> bool:
        """True if running `event` `count` more times would spend more than `target_epsilon`. Ask
        before the round.
        """
        return (
            not epsilon(self._composed(self._extended(event, count)), delta=delta, method=method)
            <= target_epsilon
        )

    def to_json(self) -> dict[str, Any]:
        """A tree for `json.dumps`; `from_json` restores the ledger exactly."""
        return {
            "format": FORMAT,
            "privacy_unit": self.privacy_unit,
            "neighboring_relation": str(self.neighboring_relation),
            "entries": [
                {"count": count, "mechanism": events.mechanism_to_json(m)}
                for m, count in self._entries
            ],
        }

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "Ledger":
        """The ledger that `to_json` wrote.

        Raises:
          ValueError: another format, an unknown record, a missing or surplus key, or a value out of
            range.
        """
        events.exact_keys(
            "a ledger", tree, {"format", "privacy_unit", "neighboring_relation", "entries"}
        )
        _validate.one_of([FORMAT], format=tree["format"])
        ledger = cls(
            privacy_unit=tree["privacy_unit"], neighboring_relation=tree["neighboring_relation"]
        )
        for entry in tree["entries"]:
            events.exact_keys("a ledger entry", entry, {"count", "mechanism"})
            _validate.positive_int(count=entry["count"])
            ledger._entries.append((events.mechanism_from_json(entry["mechanism"]), entry["count"]))
        return ledger

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and (self._empty, self._entries) == (
            other._empty,
            other._entries,
        )

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"Ledger({self.privacy_unit}, {self.neighboring_relation}, {self.num_events} events)"

    def _extended(self, event: PrivacyEvent, count: int) -> list[tuple[events.Mechanism, int]]:
        _validate.positive_int(count=count)
        events.check_event("event", event)
        claim = (event.privacy_unit, event.neighboring_relation)
        if claim != (self.privacy_unit, self.neighboring_relation):
            raise NoGuaranteeError(
                f"Expected an event about ({self.privacy_unit}, {self.neighboring_relation}), got "
                f"one about {claim}."
            )
        entries = list(self._entries)
        if entries and entries[-1][0] == event.mechanism:
            count += entries.pop()[1]
        return [*entries, (event.mechanism, int(count))]

    def _composed(self, entries: list[tuple[events.Mechanism, int]]) -> PrivacyEvent:
        parts = tuple(m if count == 1 else events.SelfComposed(m, count) for m, count in entries)
        mechanism = parts[0] if len(parts) == 1 else events.Composed(parts)
        return PrivacyEvent(
            mechanism=mechanism,
            privacy_unit=self._empty.privacy_unit,
            neighboring_relation=self.neighboring_relation,
        )
