"""Models of keras 3 under its JAX backend, as params and a pure function of one example."""

import contextlib
import importlib.util
import inspect
import os
import random
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax.models.functions import Functional
from fljax.types import Params


def is_model(thing: Any) -> bool:
    """Whether it is a keras layer or model; keras is not imported for that."""
    return any(kind.__module__.partition(".")[0] == "keras" for kind in type(thing).__mro__)


def choose_jax() -> None:
    """Lets a keras that is not yet imported come up on JAX, unless a backend was chosen."""
    if "keras" not in sys.modules and importlib.util.find_spec("keras") is not None:
        os.environ.setdefault("KERAS_BACKEND", "jax")


@contextlib.contextmanager
def seeded(key: jax.Array) -> Iterator[None]:
    """Makes a keras that is there draw initial weights by the key; other generators go on after."""
    if "keras" not in sys.modules:
        yield
        return
    import keras

    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    words = np.asarray(jax.random.key_data(key)).ravel()
    keras.utils.set_random_seed(int(np.random.SeedSequence(words.tolist()).generate_state(1)[0]))
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002


def functional(model: Any, one: jax.ShapeDtypeStruct) -> Functional:
    """The functional view of a keras model, in evaluation mode.

    Args:
      model: takes a batch. One that is not built yet is built for one example.
      one: an example.

    Returns:
      `Functional`: params has an entry for each trainable variable, in keras' own order, named
      "PLACE.NAME"; frozen variables stay as they are.

    Raises:
      ValueError: keras runs on another backend; the model has nothing to train, or losses of its
        own; or training would change its state: batch statistics or dropout.
    """
    import keras

    kind = type(model).__name__
    if keras.backend.backend() != "jax":
        raise ValueError(
            f"Expected keras on JAX for a {kind}, got backend={keras.backend.backend()!r}: set "
            "KERAS_BACKEND=jax before keras is imported."
        )
    batch = jnp.zeros((1, *one.shape), one.dtype)
    model(batch)  # builds what is not built
    trained = [jnp.asarray(variable.value) for variable in model.trainable_variables]
    kept = [jnp.asarray(variable.value) for variable in model.non_trainable_variables]
    _check(model, trained, kept, batch)
    names = [
        f"{place}.{variable.path.rpartition('/')[2]}"
        for place, variable in enumerate(model.trainable_variables)
    ]

    def apply(params: Params, x: Any) -> jax.Array:
        values = [params[name] for name in names]
        output, _ = model.stateless_call(values, kept, x[None], **_mode(model, training=False))
        return output[0]  # type: ignore[no-any-return]

    return Functional(dict(zip(names, trained, strict=True)), apply)


def _mode(model: Any, *, training: bool) -> dict[str, bool]:
    """The argument for `call`; one that does not take it is always in evaluation mode."""
    parameters = inspect.signature(model.call).parameters.values()
    takes = any(p.name == "training" or p.kind is p.VAR_KEYWORD for p in parameters)
    return {"training": training} if takes else {}


def _check(model: Any, trained: list[jax.Array], kept: list[jax.Array], batch: Any) -> None:
    kind = type(model).__name__
    if not trained:
        raise ValueError(f"Expected a keras model with trainable variables, got a {kind} of none.")
    if model.losses:
        raise ValueError(
            f"Expected a keras model without losses of its own, got a {kind} with a regularizer: "
            "a loss is of one example, and is given beside the model."
        )

    def after(values: list[jax.Array]) -> Any:
        return model.stateless_call(trained, values, batch, **_mode(model, training=True))[1]

    # What a training step hands through is the same variable of the traced program.
    traced = jax.make_jaxpr(after)(kept).jaxpr
    pairs = zip(model.non_trainable_variables, traced.invars, traced.outvars, strict=True)
    changed = [variable.path for variable, old, new in pairs if old is not new]
    if changed:
        raise ValueError(
            f"Expected a keras model without state that training changes, got a {kind} with "
            f"{', '.join(changed)}: batch statistics mix the examples of a batch, and dropout "
            "draws from no key of the run. Use GroupNormalization or LayerNormalization, freeze a "
            "trained BatchNormalization, and leave Dropout out."
        )
