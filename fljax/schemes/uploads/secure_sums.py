"""The schemes named after a secure sum: noise of all clients together hides one of them.

Each runs in two ways. With `execution="ideal"` its protocol is taken for an ideal functionality,
which reveals the sum of the usable uploads and nothing else. With "protocol" a protocol of
`fljax.upload.secure_sum` takes the sum, all parties in this process, and releases the same bits.
Protocols sum whole numbers, so that needs noise that is drawn in whole numbers: `noise="exact"`,
each client's discrete Gaussian share. `pile`, `tp_smc` and `hybrid_alpha` have no other.

Source: Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy and Straggler
Resilience", whose baselines `smpc_dp`, `he_dp`, `secagg_dp` and `swiftagg_dp` are, with noise sized
for N - C - S contributors. Yang et al., "Efficiently Achieving Secure Model Training and Secure
Aggregation to Ensure Bidirectional Privacy-Preservation in Federated Learning", for the others: of
PILE the threshold encryption alone is here, with noise that PILE does without, and neither its
perturbed models nor its proofs. Truex et al. (2019), arXiv:1812.03224 (TP-SMC); Xu et al. (2019),
arXiv:1912.05897 (HybridAlpha).
"""

import dataclasses
import typing
from collections.abc import Callable
from typing import Any, Literal

import jax
import optax

from fljax import _validate
from fljax.accounting.events import PrivacyEvent
from fljax.accounting.shared_noise import adversaries
from fljax.data import parties
from fljax.schemes import base, exact
from fljax.schemes.central import round as central
from fljax.schemes.uploads import distributed_dgauss, ideal_sums, modular
from fljax.schemes.uploads import round as uploads
from fljax.server import costs as costs_lib
from fljax.server.costs import Costs
from fljax.server.rounds import Performance
from fljax.types import LossFn
from fljax.upload import secure_sum

# Of the schemes with two forms of noise: the links that a client needs for its upload to count.
LINKS: dict[str, ideal_sums.Links] = {
    "smpc_dp": "server",
    "he_dp": "server",
    "secagg_dp": "peers",
    "swiftagg_dp": "peers",
}
MaskedBy = Literal["secagg", "secagg_plus"]
SharedBy = Literal["servers", "shamir_servers"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(modular.GridConfig):
    """As `modular.GridConfig`, and how noise is drawn.

    Raises:
      ValueError: as there, or a protocol is to sum float32 noise.
    """

    noise: exact.Form = "float32"
    """"float32": the sum's noise, drawn at once, as if by all clients. "exact": each client rounds
    its update to a grid and adds discrete Gaussian noise in whole numbers.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.one_of(typing.get_args(exact.Form), noise=self.noise)
        if self.execution == "protocol" and self.noise != "exact":
            raise ValueError(
                "Expected noise='exact' with execution='protocol', since protocols sum whole "
                f"numbers, got noise={self.noise!r}."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecAggConfig(Config):
    """As `Config`, by either form of masks."""

    protocol: MaskedBy = "secagg"
    """What takes the sum with `execution="protocol"`: masks of all pairs of clients, or of
    neighbours in a random graph.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.one_of(typing.get_args(MaskedBy), protocol=self.protocol)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmpcConfig(Config):
    """As `Config`, by either form of shares."""

    protocol: SharedBy = "servers"
    """What takes the sum with `execution="protocol"`: two servers with additive shares, or three
    with Shamir's, of whom one may be lost.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.one_of(typing.get_args(SharedBy), protocol=self.protocol)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeyConfig(modular.GridConfig):
    """As `modular.GridConfig`, by a protocol whose numbers are as long as its key.

    Raises:
      ValueError: as there, or a key is too short for any test.
    """

    key_bits: int = 3072
    """Of the numbers that `execution="protocol"` computes with; 3072 are 128 bits of security, and
    fewer are for tries: they protect nobody.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.one_of((128, 256, 512, 1024, 2048, 3072), key_bits=self.key_bits)


def _either(float32: base.Make, integers: base.Make) -> base.Make:
    def make(
        config: Config,
        loss: LossFn,
        *,
        num_units: int,
        performance: Performance = Performance(),
        server_optimizer: optax.GradientTransformation | None = None,
        local_optimizer: optax.GradientTransformation | None = None,
    ) -> base.FederatedAlgorithm:
        """Builds the algorithm: local SGD, clipped updates, noise that all clients' shares add up
        to, a secure sum of those that respond, their mean.

        Guarantee: one round is one `event(config)` for the unit "client", for every client that
        does not collude, towards the server and those who do. With `noise="float32"` that is a
        Gaussian mechanism, as `lightdp.make` says it of its own, with noise drawn in float32; with
        "exact" the sum of honest clients' discrete Gaussians, as `distributed_dgauss.make` says.
        The secure sum is ideal, or a protocol within its own threat model.

        Args, Raises: as `base.Make`; `num_units` are clients, and must be `num_parties`. With
          "exact" also as `distributed_dgauss.make`.
        """
        chosen = integers if config.noise == "exact" else float32
        return chosen(
            config,
            loss,
            num_units=num_units,
            performance=performance,
            server_optimizer=server_optimizer,
            local_optimizer=local_optimizer,
        )

    return make


def event(config: Config) -> PrivacyEvent:
    """What one round does to one client's data, by the noise that the config asks for.

    Raises:
      ValueError: noise_multiplier or num_parties is None.
    """
    if config.noise == "exact":
        return modular.event(config, distributed_dgauss.NOISE)
    return central.replaced_event(config)


def _non_private(config: Config) -> Any:
    return base.non_private(dataclasses.replace(config, noise="float32", execution="ideal"))


def _scheme(
    name: str,
    summary: str,
    protocol: Callable[[Any], str],
    costs: Callable[[Any, int], Costs],
    config: type[Config] = Config,
) -> base.Scheme:
    """A scheme that has float32 noise, too."""
    links = LINKS[name]

    def views(config: Config, key: jax.Array, num_rounds: int) -> adversaries.Views | None:
        """Who saw what in a run with this key; `config` with its noise multiplier, above 0. None
        where noise is exact: views are Gaussian, and its sum is not.
        """
        if config.noise == "exact":
            return None
        return adversaries.sum_views(
            uploads.reached(config, key, num_rounds, links=links),
            max_colluders=config.max_colluders,
            least=config.parties - config.max_stragglers,
            share_mu=1 / ideal_sums.share(config, base.noise_multiplier(config)),
        )

    by = modular.SumBy(
        lambda config, terms: secure_sum.simulated(protocol(config), terms), links=links
    )
    return uploads.scheme(
        summary=f"{summary}, distributed noise; unit: client",
        Config=config,
        make=_either(
            uploads.maker(ideal_sums.hide, links=links),
            modular.maker(distributed_dgauss.NOISE, by),
        ),
        event=event,
        non_private=_non_private,
        views=views,
        costs=costs,
        normals=lambda config, num_params: config.parties * num_params,  # each one's share
    )


def _in_whole_numbers(
    summary: str, config: type[modular.GridConfig], simulated: Callable[[Any, Any], Any]
) -> base.Scheme:
    """A scheme whose clients' noise is in whole numbers alone; `simulated(config, terms)` is the
    protocol that sums them.
    """
    by = modular.SumBy(simulated)
    return base.Scheme(
        summary=f"{summary}, distributed discrete Gaussian noise; unit: client",
        promise="epsilon",
        Config=config,
        make=modular.maker(distributed_dgauss.NOISE, by),
        event=distributed_dgauss.event,
        fitted=parties.fitted,
        non_private=modular.non_private,
        noise_at="client",
        start=uploads.START,
        population=base.all_join,
    )


# The price of a particular protocol is not modelled.
smpc_dp = _scheme(
    "smpc_dp",
    "secure sum by shares among servers",
    lambda config: config.protocol,
    lambda config, num_params: costs_lib.plain(num_params),
    SmpcConfig,
)
# Reference 14 there: 32-bit numbers become 4096-bit ciphertexts, and decryption takes another
# message round.
he_dp = _scheme(
    "he_dp",
    "secure sum by homomorphic encryption",
    lambda config: "ckks",
    lambda config, num_params: costs_lib.homomorphic(num_params),
)
# Reference 10 there: pairwise masks. A client counts if none of its N links failed.
secagg_dp = _scheme(
    "secagg_dp",
    "secure aggregation by masks",
    lambda config: config.protocol,
    lambda config, num_params: costs_lib.secure_aggregation(num_params, config.parties),
    SecAggConfig,
)
# Reference 8 there, with its link model, which is the same.
swiftagg_dp = _scheme(
    "swiftagg_dp",
    "coded secure aggregation",
    lambda config: "light_secagg",
    lambda config, num_params: costs_lib.coded_aggregation(
        num_params, config.parties, config.max_colluders, config.max_stragglers
    ),
)


def _of_keys(summary: str, protocol: str) -> base.Scheme:
    """One by a protocol with long keys."""
    return _in_whole_numbers(
        summary,
        KeyConfig,
        lambda config, terms: secure_sum.simulated(protocol, terms, key_bits=config.key_bits),
    )


pile = _of_keys("secure sum by threshold encryption", "paillier")
tp_smc = _of_keys("secure sum by threshold encryption without a dealer", "joint_paillier")
hybrid_alpha = _in_whole_numbers(
    "secure sum by functional encryption",
    modular.GridConfig,
    lambda config, terms: secure_sum.simulated("inner_product", terms),
)
