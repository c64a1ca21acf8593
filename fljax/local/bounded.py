"""A function whose output one privacy unit moves by a known distance at most."""

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class BoundedSensitivityCallable:
    """A function whose output one privacy unit moves by a known L2 distance at most.

    If `has_aux`, the function returns a pair and the bound is that of its first part.
    """

    fun: Callable[..., Any]
    l2_norm_bound: Any
    has_aux: bool

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fun(*args, **kwargs)

    def sensitivity(self, neighboring_relation: Any = "REPLACE_SPECIAL") -> Any:
        """The L2 distance between outputs on neighbouring batches, at most.

        Args:
          neighboring_relation: an `accounting.events.NeighboringRelation`, dp_accounting's, or its
            name.

        Raises:
          ValueError: the relation is not one of ADD_OR_REMOVE_ONE, REPLACE_ONE, REPLACE_SPECIAL.
        """
        # By name: the enumerations of other libraries are welcome.
        name = getattr(neighboring_relation, "name", neighboring_relation)
        factors = {"ADD_OR_REMOVE_ONE": 1, "REPLACE_SPECIAL": 1, "REPLACE_ONE": 2}
        if name not in factors:
            raise ValueError(
                f"Expected neighboring_relation to be one of {list(factors)}, got {name!r}."
            )
        return factors[name] * self.l2_norm_bound
