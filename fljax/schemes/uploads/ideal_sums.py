"""An ideal secure sum with float32 noise of all clients, which together hides one of them.

No cryptography runs here: a protocol is taken for an ideal functionality, which reveals the sum of
the usable uploads and nothing else. Schemes (`secure_sums`) differ in which links a client needs,
hence how often rounds are lost, and in cost.

Source: Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy and Straggler
Resilience", whose baselines these are, with noise sized for N - C - S contributors.
"""

import dataclasses
from typing import Literal

from fljax import _keys
from fljax.schemes.central import round as central
from fljax.schemes.uploads import round as uploads
from fljax.server.rounds import Round
from fljax.upload import secure_sum

# The links that a client needs, every one of them, for its upload to count.
Links = Literal["server", "peers"]


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
        share(self, 0.0)


def share(config: Config, stddev: float) -> float:
    """Noise stddev of one client such that honest responders' add up to `stddev`."""
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
    stddev = share(config, central.stddev(config))

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
