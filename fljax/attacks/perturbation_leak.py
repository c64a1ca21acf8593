"""The server against its clients' Psi and Phi: of a batch of one they give input and last layer away, without error.

As printed the scheme puts noise on gradients only. Both attacks of the scheme run, in each mode, by

    python -m fljax.attacks.perturbation_leak
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import data, models
from fljax.accounting import bidirectional
from fljax.attacks import known_network
from fljax.local import perturbed
from fljax.models import scaling
from fljax.models.scaling import Plan, Triple
from fljax.server import perturbation
from fljax.types import Batch, Params
from fljax.upload import pair_noise, split_noise
from fljax_kernels.pair_noise import graphs

CLIENTS, KNOWN = 5, 10


class Leak(NamedTuple):
    """What Psi and Phi of a batch of one say.

    hidden: last layer's input, perturbed. alpha: `[]`. residual: `[n_L]`, of the perturbed output.
    """

    hidden: jax.Array
    alpha: jax.Array
    residual: jax.Array


def input_direction(plan: Plan, triple: Triple) -> jax.Array:
    """The direction `[n_0]` in which a first dense layer's input lies, its sign apart: all its rows are parallel to it.

    Phi where the client sends one, else the gradient.
    """
    first = next(layer for layer in plan.layers if layer.first)
    place = [plan.leaves[k].name for k in plan.body].index(first.name)
    rows = triple.phi[place] if len(triple.phi) else triple.body[place]
    return jnp.linalg.svd(rows.reshape(-1, rows.shape[-1]), full_matrices=False)[0][:, 0]


def read(plan: Plan, sent: Params, triple: Triple) -> Leak:
    """Last layer's input, alpha and residual from Psi and Phi alone, for a dense last hidden layer with a bias."""
    if plan.has_bias:
        alpha = triple.psi_bias
    else:
        alpha = jnp.sqrt(jnp.maximum(jnp.sum(triple.psi_head), 0))
    hidden = triple.psi_head / jnp.where(alpha == 0, 1, alpha)
    # On a unit's bias: Psi_c / Phi = What_ci + e_c / alpha, wherever Phi is not 0.
    last = next(layer for layer in plan.layers if layer.last)
    names = [plan.leaves[k].name for k in plan.body]
    place = names.index(last.name.removesuffix("kernel") + "bias")
    _, head = scaling.split(plan, sent)
    weights = jax.jacrev(lambda h: scaling.outputs(plan, head, h))(jnp.zeros_like(triple.psi_head))
    psi, phi = triple.psi[place], triple.phi[place]
    use = jnp.abs(phi) > 1e-3 * jnp.abs(phi).max()
    ratio = jnp.where(use[None], psi / jnp.where(use, phi, 1)[None] - weights.reshape(psi.shape), 0)
    return Leak(hidden, alpha, alpha * ratio.sum(1) / jnp.maximum(1, use.sum()).astype(psi.dtype))


def last_layer_gradient(plan: Plan, secrets: perturbation.Secrets, leak: Leak) -> jax.Array:
    """Gradient of the true last kernel, in its shape, from what `read` found."""
    leaf = plan.leaves[plan.head[0]]
    true = leak.residual - leak.alpha * secrets.additive
    rows = leak.hidden.reshape(-1)[leaf.hidden] * true[leaf.classes]
    return rows * (secrets.scales[leaf.numerator] / secrets.scales[leaf.denominator])


def _noise(mode: str, own: float, pair: float) -> Callable[[jax.Array, Triple], Triple]:
    """(key, a client's triple) -> its upload under a mode of noise, its peers' shares included."""
    edges = graphs.complete(CLIENTS)
    if mode == "paper":
        uniform = split_noise.cohort_noise(edges, num_clients=CLIENTS, own_stddev=own, pair_stddev=pair)

        def on_gradient(key: jax.Array, triple: Triple) -> Triple:
            rows = uniform(key, 0, triple._replace(psi=(), phi=(), psi_head=(), psi_bias=()))
            body = [a + b[0] for a, b in zip(triple.body, rows.body, strict=True)]
            return triple._replace(body=body, head=[a + b[0] for a, b in zip(triple.head, rows.head, strict=True)])

        return on_gradient
    sound = pair_noise.cohort_noise(edges, num_clients=CLIENTS, own_stddev=own, pair_stddev=pair)

    def on_everything(key: jax.Array, triple: Triple) -> Triple:
        clipped, _ = perturbed.clip(triple, 1.0)
        return jax.tree.map(lambda leaf, rows: leaf + rows[0], clipped, sound(key, 0, clipped))

    return on_everything


def trained(rounds: int = 300) -> tuple[models.Functional, data.Dataset]:
    """An mlp 64-32-32-10 on digits, by plain steps on the squared error."""
    digits = data.load("digits")
    model = models.create("mlp", example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(0), hidden=(32, 32))
    loss = models.squared_error(model.apply)
    train = jax.tree.map(jnp.asarray, digits.train)

    def step(params: Params, _: Any) -> tuple[Params, None]:
        gradient = jax.grad(lambda p: jnp.mean(jax.vmap(loss, (None, 0))(p, train)))(params)
        return jax.tree.map(lambda p, g: p - 0.5 * g, params, gradient), None

    params, _ = jax.jit(lambda p: jax.lax.scan(step, p, None, length=rounds))(model.params)
    return models.Functional(params, model.apply), digits


def run(
    *,
    epsilon: float = 3.0,
    delta: float = 1e-5,
    additive_norm: float = 1.0,
    seed: int = 0,
    victims: int = 10,
    rounds: int = 300,
) -> list[dict[str, Any]]:
    """Both attacks in each mode, one round each, of 5 clients.

    Args:
      epsilon, delta: of one client against another, towards the server, by equation (23) in the limit of infinite pair
        noise, of which there is 100 times the own variance here; the mode "paper" has noise of that size on the
        gradient, and no epsilon.
      additive_norm: ||r|| where there is one. seed: of secrets and noise. victims: batches of one. rounds: of training.

    Returns:
      For each mode a row: `direction` "client learns of the model" with the share of held-out digits on which it agrees
      with the true model, before and after the attack; or "server learns of the data" with mean |cos| of the input's
      direction and median relative error of the last layer's gradient.
    """
    model, digits = trained(rounds)
    test, train = jax.tree.map(jnp.asarray, digits.test), jax.tree.map(jnp.asarray, digits.train)
    plan = scaling.plan(model.apply, model.params, test["x"][0])
    theta = float(bidirectional.printed_theta(epsilon, delta))
    own = 2 * bidirectional.own_stddev_for(theta, CLIENTS)
    true = jax.vmap(model.apply, (None, 0))(model.params, test["x"]).argmax(-1)
    loss = models.squared_error(model.apply)
    rows: list[dict[str, Any]] = []
    for mode in ("paper", "upload_gaussian", "r0_gaussian"):
        key = jax.random.fold_in(jax.random.key(seed), len(rows))
        draw_key, noise_key = jax.random.split(key)
        norm = 0.0 if mode == "r0_gaussian" else additive_norm
        secrets = perturbation.draw(plan, draw_key, additive_norm=norm)
        sent, transition = perturbation.perturb(plan, model.params, secrets)
        known: Batch = {name: train[name][:KNOWN] for name in ("x", "y")}
        before, after = known_network.attack(plan, sent, transition, known, test["x"])
        agree = {"before": float(jnp.mean(before == true)), "after": float(jnp.mean(after == true))}
        rows.append({"mode": mode, "direction": "client learns of the model", **agree})
        client = perturbed.gradients(plan, loss.of_output) if mode == "r0_gaussian" else perturbed.triples(plan)
        noise = _noise(mode, own, 10 * own)

        def victim(
            given: tuple[Batch, jax.Array],
            mode: str = mode,
            client: Any = client,
            noise: Any = noise,
            sent: Params = sent,
            transition: jax.Array = transition,
            secrets: perturbation.Secrets = secrets,
        ) -> tuple[jax.Array, jax.Array]:
            batch, noise_key = given
            triple, _ = client(sent, transition, batch, jnp.ones(1, bool))
            upload = noise(noise_key, triple)
            x = batch["x"].reshape(-1)
            cosine = jnp.abs(jnp.vdot(input_direction(plan, upload), x)) / jnp.linalg.norm(x)
            if mode == "r0_gaussian":
                return cosine, jnp.full((), jnp.nan)
            head = last_layer_gradient(plan, secrets, read(plan, sent, upload))
            exact = jax.grad(loss)(model.params, jax.tree.map(lambda leaf: leaf[0], batch))
            kernel = scaling.split(plan, exact)[1][0]
            return cosine, jnp.linalg.norm(head - kernel) / jnp.linalg.norm(kernel)

        batches = {name: test[name][:victims, None] for name in ("x", "y")}
        keys = jax.random.split(noise_key, victims)
        cosines, errors = jax.jit(lambda b, k, victim=victim: jax.lax.map(victim, (b, k)))(batches, keys)
        seen = {"input |cos|": float(np.mean(cosines))}
        seen |= {"last layer's gradient, relative error": float(np.median(errors))}
        rows.append({"mode": mode, "direction": "server learns of the data", **seen})
    return rows


def main() -> None:
    """Prints the table of `run`."""
    for row in run():
        print("  ".join(f"{k}: {v:.3g}" if isinstance(v, float) else str(v) for k, v in row.items()))


if __name__ == "__main__":
    main()
