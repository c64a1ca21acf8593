"""The bidirectional scheme attacked in both directions, in each mode of noise, by one command:

    python -m fljax.papers.bidirectional.perturbation_leak

A client against the model (`known_network`) and against the members behind it
(`disguised_membership`); the server against one client's upload of a batch of one: by a search that
uses the recovered gradient alone, and by reading Psi and Phi, which give input and last layer away
without error. As printed the scheme puts noise on gradients only.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import flatten_util

from fljax import _validate, data, models
from fljax.accounting.shared_noise import printed
from fljax.attacks import analytic, gradient_inversion, metrics
from fljax.local import perturbed
from fljax.models import scaling
from fljax.models.functions import Apply
from fljax.models.scaling import Plan, Triple
from fljax.papers.bidirectional import disguised_membership, known_network
from fljax.server import perturbation, recovery
from fljax.types import Batch, Params
from fljax.upload import pair_noise, split_noise
from fljax_kernels.pairwise import graphs

CLIENTS, KNOWN = 5, 10
MODES = ("paper", "upload_gaussian", "r0_gaussian")
SHARES = (0.0, 1e-4, 1e-3, 1e-2, 1.0)
# The cosine does not ask by which factor a client clipped. No prior on images, so that the gradient
# alone decides.
SEARCH = gradient_inversion.Settings(distance="cosine", tv_weight=0.0, num_iterations=500)


class Leak(NamedTuple):
    """What Psi and Phi of a batch of one say.

    hidden: last layer's input, perturbed. alpha: `[]`. residual: `[n_L]`, of the perturbed output.
    """

    hidden: jax.Array
    alpha: jax.Array
    residual: jax.Array


def _first_layer(plan: Plan, triple: Triple, end: str) -> jax.Array:
    """Phi of the first dense layer's "kernel" or "bias" where the client sends one, else the
    gradient.
    """
    first = next(layer for layer in plan.layers if layer.first)
    place = [plan.leaves[k].name for k in plan.body].index(first.name.removesuffix("kernel") + end)
    return triple.phi[place] if len(triple.phi) else triple.body[place]


def input_direction(plan: Plan, triple: Triple) -> jax.Array:
    """The direction `[n_0]` in which a first dense layer's input lies, its sign apart: all its rows
    are parallel to it.

    Phi where the client sends one, else the gradient.
    """
    rows = _first_layer(plan, triple, "kernel")
    return jnp.linalg.svd(rows.reshape(-1, rows.shape[-1]), full_matrices=False)[0][:, 0]


def read_input(plan: Plan, triple: Triple) -> jax.Array:
    """The input `[n_0]` of a first dense layer with a bias, from Phi where the client sends one,
    else the gradient.

    Exact for a batch of one without noise there: the first layer's input has no scale.
    """
    return analytic.first_dense(
        _first_layer(plan, triple, "kernel"), _first_layer(plan, triple, "bias")
    )


def read(plan: Plan, sent: Params, triple: Triple) -> Leak:
    """Last layer's input, alpha and residual from Psi and Phi alone, for a dense last hidden layer
    with a bias.

    Of a triple that was not clipped: clipping counts as an error of alpha and residual here.
    """
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


def _need_psi(plan: Plan, triple: Triple) -> None:
    if not plan.has_bias:
        raise ValueError(
            "Expected plan to be of a network whose last layer has a bias, got plan.has_bias=False."
        )
    if not len(triple.psi):
        raise ValueError("Expected triple to hold Psi and Phi, got triple.psi of length 0.")


def read_features(plan: Plan, secrets: perturbation.Secrets, triple: Triple) -> jax.Array:
    """The true last layer's input, in its shape, from Psi of a network whose last layer has a bias.

    Exact for a batch of one without noise there, clipped or not, whatever the layers before: Psi of
    the kernel is alpha h, of the bias alpha, and the server knows by which scales h differs from
    the true one.

    Raises:
      ValueError: the last layer has no bias, or the triple no Psi.
    """
    _need_psi(plan, triple)
    leaf = plan.leaves[plan.head[0]]
    factor = secrets.scales[leaf.numerator] / secrets.scales[leaf.denominator]
    place, factor = jnp.broadcast_arrays(jnp.asarray(leaf.hidden), factor)
    hidden = triple.psi_head / jnp.where(triple.psi_bias == 0, 1, triple.psi_bias)
    scales = jnp.ones(hidden.size).at[place.reshape(-1)].set(factor.reshape(-1))
    return hidden * scales.reshape(hidden.shape)


def read_gradient(
    plan: Plan, params: Params, secrets: perturbation.Secrets, triple: Triple, y: jax.Array
) -> Params:
    """The true gradient of a batch of one from Psi and Phi alone, for any body under a last layer
    with a bias.

    The label is given to it. Exact without noise there, whatever the noise on the gradient: with
    the features the server knows the true residual e and alpha, and of each output's gradient Psi_c
    = alpha dyhat_c + ehat_c dalpha, of alpha's Phi = alpha dalpha. By which factor the client
    clipped, Psi of the bias tells, which is that times alpha.

    Args:
      plan: of a network whose last layer has a bias. params: the true ones. secrets: of the round.
      triple: what the client sent, of the loss ||e||^2 / 2, clipped or not; only Psi and Phi are
        used.
      y: the label `[]`.

    Returns:
      params-like, before any clipping.

    Raises:
      ValueError: the last layer has no bias, or the triple no Psi.
    """
    features = read_features(plan, secrets, triple)
    _, head = scaling.split(plan, params)
    outputs, pull = jax.vjp(lambda head: scaling.outputs(plan, head, features), head)
    e = outputs - jax.nn.one_hot(y, plan.num_outputs, dtype=outputs.dtype)
    sent_alpha = jnp.where(triple.psi_bias == 0, 1, triple.psi_bias)
    alpha = 1 + jnp.sum(
        triple.psi_head / sent_alpha
    )  # features survive clipping as a ratio, and tell alpha
    kept = sent_alpha / jnp.where(alpha == 0, 1, alpha)
    kept = jnp.where(
        (kept > 0) & (kept < 1), kept, 1
    )  # no other factor clips: that is noise, or rounding
    alpha = sent_alpha / kept
    # dy_c = dyhat_c - r_c dalpha and ehat = e + alpha r.
    along = (e @ e + 2 * alpha * (e @ secrets.additive)) / alpha**2
    multipliers = perturbation.multipliers(plan, secrets)
    body = [
        (jnp.tensordot(e, psi, axes=1) / alpha - along * phi) / kept * multipliers[k]
        for k, psi, phi in zip(plan.body, triple.psi, triple.phi, strict=True)
    ]
    return scaling.join(plan, body, list(pull(e)[0]))


def search(
    model: models.Functional,
    recovered: Params,
    y: jax.Array,
    key: jax.Array,
    settings: gradient_inversion.Settings = SEARCH,
    *,
    shape: tuple[int, ...],
    start: jax.Array | None = None,
) -> jax.Array:
    """The examples `[T, *shape]` whose gradients come closest to the recovered ones: all T searches
    in one program.

    Args:
      model: the true one, which the server knows.
      recovered: gradients of batches of one, each leaf `[T, ...]`, as `recovery.recover` gives
        them.
      y: labels `[T]`; the attacker is given them, for a gradient tells them.
      key: for the starts. settings: of the search; its box is the range of the data.
      shape: of an example. start: an example to begin near, as in `gradient_inversion.invert`.

    Raises:
      ValueError: as `gradient_inversion.invert`; a `start` of another shape among it.
    """
    return _search(model.apply, settings, shape)(model.params, recovered, y, key, start)


@functools.lru_cache(maxsize=8)
def _search(
    apply: Apply, settings: gradient_inversion.Settings, shape: tuple[int, ...]
) -> Callable[[Params, Params, jax.Array, jax.Array, jax.Array | None], jax.Array]:
    """`search`, jitted; compiled once for all gradients."""
    observe = gradient_inversion.gradient(models.squared_error(apply))

    @jax.jit
    def run(
        params: Params, recovered: Params, y: jax.Array, key: jax.Array, start: jax.Array | None
    ) -> jax.Array:
        size = jax.eval_shape(apply, params, jax.ShapeDtypeStruct(shape, jnp.float32)).shape[0]
        rows = jax.nn.one_hot(y, size)[:, None]  # batches of one
        first = None if start is None else start[None]
        found = gradient_inversion.invert(
            observe, params, recovered, rows, key, shape=(1, *shape), settings=settings, start=first
        )
        return found.x[:, 0]

    return run


def upload_noise(
    mode: str, client: Triple, own: float, pair: float
) -> Callable[[jax.Array], jax.Array]:
    """Key -> one client's noise on its triple, its peers' shares included, for `ravel_pytree` of
    such a triple.

    Args:
      mode: of `MODES`; "paper" has none on Psi and Phi.
      client: the triple, or its shapes.
      own, pair: standard deviations of a client's own noise and of that shared with each of its
        `CLIENTS` - 1 peers, in the unit of the triple's numbers.

    Raises:
      ValueError: the mode is none of `MODES`, or a standard deviation is out of range.
    """
    _validate.one_of(MODES, mode=mode)
    _validate.non_negative(own=own, pair=pair)
    gradient = sum(leaf.size for leaf in (*client.body, *client.head))
    size = sum(leaf.size for leaf in jax.tree.leaves(client))
    law = split_noise if mode == "paper" else pair_noise
    draw = law.cohort_noise(
        graphs.complete(CLIENTS), num_clients=CLIENTS, own_stddev=own, pair_stddev=pair
    )
    # In one piece, for a leaf apiece compiles for long. Body and head come first in a triple.
    like = jnp.zeros(gradient if mode == "paper" else size)
    return lambda key: jnp.pad(draw(key, 0, like)[0], (0, size - like.size))


def trained(rounds: int = 300) -> tuple[models.Functional, data.Dataset]:
    """An mlp 64-32-32-10 on digits, by plain steps on the squared error."""
    digits = data.load("digits")
    model = models.create(
        "mlp", example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(0), hidden=(32, 32)
    )
    return disguised_membership.fit(
        model, digits.train, num_steps=rounds, learning_rate=0.5
    ), digits


class Seen(NamedTuple):
    """What the server makes of uploads, each leaf with leading axes.

    cosine: of the input's direction. error: of the last layer's gradient, relative; NaN where there
      is no Psi.
    psnr: in dB, of the input that `read_input` says. recovered: params-like, the gradient.
    """

    cosine: jax.Array
    error: jax.Array
    psnr: jax.Array
    recovered: Params


def _psnr(found: jax.Array, truth: jax.Array, box: tuple[float, float] = (0.0, 1.0)) -> jax.Array:
    """Of an example of which it is known that it lies in `box`; at most 100 dB, where float32
    ends.
    """
    inside = jnp.clip(jnp.nan_to_num(found), *box)
    return jnp.minimum(
        metrics.psnr(inside.reshape(truth.shape), truth, data_range=box[1] - box[0]), 100.0
    )


class Quality(NamedTuple):
    """How near what an attack found comes to the truth, `[]` each.

    psnr: in dB, at most 100, MAX the length of the box. mse: per number of the example.
    feature_mse: per number of the true model's last layer's input.
    """

    psnr: jax.Array
    mse: jax.Array
    feature_mse: jax.Array


def quality(
    plan: Plan,
    params: Params,
    found: jax.Array,
    truth: jax.Array,
    box: tuple[float, float] = (0.0, 1.0),
) -> Quality:
    """Of one example, clipped to the `box` in which the data are known to lie.

    Args:
      plan: of the network. params: the true ones.
      found, truth: of one shape, up to reshaping.
      box: range of the data.
    """
    inside = jnp.clip(jnp.nan_to_num(found), *box).reshape(truth.shape)
    body, _ = scaling.split(plan, params)
    features = lambda x: scaling.hidden(plan, body, None, x)
    return Quality(
        _psnr(inside, truth, box),
        metrics.mse(inside, truth),
        metrics.feature_mse(features, inside, truth),
    )


def _server(
    model: models.Functional, plan: Plan, client: perturbed.TripleFun
) -> Callable[..., Seen]:
    """Jitted (sent, transition, secrets, batches of one, noise `[V, numbers]`, shares `[S]`, clip)
    -> Seen `[V, S]`.
    """
    loss = models.squared_error(model.apply)

    def victim(
        sent: Params,
        transition: jax.Array,
        secrets: perturbation.Secrets,
        batch: Batch,
        noise: jax.Array,
        shares: jax.Array,
        clip: jax.Array,
    ) -> Seen:
        x = batch["x"].reshape(-1)
        triple, _ = client(sent, transition, batch, jnp.ones(1, bool))
        clean, unravel = flatten_util.ravel_pytree(perturbed.clip(triple, clip)[0])
        exact = jax.grad(loss)(model.params, jax.tree.map(lambda leaf: leaf[0], batch))
        kernel = scaling.split(plan, exact)[1][0]

        def one(share: jax.Array) -> Seen:
            upload = unravel(clean + share * noise)
            cosine = jnp.abs(jnp.vdot(input_direction(plan, upload), x)) / jnp.linalg.norm(x)
            error = jnp.full((), jnp.nan)
            if len(upload.psi):
                head = last_layer_gradient(plan, secrets, read(plan, sent, upload))
                error = jnp.linalg.norm(head - kernel) / jnp.linalg.norm(kernel)
            psnr = _psnr(read_input(plan, upload), x)
            return Seen(cosine, error, psnr, recovery.recover(plan, secrets, upload))

        return jax.vmap(one)(shares)

    return jax.jit(jax.vmap(victim, (None, None, None, 0, 0, None, None)))


def run(
    *,
    epsilon: float = 3.0,
    delta: float = 1e-5,
    additive_norm: float = 1.0,
    seed: int = 0,
    victims: int = 10,
    rounds: int = 300,
    shares: tuple[float, ...] = SHARES,
    settings: gradient_inversion.Settings = SEARCH,
    members: int = 200,
    member_steps: int = 4000,
) -> list[dict[str, Any]]:
    """All attacks in each mode, one round each, of 5 clients.

    Args:
      epsilon, delta: of one client against another, towards the server, by equation (23) in the
        limit of infinite pair noise, of which there is 100 times the own variance here; the mode
        "paper" has noise of that size on the gradient, and no epsilon.
      additive_norm: ||r|| where there is one. seed: of secrets, noise and members. victims: batches
        of one.
      rounds: of training of the model whose uploads are attacked.
      shares: of that noise, own and pairs', under which the server attacks; 0 is the control: no
        noise at all.
      settings: of the search on recovered gradients.
      members, member_steps: of `disguised_membership.overfitted`.

    Returns:
      Rows, by `direction` and `mode`. "client learns of the model": the share of held-out digits on
      which it agrees with the true model, `before` and `after` the attack. "client learns of the
      members": success of a loss threshold on the `true model`, on the model as sent (`before`) and
      as corrected (`after`). "server learns of the data", for each share `noise`: PSNR in dB of the
      `search` on the recovered gradient, of the input as `read` off Phi (off the gradient without
      one) and of a `blind` guess (the mean digit), means over victims; mean |cos| of the input's
      direction and median relative error of the last layer's gradient, off Psi and Phi.
    """
    model, digits = trained(rounds)
    test, train = jax.tree.map(jnp.asarray, digits.test), jax.tree.map(jnp.asarray, digits.train)
    plan = scaling.plan(model.apply, model.params, test["x"][0])
    theta = float(printed.printed_theta(epsilon, delta))
    own = 2 * printed.own_stddev_for(theta, CLIENTS)
    true = jax.vmap(model.apply, (None, 0))(model.params, test["x"]).argmax(-1)
    known: Batch = {name: train[name][:KNOWN] for name in ("x", "y")}
    batches = {name: test[name][:victims, None] for name in ("x", "y")}
    trained_on = disguised_membership.overfitted(seed, size=members, num_steps=member_steps)
    triples, gradients = (
        perturbed.triples(plan),
        perturbed.gradients(plan, models.squared_error(model.apply).of_output),
    )
    servers = {fun: _server(model, plan, fun) for fun in (triples, gradients)}
    single = jax.tree.map(lambda leaf: leaf[0], batches)
    client, membership, seen = [], [], []
    for index, mode in enumerate(MODES):
        draw_key, noise_key, member_key = jax.random.split(
            jax.random.fold_in(jax.random.key(seed), index), 3
        )
        norm = 0.0 if mode == "r0_gaussian" else additive_norm
        secrets = perturbation.draw(plan, draw_key, additive_norm=norm)
        sent, transition = perturbation.perturb(plan, model.params, secrets)
        before, after = known_network.attack(plan, sent, transition, known, test["x"])
        agree = {"before": float(jnp.mean(before == true)), "after": float(jnp.mean(after == true))}
        client.append({"direction": "client learns of the model", "mode": mode, **agree})
        told = disguised_membership.attack(trained_on, member_key, additive_norm=norm)
        rates = {"true model": told.true_model, "before": told.as_sent, "after": told.corrected}
        membership.append({"direction": "client learns of the members", "mode": mode, **rates})
        sends = gradients if mode == "r0_gaussian" else triples
        noise = upload_noise(
            mode,
            jax.eval_shape(sends, sent, transition, single, jnp.ones(1, bool))[0],
            own,
            10 * own,
        )
        drawn = jnp.stack([noise(key) for key in jax.random.split(noise_key, victims)])
        # In the printed mode nobody clips.
        bound = jnp.asarray(jnp.inf if mode == "paper" else 1.0)
        seen.append(
            servers[sends](sent, transition, secrets, batches, drawn, jnp.asarray(shares), bound)
        )
    # Leaves `[modes, victims, shares, ...]`; one search for each.
    stacked: Seen = jax.tree.map(lambda *leaves: jnp.stack(leaves), *seen)
    grid = stacked.cosine.shape
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), stacked.recovered)
    labels = jnp.broadcast_to(batches["y"][None], grid).reshape(-1)
    found = search(
        model,
        flat,
        labels,
        jax.random.fold_in(jax.random.key(seed), len(MODES)),
        settings,
        shape=test["x"].shape[1:],
    )
    truth = jnp.broadcast_to(test["x"][None, :victims, None], (*grid, *test["x"].shape[1:]))
    searched = np.asarray(jax.vmap(_psnr)(found, truth.reshape(found.shape))).reshape(grid)
    blind = float(jnp.mean(jax.vmap(_psnr, (None, 0))(train["x"].mean(0), test["x"][:victims])))
    server = []
    for m, mode in enumerate(MODES):
        for s, share in enumerate(shares):
            row: dict[str, Any] = {
                "direction": "server learns of the data",
                "mode": mode,
                "noise": share,
            }
            row |= {
                "search": float(searched[m, :, s].mean()),
                "read": float(np.mean(stacked.psnr[m, :, s])),
            }
            row |= {"blind": blind, "input |cos|": float(np.mean(stacked.cosine[m, :, s]))}
            row |= {
                "last layer's gradient, relative error": float(np.median(stacked.error[m, :, s]))
            }
            server.append(row)
    return [*client, *membership, *server]


def text(rows: list[dict[str, Any]]) -> str:
    """The rows of `run` as one table for the eye, a block for each direction."""
    lines: list[str] = []
    for direction in dict.fromkeys(row["direction"] for row in rows):
        here = [
            {k: v for k, v in row.items() if k != "direction"}
            for row in rows
            if row["direction"] == direction
        ]
        cells = [list(here[0])]
        cells += [
            [f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()] for row in here
        ]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines += ["", direction]
        lines += [
            "  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
            for row in cells
        ]
    return "\n".join(lines[1:])


def main() -> None:
    """Prints the table of `run`."""
    print(text(run()))


if __name__ == "__main__":
    main()
