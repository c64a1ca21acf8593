"""An engine for each platform: forms of products are chosen where the program is lowered."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import jax

from fljax_kernels import _platforms
from fljax_kernels.per_example import jaxprs
from fljax_kernels.per_example.batches import fresh_keys
from fljax_kernels.per_example.taps import Plan, Traced

Engine = Any
Product = Callable[[Engine], Any]


def _drawing_anew(engine: Engine) -> Engine:
    """A copy of it, whose examples' keys may be used once more: all products draw the same."""
    engine, batch = copy.copy(engine), engine._batch
    engine._batch = batch._replace(examples=fresh_keys(batch.examples))
    return engine


class ByPlatform:
    """Engines made by `make`, of the form that the platforms which are traced for take.

    make: takes a plan, or None for one of its own. trace: what plans are made of, None for engines
    that take none.
    alike: whether one engine serves all platforms. Then, and inside a form of one platform, it is
    kept, so that products share its passes. Where forms differ each product is staged for each of
    them. The pass before it, the most of the work, is traced once where platforms have the same.
    """

    def __init__(
        self,
        make: Callable[[Plan | None], Engine],
        alike: bool,
        trace: Callable[[], Traced | None],
    ):
        self._make, self._alike, self._trace = make, alike, trace
        self._used: dict[Any, Engine] = {}
        self._found: tuple[Any, dict[str, Engine]] | None = None  # by whom
        self._seen: tuple[Any, jax.Array, Any] | None = None  # by whom; values and auxiliaries

    def take(self, product: Product) -> Any:
        """`product(engine)`."""
        key = _platforms.candidates()
        if self._alike or len(key) == 1:
            if key not in self._used:
                self._used[key] = self._make(None)
            return product(self._used[key])
        engines = {name: _drawing_anew(one) for name, one in self._one_for_each().items()}
        forms = {name: functools.partial(product, engine) for name, engine in engines.items()}
        return _platforms.choose(default=forms[key[-1]], **forms)

    def _one_for_each(self) -> dict[str, Engine]:
        """Engines by platform, that have computed nothing but the passes that they share.

        Made here, not in a branch: a plan's constants and a shared pass are values that every
        branch may read.
        """
        names = _platforms.candidates()
        state = jaxprs.trace_state(), names
        if self._found is None or self._found[0] != state:
            traced, engines = self._trace(), {}
            for name in names:
                with _platforms.only(name):
                    engines[name] = self._make(None if traced is None else traced.plan())
            for at, name in enumerate(names):
                engine = engines[name]
                alike = [engines[other] for other in names[at + 1 :]]
                alike = [other for other in alike if engine.has_pass_of(other)]
                if alike and "_pass" not in engine.__dict__:
                    engine._pass = _drawing_anew(engine)._pass
                for other in alike:
                    other._pass = engine._pass
            self._found = state, engines
        return self._found[1]

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
            text: str = self._make(None).explain()
        return text
