"""Attacks on victims of `fljax.papers.channel.victims`: on what their models are, and how a
reconstruction looks.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax.attacks import (
    gradient_inversion,
    membership,
    metrics,
    model_inversion,
    shadow,
    white_box,
)
from fljax.attacks._blocks import in_blocks
from fljax.papers.channel.victims import Task

LOOKS = ("mse", "psnr", "ssim", "cosine")  # of a reconstruction beside the truth
SEARCH = gradient_inversion.Settings(num_iterations=300)


def looks(task: Task, found: jax.Array, truth: jax.Array) -> dict[str, jax.Array]:
    """`LOOKS` of images `[N, ...]`, each `[N]`."""
    wide = task.box[1] - task.box[0]
    return {
        "mse": jax.vmap(metrics.mse)(found, truth),
        "psnr": jax.vmap(lambda a, b: metrics.psnr(a, b, data_range=wide))(found, truth),
        "ssim": ssim(found, truth, wide),
        "cosine": jax.vmap(metrics.cosine)(found, truth),
    }


def ssim(found: jax.Array, truth: jax.Array, wide: float) -> jax.Array:
    """Of images `[N, ...]`, `[N]`; wide: from the least value to the greatest."""
    return jax.vmap(lambda a, b: metrics.ssim(a, b, data_range=wide))(found, truth)


def _over_cases(fun: Any) -> Any:
    """Over seeds, side by side, and over cases, a few at a time."""
    over_seeds = jax.vmap(fun)

    def run(params: Any, *rest: Any) -> Any:
        size = min(4, len(jax.tree.leaves(params)[0]))
        return in_blocks(over_seeds, at_once=size)(params, *rest)

    return run


def inverted(task: Task, params: Any) -> list[dict[str, Any]]:
    """Of models `[cases, S, ...]`, for each case lists over seeds: accuracy on clean records, and
    `LOOKS` of model inversion beside the mean of the class, median over classes.
    """
    apply, classes = task.apply, task.num_classes
    start = jnp.mean(task.public["x"], axis=0)

    @jax.jit
    @_over_cases
    def look(params: Any, members: Any, test: Any) -> dict[str, jax.Array]:
        hits = jnp.argmax(jax.vmap(apply, (None, 0))(params, test["x"]), -1) == test["y"]
        found = model_inversion.invert(apply, params, start, classes, box=task.box)
        shares = jax.nn.one_hot(members["y"], classes).T
        sizes = shares.sum(axis=1)
        centres = jnp.tensordot(shares / jnp.maximum(sizes, 1)[:, None], members["x"], 1)
        median = lambda value: jnp.nanmedian(jnp.where(sizes > 0, value, jnp.nan))
        seen = jax.tree.map(median, looks(task, found, centres))
        return {"accuracy": jnp.mean(hits), **seen}

    return _rows(look(params, task.members, task.test))


def memberships(task: Task, params: Any, *, network: bool = True) -> list[dict[str, Any]]:
    """Of models `[cases, S, ...]`, for each case lists over seeds of areas under the curve.

    auc: by the loss alone. network: by the paper's attack network, which is told the membership of
    half of all records, and asked for that of the others; left out where it is not asked for.
    """
    half = len(task.members["y"][0]) // 2
    inside = np.arange(2 * half) < half

    @jax.jit
    @_over_cases
    def look(params: Any, members: Any, others: Any) -> dict[str, jax.Array]:
        one = jax.tree.map(lambda leaf: leaf[None], params)
        sure = [shadow.confidences(task.apply, one, p["x"], p["y"])[0] for p in (members, others)]
        found = {"members": sure[0], "others": sure[1]}
        if not network:
            return found

        def of(part: slice) -> Any:
            both = jax.tree.map(lambda a, b: jnp.concatenate([a[part], b[part]]), members, others)
            return white_box.features(task.apply, params, both["x"], both["y"], last_layer="logits")

        key = jax.random.key(3, impl="threefry2x32")
        asked = white_box.fit(of(slice(None, half)), inside, key, num_steps=100)
        return found | {"network": asked(of(slice(half, None)))}

    rows = []
    for seen in _rows(look(params, task.members, task.others)):
        pairs = zip(
            *(membership.loss_threshold(seen[part]) for part in ("members", "others")), strict=True
        )
        row = {"auc": [metrics.auc(*pair) for pair in pairs]}
        if network:
            told = np.asarray(seen["network"])
            row["network"] = [metrics.auc(scores[inside], scores[~inside]) for scores in told]
        rows.append(row)
    return rows


def _rows(seen: dict[str, jax.Array]) -> list[dict[str, Any]]:
    """Of each case what lists over seeds hold."""
    plain = {name: np.asarray(value).tolist() for name, value in seen.items()}
    count = len(next(iter(plain.values())))
    return [{name: value[case] for name, value in plain.items()} for case in range(count)]
