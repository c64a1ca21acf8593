"""One thin file per published scheme, and the names that schemes are known by.

A scheme is a `fljax.Scheme` (`fljax.schemes.base`), which says what each of its members is. Every
file of a scheme here ends with its own, SCHEME; the functions behind it stay:
`fljax.schemes.dp_fedavg.event(config)`.

A scheme of one's own is the same. `register` makes it known by a name in this process; an installed
package names it under the entry-point group `fljax.schemes`; and the dotted path of a Scheme, or of
a module with a SCHEME, is a name. Code outside this package asks a scheme for what it needs, and
never goes by its name. See docs/howto/extending.md.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fljax import _plugins, _rooms

if TYPE_CHECKING:
    from fljax.schemes.base import Scheme as Scheme

_WHERE = {
    "bidirectional": "disguised.bidirectional",
    "compressed_updates": "channels.compressed_updates",
    "dp_fedavg": "central.dp_fedavg",
    "dp_fedbuff": "central.dp_fedbuff",
    "dp_fedper": "central.dp_fedper",
    "dp_fedsgd": "central.dp_fedsgd",
    "dp_ftrl": "central.dp_ftrl",
    "dp_psac": "silos.dp_psac",
    "dp_scaffold": "central.dp_scaffold",
    "dp_sgd": "silos.dp_sgd",
    "distributed_dgauss": "uploads.distributed_dgauss",
    "embedding_channel": "channels.embedding_channel",
    "fedavg": "silos.fedavg",
    "gd_dp": "weighted.gd_dp",
    "gsgd_dp": "weighted.gsgd_dp",
    "he_dp": "uploads.secure_sums.he_dp",
    "higradavg": "silos.higradavg",
    "higradavg_sum": "silos.higradavg_sum",
    "hybrid_alpha": "uploads.secure_sums.hybrid_alpha",
    "item_sum_cap": "silos.item_sum_cap",
    "lightdp": "uploads.lightdp",
    "local_dp": "uploads.local_dp",
    "local_group_dp": "silos.local_group_dp",
    "local_item_dp": "silos.local_item_dp",
    "mp_cdp": "disguised.mp_cdp",
    "mp_dp_naive": "disguised.mp_dp_naive",
    "natural_channel": "channels.natural_channel",
    "parameter_channel": "channels.parameter_channel",
    "personalized_channel": "channels.personalized_channel",
    "pile": "uploads.secure_sums.pile",
    "secagg_dp": "uploads.secure_sums.secagg_dp",
    "sgd_dp": "weighted.sgd_dp",
    "skellam": "uploads.skellam",
    "smpc_dp": "uploads.secure_sums.smpc_dp",
    "subject_sampled": "silos.subject_sampled",
    "swiftagg_dp": "uploads.secure_sums.swiftagg_dp",
    "tp_smc": "uploads.secure_sums.tp_smc",
    "user_ldp": "silos.user_ldp",
    "white_channel": "channels.white_channel",
}
NAMES = tuple(_WHERE)
PROMISES = ("epsilon", "nats", "none")


def _check(name: str, thing: Any) -> "Scheme":
    from fljax.schemes.base import Scheme

    if not isinstance(thing, Scheme):
        raise ValueError(
            f"Expected scheme {name!r} to be a fljax.Scheme, got {type(thing).__name__}."
        )
    return thing


_registry: "_plugins.Registry[Scheme]" = _plugins.Registry(
    "schemes",
    "scheme",
    {name: f"fljax.schemes.{where}" for name, where in _WHERE.items()},
    _check,
    member="SCHEME",
)


def register(name: str, scheme: "Scheme") -> None:
    """Lets all commands and `get` find a scheme of one's own in this process.

    Raises:
      ValueError: a name that is taken or cannot be one, or no `Scheme`.
    """
    _registry.register(name, scheme, _check(name, scheme).event.__module__)


def names() -> tuple[str, ...]:
    """NAMES, then those that others brought."""
    return _registry.names()


def get(name: str) -> "Scheme":
    """The scheme of that name, or at that dotted path.

    Raises:
      ValueError: nobody knows the name, or what it names is no scheme.
    """
    return _registry.get(name)


def check_name(**given: str) -> None:
    """Raises ValueError, with the argument's name and the nearest name there is, unless `get` knows
    the scheme.
    """
    _registry.check_name(**given)


def origin(name: str) -> str:
    """Where the scheme of that name comes from, in words."""
    return _registry.origin(name)


def listed() -> Iterator[_plugins.Listed]:
    """All names with where they come from; one that cannot be loaded stops no other."""
    return _registry.listed()


# Short names of modules that lie a floor deeper, and of what modules define.
_SUMS = {
    name: "fljax.schemes.uploads.secure_sums"
    for name, where in _WHERE.items()
    if where.startswith("uploads.secure_sums.")
}
_MOVED = {name: where for name, where in _WHERE.items() if name not in _SUMS}
_MOVED["subject_ledger"] = "silos.subject_ledger"

if TYPE_CHECKING:
    from fljax.schemes import base as base
    from fljax.schemes import central as central
    from fljax.schemes import channels as channels
    from fljax.schemes import disguised as disguised
    from fljax.schemes import exact as exact
    from fljax.schemes import silos as silos
    from fljax.schemes import uploads as uploads
    from fljax.schemes import weighted as weighted
    from fljax.schemes.central import dp_fedavg as dp_fedavg
    from fljax.schemes.central import dp_fedbuff as dp_fedbuff
    from fljax.schemes.central import dp_fedper as dp_fedper
    from fljax.schemes.central import dp_fedsgd as dp_fedsgd
    from fljax.schemes.central import dp_ftrl as dp_ftrl
    from fljax.schemes.central import dp_scaffold as dp_scaffold
    from fljax.schemes.channels import compressed_updates as compressed_updates
    from fljax.schemes.channels import embedding_channel as embedding_channel
    from fljax.schemes.channels import natural_channel as natural_channel
    from fljax.schemes.channels import parameter_channel as parameter_channel
    from fljax.schemes.channels import personalized_channel as personalized_channel
    from fljax.schemes.channels import white_channel as white_channel
    from fljax.schemes.disguised import bidirectional as bidirectional
    from fljax.schemes.disguised import mp_cdp as mp_cdp
    from fljax.schemes.disguised import mp_dp_naive as mp_dp_naive
    from fljax.schemes.silos import dp_psac as dp_psac
    from fljax.schemes.silos import dp_sgd as dp_sgd
    from fljax.schemes.silos import fedavg as fedavg
    from fljax.schemes.silos import higradavg as higradavg
    from fljax.schemes.silos import higradavg_sum as higradavg_sum
    from fljax.schemes.silos import item_sum_cap as item_sum_cap
    from fljax.schemes.silos import local_group_dp as local_group_dp
    from fljax.schemes.silos import local_item_dp as local_item_dp
    from fljax.schemes.silos import subject_ledger as subject_ledger
    from fljax.schemes.silos import subject_sampled as subject_sampled
    from fljax.schemes.silos import user_ldp as user_ldp
    from fljax.schemes.uploads import distributed_dgauss as distributed_dgauss
    from fljax.schemes.uploads import lightdp as lightdp
    from fljax.schemes.uploads import local_dp as local_dp
    from fljax.schemes.uploads import skellam as skellam
    from fljax.schemes.uploads.secure_sums import he_dp as he_dp
    from fljax.schemes.uploads.secure_sums import hybrid_alpha as hybrid_alpha
    from fljax.schemes.uploads.secure_sums import pile as pile
    from fljax.schemes.uploads.secure_sums import secagg_dp as secagg_dp
    from fljax.schemes.uploads.secure_sums import smpc_dp as smpc_dp
    from fljax.schemes.uploads.secure_sums import swiftagg_dp as swiftagg_dp
    from fljax.schemes.uploads.secure_sums import tp_smc as tp_smc
    from fljax.schemes.weighted import gd_dp as gd_dp
    from fljax.schemes.weighted import gsgd_dp as gsgd_dp
    from fljax.schemes.weighted import sgd_dp as sgd_dp
    from fljax.server.rounds import Performance as Performance
else:
    __getattr__, __dir__ = _rooms.doors(
        __name__,
        _MOVED,
        lifted={"Scheme": "fljax.schemes.base", "Performance": "fljax.server.rounds", **_SUMS},
    )
