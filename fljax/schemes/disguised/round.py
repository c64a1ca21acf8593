"""The round of the schemes whose server perturbs the model: secrets, clients' triples, noise,
recovery, one step.

Every client takes one gradient of one batch; with several local steps the perturbed parameters
would move along the perturbed gradient, and nothing recovers from that.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fljax import _keys, _validate
from fljax.accounting import events
from fljax.accounting.shared_noise import exposure as learned
from fljax.data import parties
from fljax.data.cohorts import Cohort
from fljax.local import disguised as work
from fljax.local import sgd
from fljax.models import losses, scaling
from fljax.schemes import base
from fljax.server import aggregate, optimizers, perturbation, recovery, rounds
from fljax.server.rounds import Clients, Release, Round, Sums
from fljax.types import LossFn, Params
from fljax.upload import disguised as hidden
from fljax.upload.disguised import Noise, Uploads
from fljax_kernels.per_example import jaxprs

START: dict[str, dict[str, Any]] = {
    "data": {"num_clients": 10, "partition": "iid"},
    "model": {"model": "mlp", "loss": "squared"},
    "scheme": {"num_parties": None, "server_momentum": 0.5},
    "privacy": {"target_epsilon": 8.0, "target_delta": 5e-5},
    "run": {"num_rounds": 60},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(optimizers.ServerSteps, base.NoiseConfig, parties.Parties):
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

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.positive_int(local_batch_size=self.local_batch_size)
        if self.cohort_size is not None:
            _validate.positive_int(cohort_size=self.cohort_size)
            if self.num_parties is not None and self.cohort_size > self.num_parties:
                raise ValueError(
                    f"Expected cohort_size <= {self.num_parties}, got "
                    f"cohort_size={self.cohort_size}."
                )
        _validate.one_of(("client_addremove", "client_replace", "example_replace"), unit=self.unit)
        _validate.one_of(("any", "constant"), additive=self.additive)
        _validate.one_of(("transitional", "base"), form=self.form)
        _validate.one_of(("dn", "log_uniform"), scale_law=self.scale_law)
        _validate.non_negative(additive_norm=self.additive_norm)
        object.__setattr__(self, "scale_range", tuple(self.scale_range))
        if len(self.scale_range) not in (0, 2):
            raise ValueError(
                f"Expected scale_range of no or two numbers, got scale_range={self.scale_range}."
            )
        if self.scale_law == "log_uniform" and not self.scale_range:
            raise ValueError("Expected scale_range with scale_law='log_uniform', got none.")

    @property
    def joining(self) -> int:
        """K, clients of a round. Raises ValueError where it is all of them, and num_parties is
        none.
        """
        return self.parties if self.cohort_size is None else self.cohort_size


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
    return learned.exposure(
        noise,
        additive_norm=config.additive_norm,
        constant=config.additive == "constant",
        allow_plain=config.allow_plain,
        transitional=config.form == "transitional",
    )


def network_loss(loss: LossFn, noise: Noise, config: Config) -> losses.NetworkLoss:
    """`loss` with its network. Raises ValueError for a loss from which nothing recovers."""
    if not isinstance(loss, losses.NetworkLoss):
        raise ValueError(
            "Expected loss to be models.squared_error(apply), since the network must be known to "
            f"be perturbed, got {type(loss).__name__}."
        )
    unseen = config.additive_norm == 0 or config.additive == "constant"
    if loss.kind != "squared" and noise not in ("r0_gaussian", "central") and not unseen:
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

    @base.maker
    def make(config: Any, loss: LossFn, given: base.Given) -> base.FederatedAlgorithm:
        """Builds the algorithm: rounds of perturbed FedSGD.

        Guarantee: what each client sends moves by at most its sensitivity between neighbours,
        before noise, in the modes "upload_gaussian" and "r0_gaussian"; in "central" each client's
        part of the released mean does; in the others nothing is promised. So one round is one
        `event(config)`, towards those whom the scheme's module names. Recovery is post-processing:
        secrets do not depend on data. A round in which a chosen client is missing is not counted.
        The caller must never use a (key, round) again with other data: equal noise cancels in the
        difference. Of the model's secrecy nothing is promised: see `fljax.server.perturbation`.
        Idealisation: noise is drawn in float32 with the key's generator; threefry is no
        cryptographic source. RoundInfo is not private.

        Args, Raises: as `base.Make`; the loss is of `models.squared_error(apply)`, or of
        cross-entropy where the additive vector is constant or 0; ValueError also where it is not or
        (while a round is traced) the network admits no scales, with the reason.
        """
        base.no_local_steps(given.local_optimizer)
        uploads = hiding(config)
        network = network_loss(loss, uploads.noise, config)
        own, count = uploads.own_stddev, config.joining
        with_triple = _sends_triple(config, uploads, network)
        # What no client sends: a simulator knows it.
        truth = uploads.noise in ("oracle_clip", "naive", "central")

        def of_client(here: Round, client: Clients) -> tuple[Any, jax.Array]:
            plan, secrets, sent, steps = here.shared
            compute = _client(
                plan.of, config, uploads, network, secrets, here.state.params, with_triple
            )
            batch = sgd.take_examples(here.examples, client.rows)
            batch = {"x": batch["x"], "y": batch["y"]}
            upload, stats = compute(sent, steps, batch, client.rows >= 0)
            if client.given != ():
                upload = jax.tree.map(jnp.add, upload, client.given)
            return upload, stats

        def choose(here: Round, cohort: Cohort) -> tuple[Round, Clients]:
            """The clients of the round, a batch of each, its noise in the protocol, and the
            perturbed model.
            """
            if cohort.client_ids.shape[0] != config.parties:
                raise ValueError(
                    f"Expected all num_parties={config.parties} clients in a round, got "
                    f"{cohort.client_ids.shape[0]}."
                )
            slots = chosen(config, here.server_key(_keys.Purpose.CHOOSE_CLIENTS))
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
            batches = jax.vmap(lambda k, row: work.batch(k, row, config.local_batch_size))(
                here.client_keys(ids, _keys.Purpose.SAMPLE_EXAMPLES), rows
            )
            clients = Clients(ids, batches, ids >= 0)
            # JAX keeps a ReLU's derivative, with the mesh on which it was first asked for.
            with jaxprs.on_no_mesh():
                shapes = jax.eval_shape(
                    lambda: of_client(here, jax.tree.map(lambda leaf: leaf[0], clients))[0]
                )
            if not (uploads.protocol and own):
                return here, clients
            like = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
            noise = hidden.cohort_noise(uploads, count)
            return here, clients._replace(given=noise(here.key, here.state.round, like))

        def release(here: Round, clients: Clients, sums: Sums) -> Release:
            plan, secrets = here.shared[0].of, here.shared[1]
            mean = jax.tree.map(lambda leaf: leaf / count, sums.total)
            if own and not uploads.protocol:
                key = here.server_key(_keys.Purpose.NOISE)
                noise = hidden.sum_of_noise(uploads, key, sums.total, count)
                if uploads.noise in ("oracle_clip", "naive"):
                    # The sum is true, noise is as clients would add it.
                    noise = perturbation.multiplied(plan, secrets, noise)
                mean = jax.tree.map(lambda leaf, n: leaf + n / count, mean, noise)
            gradient = mean if truth else recovery.recover(plan, secrets, mean)
            told = recovery.lost_digits(plan, secrets, mean) if with_triple else 0.0
            return Release(gradient, counts=jnp.all(clients.present), info={"lost_digits": told})

        def at_once(here: Round, _: Clients, platform: str) -> int:
            parts = here.shared[0].of.num_outputs + 2 if with_triple else 1
            return aggregate.default_chunk_size(here.num_params * parts, platform)

        return rounds.federated(
            rounds.each(of_client),
            release,
            choose=choose,
            server_optimizer=given.server_optimizer,
            performance=given.performance,
            chunk_size=at_once,
        )

    return make


def chosen(config: Config, key: jax.Array) -> jax.Array:
    """int32 `[K]`: the clients of a round, by its key for choosing them."""
    slots = jnp.arange(config.parties)
    if config.joining == config.parties:
        return slots
    return jax.random.permutation(key, slots)[: config.joining]


def _client(
    plan: scaling.Plan,
    config: Config,
    uploads: Uploads,
    network: losses.NetworkLoss,
    secrets: perturbation.Secrets,
    params: Params,
    with_triple: bool,
) -> work.Client:
    return work.client(
        plan,
        network,
        params,
        secrets.additive,
        noise=uploads.noise,
        l2_clip_norm=config.l2_clip_norm,
        batch_size=config.local_batch_size if config.unit == "example_replace" else None,
        with_triple=with_triple,
    )


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


scheme = functools.partial(
    base.Scheme,
    Config=Config,
    fitted=parties.fitted,
    non_private=base.non_private,
    start=START,
    population=base.all_join,
    check_network=check_network,
    needs_network=True,
)
