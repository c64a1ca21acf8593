"""Private local training: a silo takes noisy steps from the server's model, each on a fresh sample
of its data.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import fljax_kernels
from fljax import _validate
from fljax.local.silo_query import Query, SiloSum, subject_ids
from fljax.types import Batch, ClientUpdate, Params
from fljax_kernels import correlated
from fljax_kernels.correlated import Strategy

Number = float | Callable[[SiloSum], jax.Array]


class SiloResult(NamedTuple):
    """update: params-like, server_params - silo_params. loss, clipped_fraction: `[]`, means over
    the steps; private. noise: the next state of noise that is correlated over steps; private.
    """

    update: ClientUpdate
    loss: jax.Array
    clipped_fraction: jax.Array
    noise: Any = ()


def noisy_steps(
    query: Query,
    *,
    num_steps: int,
    learning_rate: float | jax.Array,
    stddev: Number,
    divisor: Number,
    optimizer: optax.GradientTransformation | None = None,
    strategy: Strategy | None = None,
    noised: Callable[[jax.Array, Any], Params] | None = None,
) -> Callable[..., SiloResult]:
    """`num_steps` times: params -= learning_rate * (query + Gaussian noise) / divisor.

    Guarantee: with `stddev` and `divisor` public numbers, each step is one Gaussian mechanism on
    the query's sum, also where the sample is empty, and all iterates may be released. A function of
    the query's answer in their place makes noise or step depend on private data: no guarantee is
    left, and it is here to show what that costs. With a strategy, whose C has b bands, subjects
    take turns: a step is over those whose number is the step's modulo b, counted over all calls.
    Steps of one subject meet disjoint rows of C, so that each is one Gaussian mechanism on the
    query's sum whose noise multiplier is relative to the norm of a column: arXiv:2306.08153,
    Theorem 4.

    Args:
      query: of `fljax.local.subject`; a sum before noise.
      num_steps: >= 1.
      learning_rate: > 0; a tracer is taken as it is.
      stddev: of the noise on the sum, in its unit, >= 0.
      divisor: > 0.
      optimizer: any optax transformation in place of plain steps of `learning_rate`:
        post-processing, since it sees gradients after their noise. Its state starts anew in every
        call.
      strategy: banded, C over all steps of a silo; `stddev` is that of z, a number, and examples
        carry their subject. None: noise of steps is independent.
      noised: `(key, grad_sum) -> noisy sum` of an `AddUp`, in place of float32 noise: the same for
        all silos, whatever their noise_factor.

    Returns:
      `fun(params, examples, rows, sample_key, noise_key, noise_factor, noise) -> SiloResult` for
      one silo; `rows` int32 `[N]`, -1: padding; `noise_factor` float32 `[]`, public: this silo's
      noise is so many times `stddev`, in all calls; `noise`, with a strategy only: the state that
      the last call left, or `correlated.init(strategy, params in float32)`.

    Raises:
      ValueError: an argument is out of range.

    Source: Marathe et al. (2022), arXiv:2206.03617, Algorithms 1 to 3, the step with its sign set
      right.
    """
    _validate.positive_int(num_steps=num_steps)
    if not isinstance(learning_rate, jax.core.Tracer):
        _validate.positive(learning_rate=learning_rate)
    if not callable(stddev):
        _validate.non_negative(stddev=stddev)
    if not callable(divisor):
        _validate.positive(divisor=divisor)
    if strategy is not None and (callable(stddev) or strategy.kind != "banded"):
        raise ValueError(
            "Expected strategy to be banded, with a stddev that is a number, got "
            f"strategy={strategy!r} and stddev={stddev!r}."
        )

    def fun(
        params: Params,
        examples: Batch,
        rows: jax.Array,
        sample_key: jax.Array,
        noise_key: jax.Array,
        noise_factor: jax.Array,
        noise: Any = (),
    ) -> SiloResult:
        ids = rows if strategy is None else subject_ids(examples, rows)

        def step(
            t: jax.Array, carry: tuple[Params, Any, jax.Array, Any]
        ) -> tuple[Params, Any, jax.Array, Any]:
            here, memory, stats, noise = carry
            turn: tuple[jax.Array, ...] = ()
            if strategy is not None:
                cycle = len(strategy.coefs)
                turn = (ids % cycle == noise.step % cycle,)
            answer = query(here, examples, rows, jax.random.fold_in(sample_key, t), *turn)
            over = jnp.asarray(divisor(answer) if callable(divisor) else divisor, jnp.float32)
            noisy = answer.grad_sum
            if noised is not None:
                noisy = noised(jax.random.fold_in(noise_key, t), noisy)
            elif callable(stddev) or stddev > 0:
                scale = (
                    jnp.asarray(stddev(answer) if callable(stddev) else stddev, jnp.float32)
                    * noise_factor
                )
                step_key = jax.random.fold_in(noise_key, t)
                if strategy is None:
                    noisy = fljax_kernels.add_gaussian_noise(step_key, noisy, scale)
                else:
                    noisy, noise = correlated.add_noise(strategy, step_key, noisy, scale, noise)
            elif strategy is not None:
                noise = noise._replace(step=noise.step + 1)
            stats += jnp.stack([answer.loss, answer.clipped_fraction])
            if optimizer is not None:
                mean = jax.tree.map(
                    lambda p, g: (g / over.astype(g.dtype)).astype(p.dtype), here, noisy
                )
                updates, memory = optimizer.update(mean, memory, here)
                return optax.apply_updates(here, updates), memory, stats, noise
            rate = jnp.asarray(learning_rate, jnp.float32) / over
            here = jax.tree.map(
                lambda p, g: (p.astype(g.dtype) - rate.astype(g.dtype) * g).astype(p.dtype),
                here,
                noisy,
            )
            return here, memory, stats, noise

        memory = () if optimizer is None else optimizer.init(params)
        start = (params, memory, jnp.zeros((2,), jnp.float32), noise)
        trained, _, stats, noise = jax.lax.fori_loop(0, num_steps, step, start)
        update = jax.tree.map(
            lambda server, mine: (server - mine).astype(jnp.float32), params, trained
        )
        loss, clipped_fraction = stats / num_steps
        return SiloResult(update, loss, clipped_fraction, noise)

    return fljax_kernels.loop_friendly(
        fun
    )  # steps and batches are loops, where XLA's CPU convolutions are slow
