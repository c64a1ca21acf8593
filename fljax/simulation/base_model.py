"""The model beside which LoRA trains: where it comes from before the first round, and its copy in
the run folder.

It is read from a folder of published weights, is the model of another run, or learns from public
text that belongs to the data set and that nobody in the data has a part in. Drawn weights would be
no base: small matrices beside them learn next to nothing.
"""

import pathlib
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fljax import data, models
from fljax.models import weights
from fljax.models.functions import Functional
from fljax.simulation import warm_start
from fljax.simulation.config import Config, ModelConfig
from fljax.simulation.record import checkpoint, folder
from fljax.types import LossFn, Params

# Of public text: enough for a decoder of a million parameters to learn what `roles` share.
STEPS, TEXTS = 400, 32  # of AdamW, and texts in each
_RATE, _B2 = 3e-3, 0.98
_SEED = 0  # of the weights before that: the base is public, and the same in all runs
_MOST = 2**31  # bytes; a program that holds more of constants cannot be written

Origin = dict[str, Any] | str


def published(name: str) -> str:
    """What a claim owes to weights that were read from a folder."""
    return (
        f"The model began with the weights in {name}, which are taken to be public: what was in "
        "the text that they were trained on is not counted."
    )


def of_text(dataset: str, num_texts: int) -> str:
    """What a claim owes to weights that were trained on public text."""
    return (
        f"The frozen weights were trained on {num_texts:,} public texts of {dataset} before the "
        "first round, in which nobody in the data has a part: they are not counted."
    )


def of(
    config: Config, dataset: data.Dataset, create: Callable[..., Functional], kept: Params | None
) -> tuple[Params, Origin]:
    """(weights of the plain model, what the claim owes to them).

    Args:
      config: of a run with `lora`.
      dataset: of the run.
      create: `key=` -> the plain model.
      kept: what the run has begun with, if it goes on; used where it is of the same model.

    Raises:
      ValueError: there is nothing to take them from, or as `warm_start.model`.
    """
    chosen = config.model
    plain = create(key=jax.random.key(_SEED))
    if sum(leaf.nbytes for leaf in jax.tree.leaves(plain.params)) >= _MOST:
        raise ValueError(
            f"Expected frozen weights below 2 GiB in a run, got model={chosen.model!r}: "
            "fljax.models.functions.parted has them as an argument of one's own program."
        )
    if chosen.init is not None:
        return warm_start.model(chosen.init, plain.params)
    if is_published(chosen):
        return plain.params, published(chosen.model)
    num_texts = STEPS * TEXTS
    length = int(dataset.train["x"].shape[1]) + 1 if dataset.train["x"].ndim == 2 else 2
    text = data.builtin.public_text(config.data.dataset, num_texts, length)
    if text is None:
        raise ValueError(
            f"Expected lora=none, model=weights:FOLDER, init=RUN, or data with public text (roles) "
            f"to train what is frozen, got lora={chosen.lora} with model={chosen.model!r} and "
            f"dataset={config.data.dataset!r}: beside drawn weights it would learn next to nothing."
        )
    told = of_text(config.data.dataset, num_texts)
    if kept is not None and checkpoint.structure(kept) == checkpoint.structure(plain.params):
        return kept, told
    loss = models.LOSSES[chosen.loss](plain.apply)
    return _trained(loss, plain.params, text, dataset.task == "tokens"), told


def is_published(config: ModelConfig) -> bool:
    """Whether the model's weights are in a folder of their own."""
    return config.model.startswith(models.classifiers.WEIGHTS)


def _trained(loss: LossFn, params: Params, text: np.ndarray, tokens: bool) -> Params:
    """By AdamW, each text once; of windows with a class the last symbol is the class."""
    optimizer = optax.adamw(_RATE, b2=_B2)

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Params, state: Any, some: jax.Array) -> tuple[Params, Any]:
        batch = {"x": some[:, :-1], "y": some[:, 1:] if tokens else some[:, -1]}
        mean = lambda params: jnp.mean(jax.vmap(loss, (None, 0))(params, batch))
        gradient = jax.grad(mean)(params)
        with jax.numpy_dtype_promotion("standard"):  # optax multiplies its counts by floats
            updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    params = jax.tree.map(jnp.array, params)  # a copy, which the first step may overwrite
    state = optimizer.init(params)
    for at in range(0, len(text), TEXTS):
        params, state = step(params, state, jnp.asarray(text[at : at + TEXTS]))
    return params


def write(run_dir: pathlib.Path, config: ModelConfig, base: Params | None) -> None:
    """Writes the base into the run folder, unless it is there, or has a folder of its own.

    Raises:
      DiskFullError: no room.
    """
    path = run_dir / folder.BASE
    if base is None or path.exists() or (is_published(config) and config.init is None):
        return
    leaves = jax.tree_util.tree_leaves_with_path(base)
    name = partial(jax.tree_util.keystr, simple=True, separator=".")
    named = {name(place): np.asarray(leaf) for place, leaf in leaves}
    folder.write_atomically(path, weights.to_bytes(named))


def read(run_dir: pathlib.Path) -> Params | None:
    """The base in a run folder; None where there is none.

    Raises:
      ValueError: the file is damaged.
    """
    path = run_dir / folder.BASE
    if not path.is_file():
        return None
    nested: dict[str, Any] = {}
    for name, array in weights.arrays(path).items():
        *parents, last = name.split(".")
        node = nested
        for step in parents:
            node = node.setdefault(step, {})
        node[last] = jnp.asarray(array)
    return nested
