"""What server and clients of a deployment agree on before its first round."""

import dataclasses
import hashlib
from typing import Any

from fljax import _validate, schemes
from fljax.accounting.events import NonPrivate, PrivacyEvent
from fljax.data import parties
from fljax.errors import PrivacyPreconditionError
from fljax.schemes.base import Scheme
from fljax.schemes.uploads import distributed_dgauss, skellam

# Those whose sums are secure, with the noise of their clients.
IN_THE_RING = {"distributed_dgauss": distributed_dgauss.NOISE, "skellam": skellam.NOISE}
SCHEMES = ("dp_fedavg", "higradavg", "lightdp", *IN_THE_RING)
PROTOCOLS = ("secagg", "secagg_plus")
# What a config may have that real clients and servers do not do, and the one value that they do.
_ONLY: dict[str, Any] = {
    "correlation": "none",
    "sampling": "poisson",
    "draw": "pairs",
    "bits": None,
    "silos_per_round": None,  # each silo would draw for itself, and all might join
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deployment:
    """Public numbers of a deployment, the same at every party.

    Raises:
      ValueError: a number is out of its range, the scheme is none that is deployed, or its config
        is another one's or asks for what only a simulation does, such as a secure sum by another
        protocol than SecAgg and SecAgg+.
      PrivacyPreconditionError: the config promises nothing: its noise is none, or is still to be
        calibrated; or the protocol does not stand so many colluders or stragglers.
    """

    scheme: str
    """A name of SCHEMES."""
    config: Any
    """Of the scheme, with its noise_multiplier: see `fljax.accounting.calibrate`."""
    num_clients: int
    """Clients that are enrolled, numbered from 0 on; a published constant."""
    num_rounds: int
    """Most rounds, whatever the budget; a client is in no round beyond them."""

    def __post_init__(self) -> None:
        _validate.one_of(SCHEMES, scheme=self.scheme)
        _validate.positive_int(num_clients=self.num_clients, num_rounds=self.num_rounds)
        wanted = self.implementation.Config
        if not isinstance(self.config, wanted):
            raise ValueError(
                f"Expected config to be {wanted.__module__}.Config for scheme={self.scheme!r}, got "
                f"{type(self.config).__name__}."
            )
        if not self.config.noise_multiplier or self.event.mechanism == NonPrivate():
            raise PrivacyPreconditionError(
                "Expected a config that promises an epsilon, with noise_multiplier > 0, got "
                f"noise_multiplier={self.config.noise_multiplier!r}."
            )
        if isinstance(self.config, parties.Parties):
            parties.check_number(self.config, self.num_clients)
        numbers = dataclasses.asdict(self.config)
        for name, value in _ONLY.items():
            got = numbers.get(name, value)
            if got != value:
                raise ValueError(
                    f"Expected {name}={value!r} of real clients, got {name}={got!r}: it is for "
                    "simulations."
                )

        if self.scheme in IN_THE_RING:
            _validate.one_of(PROTOCOLS, protocol=self.config.protocol)
            # What the scheme refuses before its first round, it refuses here.
            config = dataclasses.replace(self.config, execution="protocol")
            loss = lambda params, example: params
            self.implementation.make(config, loss, num_units=self.num_clients)

    @property
    def implementation(self) -> Scheme:
        """The scheme itself."""
        return schemes.get(self.scheme)

    @property
    def event(self) -> PrivacyEvent:
        """What one round does to one unit's data, whoever answers."""
        return self.implementation.event(self.config)

    @property
    def terms(self) -> str:
        """A word that differs where any of these numbers does; every message has it."""
        numbers = (self.scheme, dataclasses.asdict(self.config), self.num_clients, self.num_rounds)
        return hashlib.sha256(repr(numbers).encode()).hexdigest()
