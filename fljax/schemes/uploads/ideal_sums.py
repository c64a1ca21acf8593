"""The schemes with an ideal secure sum: noise of all clients that together hides one of them.

No scheme here runs cryptography. Each takes its protocol for an ideal functionality, which reveals
the sum of the usable uploads and nothing else; they differ in which links a client needs, hence how
often rounds are lost, and in cost.

Source: Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy and Straggler
Resilience", whose baselines these are, with noise sized for N - C - S contributors.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal

import jax

from fljax import _keys
from fljax.accounting.shared_noise import adversaries
from fljax.schemes import base
from fljax.schemes.central import round as central
from fljax.schemes.uploads import round as uploads
from fljax.server import costs as costs_lib
from fljax.server.costs import Costs
from fljax.server.rounds import Round
from fljax.upload import secure_sum

Links = Literal["server", "peers"]
# The links that a client needs, every one of them, for its upload to count.
LINKS: dict[str, Links] = {
    "smpc_dp": "server",
    "he_dp": "server",
    "secagg_dp": "peers",
    "swiftagg_dp": "peers",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(uploads.Config):
    """As `uploads.round.Config`; what hides a client is the noise on the sum, but for the part that
    colluders know.

    A round in which more than max_stragglers clients cannot be used is aborted and leaves the model
    as it was.

    Raises:
      ValueError: as there, or nobody honest may be left to add noise: max_colluders +
        max_stragglers >= num_parties.
    """

    def _check_parties(self, num_parties: int) -> None:
        super()._check_parties(num_parties)
        _share(self, 0.0)


def _share(config: Config, stddev: float) -> float:
    return secure_sum.share_stddev(
        stddev,
        num_clients=config.parties,
        max_colluders=config.max_colluders,
        max_stragglers=config.max_stragglers,
    )


def hide(config: Config) -> uploads.Hide:
    """Every responder's share of the noise, in an ideal secure sum from which nobody deviates.

    It is enough towards the server and at most `max_colluders` clients.
    """
    stddev = _share(config, central.stddev(config))

    def hidden(here: Round, sent: uploads.Uploads) -> uploads.Hidden:
        noisy, completed = secure_sum.secure_sum(
            here.server_key(_keys.Purpose.NOISE),
            sent.total,
            sent.num_responders,
            stddev=stddev,
            least_responders=config.parties - config.max_stragglers,
        )
        return uploads.Hidden(noisy, completed)

    return hidden


def _scheme(name: str, protocol: str, costs: Callable[[Config, int], Costs]) -> base.Scheme:
    links = LINKS[name]

    def views(config: Config, key: jax.Array, num_rounds: int) -> adversaries.Views:
        """Who saw what in a run with this key; `config` with its noise multiplier, above 0."""
        return adversaries.sum_views(
            uploads.reached(config, key, num_rounds, links=links),
            max_colluders=config.max_colluders,
            least=config.parties - config.max_stragglers,
            share_mu=1 / _share(config, base.noise_multiplier(config)),
        )

    return uploads.scheme(
        summary=f"{protocol}, distributed noise; unit: client",
        Config=Config,
        make=uploads.maker(hide, links=links),
        views=views,
        costs=costs,
        normals=lambda config, num_params: config.parties * num_params,  # each one's share
    )


# The price of a particular protocol is not modelled.
smpc_dp = _scheme(
    "smpc_dp", "ideal secure sum", lambda config, num_params: costs_lib.plain(num_params)
)
# Reference 14 there: 32-bit numbers become 4096-bit ciphertexts, and decryption takes another
# message round.
he_dp = _scheme(
    "he_dp",
    "secure sum by homomorphic encryption (idealised)",
    lambda config, num_params: costs_lib.homomorphic(num_params),
)
# Reference 10 there: pairwise masks. A client counts if none of its N links failed.
secagg_dp = _scheme(
    "secagg_dp",
    "secure aggregation (idealised)",
    lambda config, num_params: costs_lib.secure_aggregation(num_params, config.parties),
)
# Reference 8 there, with its link model, which is the same.
swiftagg_dp = _scheme(
    "swiftagg_dp",
    "coded secure aggregation (idealised)",
    lambda config, num_params: costs_lib.coded_aggregation(
        num_params, config.parties, config.max_colluders, config.max_stragglers
    ),
)
