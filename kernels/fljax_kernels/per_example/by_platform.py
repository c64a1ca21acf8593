"""An engine for each platform: forms of products are chosen where the program is lowered."""

import copy
from collections.abc import Callable
from typing import Any

import jax

from fljax_kernels import _platforms
from fljax_kernels.per_example import jaxprs
from fljax_kernels.per_example.batches import fresh_keys

Engine = Any
Product = Callable[[Engine], Any]


def _drawing_anew(engine: Engine) -> Engine:
    """The engine, whose examples' keys may be used once more: all products draw the same."""
    batch = engine._batch
    engine._batch = batch._replace(examples=fresh_keys(batch.examples))
    return engine


class ByPlatform:
    """Engines made by `make`, of the form that the platforms which are traced for take.

    alike: whether one engine serves all platforms. Then, and inside a form of one platform, it is
    kept, so that products share its passes. Where forms differ each product is staged for each of
    them, with an engine of its own: what one product's trace has made no other may read.
    """

    def __init__(self, make: Callable[[], Engine], alike: bool):
        self._make, self._alike = make, alike
        self._unused: dict[Any, Engine] = {}
        self._used: dict[Any, Engine] = {}
        self._seen: tuple[Any, jax.Array, Any] | None = None  # by whom; values and auxiliaries

    def _engine(self) -> Engine:
        """One that has computed nothing yet: its plan is made once."""
        key = _platforms.candidates()
        if key not in self._unused:
            self._unused[key] = self._make()
        return copy.copy(self._unused[key])

    def take(self, product: Product) -> Any:
        """`product(engine)`."""
        groups = _platforms.split_off("cpu")
        if self._alike or len(groups) == 1:
            key = _platforms.candidates()
            if key not in self._used:
                self._used[key] = self._engine()
            return product(self._used[key])
        engines = []
        for group in groups:
            # Here, not in a branch: a plan's constants are then values that every branch may read.
            with _platforms.only(*group):
                engines.append(_drawing_anew(self._engine()))

        def for_cpus() -> Any:
            return product(copy.copy(engines[0]))

        def for_others() -> Any:
            return product(copy.copy(engines[1]))

        return _platforms.choose(cpu=for_cpus, default=for_others)

    def take_with_values(self, product: Product) -> Any:
        """The same, and its pass's values and auxiliaries are kept for `values` and `aux`."""

        def more(engine: Engine) -> Any:
            result = product(engine)
            return result, engine.values(), engine.aux()

        result, values, aux = self.take(more)
        self._seen = jaxprs.trace_state(), values, aux
        return result

    def values(self) -> jax.Array:
        """Losses `[B]`."""
        seen = self._of_this_trace()
        return self.take(lambda engine: engine.values()) if seen is None else seen[0]

    def aux(self) -> Any:
        """Auxiliaries with a leading axis B."""
        seen = self._of_this_trace()
        return self.take(lambda engine: engine.aux()) if seen is None else seen[1]

    def _of_this_trace(self) -> tuple[jax.Array, Any] | None:
        if self._seen is None or self._seen[0] != jaxprs.trace_state():
            return None
        return self._seen[1:]

    def explain(self, platform: str | None) -> str:
        """Of the engine for a platform; None: JAX's default backend."""
        with _platforms.only(_platforms.named(platform)):
            text: str = self._make().explain()
        return text
