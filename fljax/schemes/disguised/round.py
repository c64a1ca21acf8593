"""The round of the schemes whose server perturbs the model: secrets, clients' triples, noise,
recovery, one step.

Every client takes one gradient of one batch; with several local steps the perturbed parameters
would move along the perturbed gradient, and nothing recovers from that.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fljax_kernels
from fljax import _keys, _validate
from fljax.accounting import events
from fljax.data.cohorts import Cohort
from fljax.data.facts import Facts
from fljax.local import perturbed, sgd
from fljax.models import losses, scaling
from fljax.schemes import base
from fljax.server import aggregate, perturbation, recovery, rounds
from fljax.server.rounds import Clients, Performance, Release, Round, Sums
from fljax.types import Batch, LossFn, Params
from fljax.upload import pair_noise, split_noise
from fljax_kernels.pairwise import graphs
from fljax_kernels.per_example import jaxprs

Noise = Literal["paper", "upload_gaussian", "r0_gaussian", "oracle_clip", "naive", "central"]
START: dict[str, dict[str, Any]] = {
    "data": {"num_clients": 10, "partition": "iid"},
    "model": {"model": "mlp", "loss": "squared"},
    "scheme": {"num_parties": None},
    "privacy": {"target_epsilon": 8.0, "target_delta": 5e-5},
    "run": {"num_rounds": 60},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Public numbers; every one may be published without loss of privacy.

    Raises:
      ValueError: a number is out of its range.
    """

    num_parties: int | None = 10
    """Clients. none: as many as the data have."""
    cohort_size: int | None = None
    """Clients that a round chooses from them at random; no amplification is claimed for it. none:
    all.
    """
    unit: Literal["client_addremove", "client_replace", "example_replace"] = "example_replace"
    """Whom noise hides: a client against none, or against any other; or one example
    against another.
    """
    local_batch_size: int = 64
    """Examples in a client's batch of a round, drawn without replacement."""
    l2_clip_norm: float = 1.0
    """Bound on what a client sends, or on what each example adds to it."""
    noise_multiplier: float | None = None
    """Standard deviation of what hides one unit / how far its data move what is seen, towards those
    whom the guarantee covers. none: calibrated for the target epsilon.
    """
    additive_norm: float = 0.3
    """Length of the secret vector on the last layer; noise grows with it, and digits are lost."""
    additive: Literal["any", "constant"] = "any"
    """Its direction: any; or all outputs alike, which a softmax does not see, so that cross-entropy
    serves.
    """
    form: Literal["transitional", "base"] = "transitional"
    """Perturbation with transitional layers, or with one scale a unit."""
    scale_law: Literal["dn", "log_uniform"] = "dn"
    """Law of the secret scales: the paper's product law in absolute value, or log-uniform in
    scale_range.
    """
    scale_range: tuple[float, ...] = ()
    """Bounds of the secret scales, low and high; empty: none."""
    allow_plain: bool = False
    """Leave layers unscaled that meet operations which do not commute with scales, instead of
    refusing them.
    """
    server_learning_rate: float = 0.5
    """Step size of the server along the recovered mean gradient."""
    server_momentum: float = 0.0
    """Momentum of the server, in [0, 1)."""

    def __post_init__(self) -> None:
        _validate.positive_int(local_batch_size=self.local_batch_size)
        if self.num_parties is not None:
            _validate.positive_int(num_parties=self.num_parties)
        if self.cohort_size is not None:
            _validate.positive_int(cohort_size=self.cohort_size)
            if self.num_parties is not None and self.cohort_size > self.num_parties:
                raise ValueError(
                    f"Expected cohort_size <= {self.num_parties}, got "
                    f"cohort_size={self.cohort_size}."
                )
        _validate.positive(
            l2_clip_norm=self.l2_clip_norm, server_learning_rate=self.server_learning_rate
        )
        _validate.one_of(("client_addremove", "client_replace", "example_replace"), unit=self.unit)
        _validate.one_of(("any", "constant"), additive=self.additive)
        _validate.one_of(("transitional", "base"), form=self.form)
        _validate.one_of(("dn", "log_uniform"), scale_law=self.scale_law)
        _validate.non_negative(
            additive_norm=self.additive_norm, server_momentum=self.server_momentum
        )
        if self.noise_multiplier is not None:
            _validate.non_negative(noise_multiplier=self.noise_multiplier)
        object.__setattr__(self, "scale_range", tuple(self.scale_range))
        if len(self.scale_range) not in (0, 2):
            raise ValueError(
                f"Expected scale_range of no or two numbers, got scale_range={self.scale_range}."
            )
        if self.scale_law == "log_uniform" and not self.scale_range:
            raise ValueError("Expected scale_range with scale_law='log_uniform', got none.")
        if not self.server_momentum < 1:
            raise ValueError(
                f"Expected server_momentum < 1, got server_momentum={self.server_momentum!r}."
            )

    @property
    def parties(self) -> int:
        """`num_parties`. Raises ValueError where it is none."""
        return base.known(num_parties=self.num_parties)

    @property
    def joining(self) -> int:
        """K, clients of a round. Raises ValueError where it is all of them, and num_parties is
        none.
        """
        return self.parties if self.cohort_size is None else self.cohort_size


def population(config: Config) -> base.Population:
    """All clients are asked in every round."""
    return base.Population(num_clients=config.num_parties)


def fitted(config: Any, facts: Facts) -> Any:
    """`config` with num_parties from the data.

    Raises:
      PrivacyPreconditionError: num_parties is not the number of clients.
      ValueError: there are too few clients for the cohort, colluders or graph of the config.
    """
    return base.fitted_clients(config, facts, num_parties=config.num_parties)


def check_network(config: Config, apply: scaling.Apply, params: Params, example: Any) -> None:
    """Raises ValueError, with the reason, where the network `apply(params, example)` admits no
    secret scales.
    """
    scaling.plan(apply, params, example, allow_plain=config.allow_plain)


def bound(config: Config) -> float:
    """L2 norm of what one unit adds to what its client sends, at most."""
    share = config.local_batch_size if config.unit == "example_replace" else 1
    return config.l2_clip_norm / share


def sensitivity(config: Config) -> float:
    """L2 norm by which neighbouring data move what a client sends, before noise."""
    return (1.0 if config.unit == "client_addremove" else 2.0) * bound(config)


def stddev(config: Config) -> float:
    """Standard deviation of what hides one unit, in the unit of what a client sends."""
    return base.noise_multiplier(config) * sensitivity(config)


def claim(config: Config, mechanism: events.Mechanism) -> events.PrivacyEvent:
    """`mechanism` under the claim that the configured unit makes."""
    relation = "REPLACE_SPECIAL" if config.unit == "client_addremove" else "REPLACE_ONE"
    return events.PrivacyEvent(
        mechanism=mechanism,
        privacy_unit="example" if config.unit == "example_replace" else "client",
        neighboring_relation=events.NeighboringRelation(relation),
    )


def exposure(config: Config, noise: Noise) -> list[tuple[str, str, str]]:
    """(who, about what, what it can learn) in both directions."""
    rows = [
        (
            "a client",
            "the model",
            "directions of the first layer's rows; transitions tell it r s of every unit",
        )
    ]
    if noise == "r0_gaussian" or config.additive_norm == 0:
        rows.append(
            ("a client", "the model", "its outputs: the last layer carries no secret vector")
        )
    else:
        found = (
            "the network up to n_L numbers, which about ten labelled examples tell it by least "
            "squares"
        )
        rows.append(("a client", "the model", f"{found} (attack known_network)"))
        if config.additive == "constant":
            shown = (
                "class probabilities, without any attack: a softmax does not see a vector "
                "alike for all classes"
            )
            rows.append(("a client", "the model", shown))
    if config.allow_plain and config.form == "transitional":
        rows.append(
            (
                "a client",
                "the model",
                "1 / r of every layer that is left plain: its transition is just that",
            )
        )
    if noise in ("upload_gaussian", "r0_gaussian"):
        told = (
            "what epsilon allows: everything it receives carries noise, and its secrets do not "
            "depend on data"
        )
    elif noise == "paper" and config.additive_norm == 0:
        told = (
            "the gradient but for noise that is uniform, hence bounded, to whoever knows the scales"
        )
    elif noise == "paper":
        told = (
            "where the loss is squared, so that Psi and Phi are sent, without noise: of a batch of "
            "one its input's direction before a dense layer, and its whole true gradient where the "
            "last layer has a bias, to a server that knows or guesses the label, without error; of "
            "b, the span of the b inputs (attack perturbation_leak). Else the gradient but for "
            "noise that is uniform, hence bounded"
        )
    else:
        told = "the true gradient, which only a simulator clips"
    return [*rows, ("the server", "the data", told)]


class Uploads(NamedTuple):
    """How clients hide what they send.

    noise: the mode. own_stddev: of a client's own noise; of the sum's, where a server adds it.
    edges: `[E, 2]`, who shares noise with whom. pair_stddev: of that noise. protocol: draw every
    client's upload; else what cancels is left out, and one backward pass serves where no triple is
    clipped. mask_all: shared noise on Psi and Phi too, where the mode has none there.
    """

    noise: Noise
    own_stddev: float
    edges: np.ndarray | None = None
    pair_stddev: float = 0.0
    protocol: bool = False
    mask_all: bool = False


def network_loss(loss: LossFn, noise: Noise, config: Config) -> losses.NetworkLoss:
    """`loss` with its network. Raises ValueError for a loss from which nothing recovers."""
    if not isinstance(loss, losses.NetworkLoss):
        raise ValueError(
            "Expected loss to be models.squared_error(apply), since the network must be known to "
            f"be perturbed, got {type(loss).__name__}."
        )
    plain = (
        noise in ("r0_gaussian", "central")
        or config.additive_norm == 0
        or config.additive == "constant"
    )
    if loss.kind != "squared" and not plain:
        raise ValueError(
            f"Expected loss to be models.squared_error(apply), got {loss.kind}: it is no "
            "polynomial of the residual, so the gradient does not come back. additive='constant', "
            "additive_norm=0 or noise='r0_gaussian' take it."
        )
    return loss


@jax.tree_util.register_static
class _Static:
    """What is known while a round is traced, and travels with arrays."""

    def __init__(self, of: scaling.Plan):
        self.of = of


def maker(hiding: Callable[[Any], Uploads]) -> base.Make:
    """`make` of a scheme whose clients hide what they send as `hiding(config)` says."""

    def make(
        config: Any,
        loss: LossFn,
        *,
        num_units: int,
        performance: Performance = Performance(),
        server_optimizer: optax.GradientTransformation | None = None,
        local_optimizer: optax.GradientTransformation | None = None,
    ) -> base.FederatedAlgorithm:
        """Builds the algorithm: rounds of perturbed FedSGD.

        Guarantee: what each client sends moves by at most its sensitivity between neighbours,
        before noise, in the modes "upload_gaussian" and "r0_gaussian"; in "central" each client's
        part of the released mean does; in the others nothing is promised. So one round is one
        `event(config)`, towards those whom the scheme's module names. Recovery is post-processing:
        secrets do not depend on data. A round in which a chosen client is missing is not counted.
        The caller must never use a (key, round) again with other data: equal noise cancels in the
        difference. Of the model's secrecy nothing is promised: see `fljax.server.perturbation`.
        Idealisation: noise is drawn in float32 with JAX's threefry generator, which is no
        cryptographic source. RoundInfo is not private.

        Args, Raises: as `base.Make`; the loss is of `models.squared_error(apply)`, or of
        cross-entropy where the additive vector is constant or 0; ValueError also where it is not or
        (while a round is traced) the network admits no scales, with the reason.
        """
        _validate.positive_int(num_units=num_units)
        base.no_local_steps(local_optimizer)
        uploads = hiding(config)
        network = network_loss(loss, uploads.noise, config)
        own, count = uploads.own_stddev, config.joining
        with_triple = _sends_triple(config, uploads, network)
        truth = uploads.noise in (
            "oracle_clip",
            "naive",
            "central",
        )  # no client sends it: a simulator knows it

        def of_client(here: Round, client: Clients) -> tuple[Any, jax.Array]:
            plan, secrets, sent, steps = here.shared
            compute = _client(
                plan.of, config, uploads, network, secrets, here.state.params, with_triple
            )
            batch = sgd.take_examples(here.examples, client.rows)
            upload, stats = compute(
                sent, steps, {"x": batch["x"], "y": batch["y"]}, client.rows >= 0
            )
            return (
                upload if client.given == () else jax.tree.map(jnp.add, upload, client.given)
            ), stats

        def choose(here: Round, cohort: Cohort) -> tuple[Round, Clients]:
            """The clients of the round, a batch of each, its noise in the protocol, and the
            perturbed model.
            """
            if cohort.client_ids.shape[0] != config.parties:
                raise ValueError(
                    f"Expected all num_parties={config.parties} clients in a round, got "
                    f"{cohort.client_ids.shape[0]}."
                )
            slots = jnp.arange(config.parties)
            if count < config.parties:
                slots = jax.random.permutation(
                    here.server_key(_keys.Purpose.CHOOSE_CLIENTS), slots
                )[:count]
            ids, rows = cohort.client_ids[slots], cohort.indices[slots]
            x = here.examples["x"]
            example = jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
            plan = scaling.plan(
                network.apply, here.state.params, example, allow_plain=config.allow_plain
            )
            secrets = _secrets(plan, config, uploads, here.server_key(_keys.Purpose.PERTURB))
            sent, transition = perturbation.perturb(plan, here.state.params, secrets)
            steps = transition if config.form == "transitional" else None
            here = here._replace(shared=(_Static(plan), secrets, sent, steps))
            batches = jax.vmap(lambda k, row: _batch(k, row, config.local_batch_size))(
                here.client_keys(ids, _keys.Purpose.SAMPLE_EXAMPLES), rows
            )
            clients = Clients(ids, batches, ids >= 0)
            with (
                jaxprs.on_no_mesh()
            ):  # JAX keeps a ReLU's derivative, with the mesh on which it was first asked for
                shapes = jax.eval_shape(
                    lambda: of_client(here, jax.tree.map(lambda leaf: leaf[0], clients))[0]
                )
            if not (uploads.protocol and own):
                return here, clients
            like = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
            return here, clients._replace(
                given=_cohort_noise(uploads, own, count)(here.key, here.state.round, like)
            )

        def release(here: Round, clients: Clients, sums: Sums) -> Release:
            plan, secrets = here.shared[0].of, here.shared[1]
            mean = jax.tree.map(lambda leaf: leaf / count, sums.total)
            if own and not uploads.protocol:
                noise = _sum_of_noise(
                    uploads.noise, here.server_key(_keys.Purpose.NOISE), sums.total, own, count
                )
                if uploads.noise in (
                    "oracle_clip",
                    "naive",
                ):  # the sum is true, noise is as clients would add it
                    noise = _multiplied(plan, secrets, noise)
                mean = jax.tree.map(lambda leaf, n: leaf + n / count, mean, noise)
            gradient = mean if truth else recovery.recover(plan, secrets, mean)
            digits = (
                {"lost_digits": recovery.lost_digits(plan, secrets, mean)} if with_triple else {}
            )
            return Release(gradient, counts=jnp.all(clients.present), info=digits)

        def at_once(here: Round, _: Clients, platform: str) -> int:
            parts = here.shared[0].of.num_outputs + 2 if with_triple else 1
            return aggregate.default_chunk_size(here.num_params * parts, platform)

        return rounds.federated(
            rounds.each(of_client),
            release,
            choose=choose,
            server_optimizer=server_optimizer or base.server_optimizer(config),
            performance=performance,
            chunk_size=at_once,
        )

    return make


def _sends_triple(config: Config, uploads: Uploads, network: losses.NetworkLoss) -> bool:
    if network.kind != "squared" or config.additive_norm == 0 or uploads.noise == "r0_gaussian":
        return False
    return uploads.noise == "upload_gaussian" or (uploads.noise == "paper" and uploads.protocol)


def _secrets(
    plan: scaling.Plan, config: Config, uploads: Uploads, key: jax.Array
) -> perturbation.Secrets:
    low_high = (config.scale_range[0], config.scale_range[1]) if config.scale_range else None
    return perturbation.draw(
        plan,
        key,
        additive_norm=0.0 if uploads.noise == "r0_gaussian" else config.additive_norm,
        form=config.form,
        law=config.scale_law,
        scale_range=low_high,
        constant_additive=config.additive == "constant",
    )


def _batch(key: jax.Array, rows: jax.Array, batch_size: int) -> jax.Array:
    """int32 `[min(batch_size, N)]`: so many of a client's rows, each set equally likely; -1 behind
    the last.
    """
    order = jnp.argsort(jnp.where(rows >= 0, jax.random.uniform(key, rows.shape), 2.0))
    return rows[order[: min(batch_size, rows.shape[0])]]


Client = Callable[[Params, Any, Batch, jax.Array], tuple[Any, jax.Array]]


def _client(
    plan: scaling.Plan,
    config: Config,
    uploads: Uploads,
    network: losses.NetworkLoss,
    secrets: perturbation.Secrets,
    params: Params,
    with_triple: bool,
) -> Client:
    """`(sent, transition, batch, mask) -> (upload, [loss, clipped])`."""
    bound, by_example = config.l2_clip_norm, config.unit == "example_replace"
    if uploads.noise in ("oracle_clip", "naive", "central"):
        return _clipped_truth(
            network, params, bound, config.local_batch_size if by_example else None
        )
    if uploads.noise == "paper":
        whole = (
            perturbed.triples(plan) if with_triple else perturbed.combined(plan, secrets.additive)
        )
        if network.kind != "squared":
            whole = perturbed.gradients(plan, network.of_output)

        def unclipped(
            sent: Params, transition: Any, batch: Batch, mask: jax.Array
        ) -> tuple[Any, jax.Array]:
            found, loss = whole(sent, transition, batch, mask)
            return found, jnp.stack([loss, jnp.zeros_like(loss)])

        return unclipped
    if by_example and with_triple:
        each = perturbed.clipped_records(
            perturbed.triples(plan, divisor=1.0), bound, batch_size=config.local_batch_size
        )
    elif by_example:
        each = perturbed.clipped_gradients(
            plan, network.of_output, bound, batch_size=config.local_batch_size
        )
    else:
        whole = (
            perturbed.triples(plan) if with_triple else perturbed.gradients(plan, network.of_output)
        )

        def each(
            sent: Params, transition: Any, batch: Batch, mask: jax.Array
        ) -> tuple[Any, jax.Array]:
            found, loss = whole(sent, transition, batch, mask)
            clipped, norm = perturbed.clip(found, bound)
            return clipped, jnp.stack([loss, (~(norm <= bound)).astype(loss.dtype)])

    return each


def _clipped_truth(
    network: losses.NetworkLoss, params: Params, bound: float, batch_size: int | None
) -> Client:
    """The true gradient, clipped: what no client could do, and what a trusted server would."""

    def client(
        sent: Params, transition: Any, batch: Batch, mask: jax.Array
    ) -> tuple[Params, jax.Array]:
        if batch_size is not None:
            gradients = fljax_kernels.per_example_grads(network)(params, batch)
            norms, values = gradients.row_norms(), gradients.values()
            # A row that is not finite gets weight 0, which `rmatvec` leaves out.
            keep = mask & jnp.isfinite(norms)
            weights = (
                jnp.where(keep, jnp.minimum(1, bound / jnp.maximum(norms, 1e-30)), 0) / batch_size
            )
            here = jnp.maximum(1, jnp.sum(mask)).astype(values.dtype)
            stats = [
                jnp.sum(jnp.where(keep, values, 0)) / here,
                jnp.sum(mask & ~(norms <= bound)).astype(here.dtype) / here,
            ]
            return gradients.rmatvec(weights), jnp.stack(stats)

        def mean(params: Params) -> jax.Array:
            values = jax.vmap(network, (None, 0))(params, batch)
            return jnp.sum(jnp.where(mask, values, 0)) / jnp.maximum(1, jnp.sum(mask)).astype(
                values.dtype
            )

        value, gradient = jax.value_and_grad(fljax_kernels.loop_friendly(mean, inside_loop=True))(
            params
        )
        clipped, norm = perturbed.clip(gradient, bound)
        return clipped, jnp.stack([value, (~(norm <= bound)).astype(value.dtype)])

    return client


def _cohort_noise(uploads: Uploads, own: float, count: int) -> pair_noise.NoiseFun:
    """Noise `[K, ...]` on every client's upload; only where the mode puts it."""
    edges = graphs.complete(count) if uploads.edges is None else uploads.edges
    if uploads.noise == "upload_gaussian" or uploads.noise == "r0_gaussian":
        return pair_noise.cohort_noise(
            edges, num_clients=count, own_stddev=own, pair_stddev=uploads.pair_stddev
        )
    uniform = split_noise.cohort_noise(
        edges, num_clients=count, own_stddev=own, pair_stddev=uploads.pair_stddev
    )
    masks = pair_noise.cohort_noise(
        edges, num_clients=count, own_stddev=0.0, pair_stddev=uploads.pair_stddev
    )

    def on_gradient(key: jax.Array, round_index: Any, like: Any) -> Any:
        rows = uniform(key, round_index, like._replace(psi=(), phi=(), psi_head=(), psi_bias=()))
        rest = like._replace(body=[], head=[])
        # Another stream than the gradient's: the same one would give both away in their difference.
        hidden = masks(jax.random.fold_in(key, 1), round_index, rest) if uploads.mask_all else None
        zeros = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), rest)
        return (zeros if hidden is None else hidden)._replace(body=rows.body, head=rows.head)

    return on_gradient


def _sum_of_noise(noise: Noise, key: jax.Array, like: Any, own: float, count: int) -> Any:
    """All clients' own noise on their sum, drawn at once where its law allows; pair noise has
    cancelled.
    """
    zeros = jax.tree.map(jnp.zeros_like, like)
    if noise in ("upload_gaussian", "r0_gaussian", "naive"):
        return fljax_kernels.add_gaussian_noise(key, zeros, own * float(np.sqrt(count)))
    if noise == "central":
        return fljax_kernels.add_gaussian_noise(key, zeros, own)
    return split_noise.sum_of_uniform(key, like, own, count)


def _multiplied(plan: scaling.Plan, secrets: perturbation.Secrets, noise: Params) -> Params:
    multipliers = perturbation.multipliers(plan, secrets)
    leaves = [
        leaf * factor for leaf, factor in zip(jax.tree.leaves(noise), multipliers, strict=True)
    ]
    return jax.tree.unflatten(plan.structure, leaves)
