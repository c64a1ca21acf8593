"""Was this example trained on? Scores from a model's confidences; higher means rather yes.

Threat: the attacker can query the target with examples and their labels, has a pool of like data,
and can train models of its own on it (`shadow`). All functions take numpy or JAX arrays and work in
float64 on the host.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special, stats

from fljax import _validate
from fljax.attacks import _descent, _shadows, metrics
from fljax.types import Batch, LossFn, Params

_LEAST_STDDEV = 1e-3
_WIDTH = 64
_PAIR = (slice(None, -1), slice(1, None))  # of models in a row: before each round, and after it
_LEAST_SQUARE = 1e-30  # a model that did not move has no direction


def loss_threshold(confidences: Any) -> np.ndarray:
    """The attack without shadow models: minus the loss, `[N]`, from confidences log(p / (1 - p))
    `[N]`.

    Source: Yeom et al. (2018), Privacy risk in machine learning, arXiv:1709.01604, Adversary 1.
    """
    return -np.logaddexp(0.0, -np.asarray(confidences, np.float64))


def reference(target: Any, references: Any, included: Any) -> np.ndarray:
    """How much likelier the target makes an example than models of the attacker do that have not
    seen it: scores `[N]`, minus its loss less theirs.

    Args:
      target, references, included: confidences `[N]`, `[S, N]`, and bool `[S, N]`, as for `lira`.

    Raises:
      ValueError: shapes differ, or all of these models were trained on an example.

    Source: Watson et al. (2021), On the importance of difficulty calibration in membership
      inference attacks, arXiv:2111.08440, section 3.
    """
    values, own, inside = _shadows.arrays(target, references, included)
    if inside.all(0).any():
        raise ValueError("Expected each example to be out of a reference model at least.")
    usual = np.where(inside, 0, loss_threshold(own)).sum(0) / (~inside).sum(0)
    return loss_threshold(values) - usual


def exposure(canaries: Any, others: Any) -> np.ndarray:
    """How far ahead of like texts that nobody wrote the target sees each canary, in bits: `[N]`
    from confidences `[N]` and `[Z]`; log2 of the number of texts over the canary's rank.

    At most log2(Z + 1), for one that is likelier than all others; of texts that were not trained
    on the mean is near 1.44 bits.

    Raises:
      ValueError: not arrays of one axis.

    Source: Carlini et al. (2019), The secret sharer: evaluating and testing unintended
      memorization in neural networks, arXiv:1802.08232, section 4.
    """
    found, rest = (np.asarray(part, np.float64) for part in (canaries, others))
    if found.ndim != 1 or rest.ndim != 1:
        raise ValueError(
            f"Expected canaries [N] and others [Z], got shapes {found.shape}, {rest.shape}."
        )
    rank = 1 + rest.size - np.searchsorted(np.sort(rest), found, "right")
    return np.log2(rest.size + 1) - np.log2(rank)


def lira(
    target: Any, shadows: Any, included: Any, *, online: bool = True, pooled: bool | None = None
) -> np.ndarray:
    """Likelihood-ratio attack: scores `[N]`.

    Args:
      target: confidences `[N]` of the attacked model.
      shadows: confidences `[S, N]` of models of the attacker.
      included: bool `[S, N]`, which examples each of these was trained on.
      online: compare the law of models that have the example with that of models that have not.
        False: only models that have it not count, as if the attacker had to train before it saw the
        example.
      pooled: one variance for all examples, better for few models. None: for fewer than 32.

    Raises:
      ValueError: shapes differ, or an example is in (or out) of fewer than two shadow models where
        that side counts.

    Source: Carlini et al. (2022), arXiv:2112.03570, Algorithm 1 and section IV-A (offline).
    """
    values, own, inside = _shadows.arrays(target, shadows, included)
    pooled = len(own) < 32 if pooled is None else pooled
    sides = [_normal(own, ~inside, "out of", pooled)]
    if not online:
        return stats.norm.logcdf(values, *sides[0])
    sides.append(_normal(own, inside, "in", pooled))
    return stats.norm.logpdf(values, *sides[1]) - stats.norm.logpdf(values, *sides[0])


def lira_of_views(
    target: Any, shadows: Any, included: Any, *, pooled: bool | None = None
) -> np.ndarray:
    """`lira`, online, by several views of each example, such as augmentations of an image: scores
    `[N]`, of normals of as many numbers, whose covariance counts.

    Args:
      target: confidences `[N, A]` of the attacked model, of A views. shadows: `[S, N, A]`.
      included, pooled: as for `lira`; pooled, all examples share a covariance.

    Raises:
      ValueError: as `lira`; or views that are not A of each example.

    Source: Carlini et al. (2022), arXiv:2112.03570, section VI-C (multiple queries).
    """
    values, own, inside = _shadows.arrays(target, shadows, included, several=True)
    pooled = len(own) < 32 if pooled is None else pooled

    def loglik(where: np.ndarray, side: str) -> np.ndarray:
        """Of the target's views, up to what both sides have."""
        count = _shadows.at_least_two(where, side)
        mean = np.where(where[..., None], own, 0).sum(0) / count[:, None]
        away = np.where(where[..., None], own - mean, 0)
        spread = np.einsum("sna,snb->nab", away, away)
        many = (count - 1).astype(np.float64)
        if pooled:
            spread, many = spread.sum(0, keepdims=True), many.sum(keepdims=True)
        covariance = spread / many[:, None, None] + _LEAST_STDDEV**2 * np.eye(values.shape[1])
        gap = values - mean
        solved = np.linalg.solve(covariance, gap[..., None])[..., 0]
        return -0.5 * (gap * solved).sum(1) - 0.5 * np.linalg.slogdet(covariance)[1]

    return loglik(inside, "in") - loglik(~inside, "out of")


def rmia(
    target: Any,
    shadows: Any,
    included: Any,
    population: Any,
    population_shadows: Any,
    *,
    gamma: float = 1.0,
    online: bool = True,
    offline_slope: float = 0.3,
) -> np.ndarray:
    """Robust membership attack: the share `[N]` of population examples that the target prefers this
    one to.

    Each side is how much likelier the target makes an example than reference models do on average.

    Args:
      target, shadows, included: as for `lira`.
      population: confidences `[Z]` of the target on examples that neither it nor the reference
        models saw in training.
      population_shadows: `[S, Z]`, of the reference models.
      gamma: how many times as large the ratio has to be. > 0.
      online: reference models with and without the example are weighed equally. False: only those
        without it count, and p is corrected to (1 + offline_slope) / 2 p + (1 - offline_slope) / 2,
        of the population's examples, too, which nobody was trained on.
      offline_slope: in [0, 1]; `rmia_slope` finds one.

    Raises:
      ValueError: shapes differ, a number is out of range, or an example is in no (or out of no)
        reference model that counts.

    Source: Zarifzadeh, Liu, Shokri (2024), Low-cost high-power membership inference attacks,
      arXiv:2312.03262, equations 2 to 4; appendix B.2.2 (offline).
    """
    _validate.positive(gamma=gamma)
    if not 0 <= offline_slope <= 1:
        raise ValueError(f"Expected offline_slope in [0, 1], got offline_slope={offline_slope!r}.")
    values, own, inside = _shadows.arrays(target, shadows, included)
    others, references = (
        np.asarray(population, np.float64),
        np.asarray(population_shadows, np.float64),
    )
    if others.ndim != 1 or references.shape != (len(own), others.size):
        raise ValueError(
            f"Expected population [Z] and population_shadows [S, Z], got shapes {others.shape}, "
            f"{references.shape}."
        )
    probs = special.expit(own)

    def mean(where: np.ndarray, side: str) -> np.ndarray:
        if not where.any(0).all():
            raise ValueError(
                f"Expected each example to be {side} a reference model at least, got one that is "
                "not."
            )
        return np.where(where, probs, 0).sum(0) / where.sum(0)

    outside, unseen = mean(~inside, "out of"), special.expit(references).mean(0)
    if online:
        average = (outside + mean(inside, "in")) / 2
    else:
        corrected = lambda p: (1 + offline_slope) / 2 * p + (1 - offline_slope) / 2
        average, unseen = corrected(outside), corrected(unseen)
    ratio = special.expit(values) / np.maximum(average, 1e-300)
    population_ratio = np.sort(special.expit(others) / np.maximum(unseen, 1e-300))
    # How often ratio / population_ratio >= gamma.
    return np.searchsorted(population_ratio, ratio / gamma, "right") / others.size


def rmia_slope(
    shadows: Any, included: Any, population_shadows: Any, *, gamma: float = 1.0
) -> float:
    """The `offline_slope` of 0, 0.1, ..., 1 by which the first reference model is told best, by the
    area under its curve, from the others.

    Args:
      shadows, included, population_shadows, gamma: as for `rmia`, two reference models or more.

    Raises:
      As `rmia`; or the first reference model was trained on all of the examples, or on none.
    """
    own, inside = np.asarray(shadows, np.float64), np.asarray(included, bool)
    population = np.asarray(population_shadows, np.float64)
    if own.ndim != 2 or len(own) < 2 or inside.shape != own.shape:
        raise ValueError(
            f"Expected shadows and included [S, N] with S >= 2, got shapes {own.shape}, "
            f"{inside.shape}."
        )
    if inside[0].all() or not inside[0].any():
        raise ValueError("Expected the first reference model to have some examples, not all.")
    # Examples that all others have are nobody's to compare with.
    kept = ~inside[1:].all(0)

    def area(slope: float) -> float:
        scores = rmia(
            own[0, kept],
            own[1:, kept],
            inside[1:, kept],
            population[0],
            population[1:],
            gamma=gamma,
            online=False,
            offline_slope=slope,
        )
        return metrics.auc(scores[inside[0, kept]], scores[~inside[0, kept]])

    return float(max(np.arange(11) / 10, key=area))


def label_only(
    predict: Callable[[np.ndarray], Any],
    x: Any,
    y: Any,
    rng: np.random.Generator,
    *,
    stddevs: Sequence[float] = (0.05, 0.1, 0.2, 0.4),
    num_copies: int = 8,
) -> np.ndarray:
    """The attack that sees labels alone: how far noise has to move an example until its label is
    lost, as the share `[N]` of noisy copies that keep it.

    Args:
      predict: `x [M, ...] -> labels [M]`, of the target.
      x: `[N, ...]`, float. y: true labels, int `[N]`.
      rng: draws the noise.
      stddevs: of the noise, in the unit of x, each > 0. num_copies: of an example at each of them.

    Raises:
      ValueError: a number is out of range, or lengths differ.

    Source: Choquette-Choo et al. (2021), Label-only membership inference attacks, arXiv:2007.14321,
      section 4 (random noise in place of a walk to the boundary).
    """
    _validate.positive_int(num_copies=num_copies)
    inputs, labels = np.asarray(x), np.asarray(y)
    if not stddevs or labels.shape != inputs.shape[:1]:
        raise ValueError(
            f"Expected x [N, ...], y [N] and a stddev at least, got shapes {inputs.shape}, "
            f"{labels.shape} and stddevs={stddevs!r}."
        )
    for stddev in stddevs:
        _validate.positive(stddevs=stddev)
    kept = (np.asarray(predict(inputs)) == labels).astype(np.float64)
    for stddev in stddevs:
        for _ in range(num_copies):
            noise = rng.normal(scale=stddev, size=inputs.shape).astype(inputs.dtype)
            kept += np.asarray(predict(inputs + noise)) == labels
    return kept / (1 + num_copies * len(stddevs))


def quantile_regression(
    public: tuple[Any, Any, Any],
    x: Any,
    y: Any,
    confidences: Any,
    key: jax.Array,
    *,
    quantile: float = 0.9,
    num_steps: int = 500,
    learning_rate: float = 3e-3,
) -> np.ndarray:
    """The attack without shadow models that knows how hard an example is: how far its confidence is
    above the quantile `[N]` that a network predicts for examples that nobody was trained on.

    Args:
      public: (x `[M, ...]`, int y `[M]`, confidences `[M]` of the target) of such examples.
      x, y, confidences: the same of those that are judged, `[N]`.
      key: of the network's first weights.
      quantile: in (0, 1): about 1 - the rate of false positives that matters.
      num_steps, learning_rate: of Adam on all public examples at once.

    Raises:
      ValueError: a number is out of range, or lengths differ.

    Source: Bertran et al. (2023), Scalable membership inference attacks via quantile regression,
      arXiv:2307.03694, Algorithm 1.
    """
    _validate.typed_key(key=key)
    _validate.open_unit(quantile=quantile)
    _validate.positive_int(num_steps=num_steps)
    _validate.positive(learning_rate=learning_rate)
    sides = [tuple(map(np.asarray, side)) for side in (public, (x, y, confidences))]
    for inputs, labels, values in sides:
        if not (labels.ndim == values.ndim == 1 and len(inputs) == labels.size == values.size):
            raise ValueError(
                "Expected x [n, ...], y [n] and confidences [n], got shapes "
                f"{inputs.shape}, {labels.shape}, {values.shape}."
            )
    num_classes = 1 + max(int(labels.max()) for _, labels, _ in sides)
    known = sides[0][0].reshape(len(sides[0][0]), -1).astype(np.float32)
    centre, scale = known.mean(0), known.std(0) + 1e-3
    level, spread = float(sides[0][2].mean()), float(sides[0][2].std()) + 1e-6

    def seen(inputs: np.ndarray, labels: np.ndarray) -> jax.Array:
        flat = (inputs.reshape(len(inputs), -1).astype(np.float32) - centre) / scale
        return jnp.asarray(np.concatenate([flat, np.eye(num_classes, dtype=np.float32)[labels]], 1))

    rows = seen(*sides[0][:2])
    wanted = jnp.asarray((sides[0][2] - level) / spread, jnp.float32)
    first, second = jax.random.split(key)
    start = {
        "in": jax.random.normal(first, (rows.shape[1], _WIDTH)) / rows.shape[1] ** 0.5,
        "bias": jnp.zeros(_WIDTH),
        "out": jax.random.normal(second, (_WIDTH,)) / _WIDTH**0.5,
        "level": jnp.zeros(()),
    }

    def predicted(weights: Any, given: jax.Array) -> jax.Array:
        hidden = jnp.tanh(given @ weights["in"] + weights["bias"][None])
        return hidden @ weights["out"] + weights["level"]

    def pinball(weights: Any, _: None) -> jax.Array:
        gap = wanted - predicted(weights, rows)
        return jnp.mean(jnp.maximum(quantile * gap, (quantile - 1) * gap))

    rates = np.full(num_steps, learning_rate)
    train = jax.jit(lambda w: _descent.adam(jax.value_and_grad(pinball), w, rates)[0])
    found = np.asarray(predicted(train(start), seen(*sides[1][:2])), np.float64)
    return (sides[1][2].astype(np.float64) - level) / spread - found


def gradient_alignment(loss: LossFn, passed: Params, pool: Batch) -> jax.Array:
    """Cosines `[S, N]` between what the rounds moved S models by and the gradients that N examples
    had meanwhile, over all rounds taken together: an example that was trained on pulled along its
    own gradient each time. Pure, to be jitted.

    Threat: whoever sees the models between rounds, as servers and clients do.

    Args:
      loss: `loss(params, example) -> []`.
      passed: leaves `[S, 1 + rounds, ...]`, of every model before each round and after the last.
      pool: leaves `[N, ...]`.

    Source: Nasr, Shokri, Houmansadr (2019), Comprehensive privacy analysis of deep learning,
      arXiv:1812.00910, section III-B (a passive attacker that sees rounds); Li et al. (2022),
      Effective passive membership inference attacks in federated learning against
      overparameterized models (cosines of gradients and updates).
    """
    square = lambda tree: sum((jnp.vdot(v, v) for v in jax.tree.leaves(tree)), jnp.zeros(()))
    gradients = jax.vmap(jax.grad(loss), (None, 0))

    def one(passed: Params) -> jax.Array:
        def step(carry: Any, both: Any) -> tuple[Any, None]:
            inner, own, length = carry
            before, after = both
            moved = jax.tree.map(jnp.subtract, before, after)
            grads = gradients(before, pool)
            along = jax.vmap(
                lambda grad: sum(
                    map(jnp.vdot, jax.tree.leaves(grad), jax.tree.leaves(moved)), jnp.zeros(())
                )
            )
            own = own + jax.vmap(square)(grads)
            return (inner + along(grads), own, length + square(moved)), None

        count = len(jax.tree.leaves(pool)[0])
        zeros = jnp.zeros(count), jnp.zeros(count), jnp.zeros(())
        before, after = (jax.tree.map(lambda v, at=at: v[at], passed) for at in _PAIR)
        (inner, own, length), _ = jax.lax.scan(step, zeros, (before, after))
        return inner / jnp.sqrt(jnp.maximum(own * length, _LEAST_SQUARE))

    return jax.lax.map(one, passed)


def of_subjects(confidences: Any, subjects: Any) -> tuple[np.ndarray, np.ndarray]:
    """(ids `[U]`, mean confidences `[..., U]`): examples of one person taken together, so that the
    attacks here say whether the person was there, in whichever silo.

    Args:
      confidences: `[..., N]`, of models. subjects: int `[N]`, whose each example is.

    Raises:
      ValueError: shapes do not fit.

    Source: Suri et al. (2022), Subject membership inference attacks in federated learning,
      arXiv:2206.03317.
    """
    values, owners = np.asarray(confidences, np.float64), np.asarray(subjects)
    if owners.ndim != 1 or values.shape[-1:] != owners.shape:
        raise ValueError(
            f"Expected confidences [..., N] and subjects [N], got shapes {values.shape} and "
            f"{owners.shape}."
        )
    order = np.argsort(owners, kind="stable")
    ids, first, counts = np.unique(owners[order], return_index=True, return_counts=True)
    return ids, np.add.reduceat(values[..., order], first, axis=-1) / counts


def _normal(
    own: np.ndarray, where: np.ndarray, side: str, pooled: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation `[N]` over the models where `where`."""
    count = _shadows.at_least_two(where, side)
    mean = np.where(where, own, 0).sum(0) / count
    squares = np.where(where, (own - mean) ** 2, 0)
    variance = squares.sum() / (count - 1).sum() if pooled else squares.sum(0) / (count - 1)
    return mean, np.broadcast_to(np.maximum(np.sqrt(variance), _LEAST_STDDEV), mean.shape)
