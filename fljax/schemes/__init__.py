"""One thin file per published scheme: Config, make, event, fitted.

A scheme of one's own is a module or an object that does the same. `register` makes it known by a name; an installed
package may name it under the entry-point group `fljax.schemes`; and its dotted path serves as a name everywhere.

Each module in NAMES offers (`base.Scheme`)

- `Config`: frozen dataclass of plain public numbers;
- `make(config, loss, *, num_units, ...) -> FederatedAlgorithm(init, round, client_sampling_prob)`;
- `event(config)`: what one round does, for the accountants;
- `fitted(config, facts)`: the config for data of these `fljax.data.facts.Facts`: counts that were left None are filled
  in, and one that `event` rests on and the data contradict is refused with both numbers (PrivacyPreconditionError);
- `non_private(config)`: the same training without clipping or noise, to compare with;
- `SUMMARY`: one line for a table;
- `PROMISE`: one of PROMISES. "epsilon": `event` has accountants that prove one. "nats": what one use of a record tells,
  as the Config's `nats` and `data_model` say; `inputs` gives the `channel`, `spent` the error that is left. "none".

A module may also name NOISE_AT ("silo" or "client": the server need not be trusted), SIMULATION (sections of a run's
config that `fljax simulate` starts from; its num_clients is for data that are dealt, where nothing else says how many;
a scheme meant for few clients names its delta there), `inputs(config, task)` (keyword arguments for `make` that come
from a run's data or model), `check_network(config, apply, params, example)` (refuses networks for which no round can be
built), `views(config, key, num_rounds)` (who saw what in a run, for its report), `exposure(config)` (who can learn
what, in words), `spent(config, task, inputs, num_rounds)` (what a run told about records in nats),
`upload_noise(config)` (`UploadNoise`: the server sees every upload, and an audit plays against all of them),
NEEDS_NETWORK (True: `make` takes losses of networks only, so that no audit runs its rounds) and, where a paper's own
formula is on offer, what `silos.printed` lists.

Code outside this package asks the module for what it needs, and never goes by a scheme's name.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fljax import _plugins, _rooms, _validate

NAMES = (
    "bidirectional",
    "dp_fedavg",
    "dp_fedsgd",
    "dp_psac",
    "dp_sgd",
    "fedavg",
    "gd_dp",
    "gsgd_dp",
    "he_dp",
    "higradavg",
    "item_sum_cap",
    "lightdp",
    "local_dp",
    "local_group_dp",
    "local_item_dp",
    "mp_cdp",
    "mp_dp_naive",
    "natural_channel",
    "personalized_channel",
    "secagg_dp",
    "sgd_dp",
    "smpc_dp",
    "swiftagg_dp",
    "user_ldp",
    "white_channel",
)
PROMISES = ("epsilon", "nats", "none")


def register(name: str, scheme: Any) -> None:
    """Lets all commands and `get` find a scheme of one's own, a `base.Scheme`, in this process.

    Raises:
      ValueError: a name that is taken or cannot be one, or `scheme` lacks a member; the message names it.
    """
    from fljax.schemes import base

    base.check(name, scheme)
    _plugins.register("schemes", name, scheme, NAMES)


def names() -> tuple[str, ...]:
    """NAMES, then those that others brought."""
    return (*NAMES, *_plugins.names("schemes"))


def origin(name: str) -> str:
    """Where the scheme of that name comes from, in words."""
    return _plugins.origin("schemes", name)


def check_name(**given: str) -> None:
    """Raises ValueError, with the argument's name and the nearest name there is, unless `get` knows the scheme."""
    for argument, name in given.items():
        if name not in NAMES and _outside(name) is None:
            _validate.one_of(names(), **{argument: name})


def _outside(name: str) -> Any | None:
    found = _plugins.find("schemes", name)
    return _plugins.at_path(name) if found is None and "." in name else found


def get(name: str) -> Any:
    """The scheme: a module of this package, or what others brought (`base.Scheme`).

    Raises:
      ValueError: nobody knows the name, or what it names lacks a member of a scheme.
    """
    if name in NAMES:
        return importlib.import_module(f"fljax.schemes.{_MOVED[name]}")
    check_name(scheme=name)
    found = _outside(name)
    from fljax.schemes import base

    base.check(name, found)
    return found


# Short names of modules that lie a floor deeper.
_MOVED = {
    "bidirectional": "disguised.bidirectional",
    "dp_fedavg": "central.dp_fedavg",
    "dp_fedsgd": "central.dp_fedsgd",
    "dp_psac": "silos.dp_psac",
    "dp_sgd": "silos.dp_sgd",
    "fedavg": "silos.fedavg",
    "gd_dp": "weighted.gd_dp",
    "gsgd_dp": "weighted.gsgd_dp",
    "he_dp": "uploads.he_dp",
    "higradavg": "silos.higradavg",
    "item_sum_cap": "silos.item_sum_cap",
    "lightdp": "uploads.lightdp",
    "local_dp": "uploads.local_dp",
    "local_group_dp": "silos.local_group_dp",
    "local_item_dp": "silos.local_item_dp",
    "mp_cdp": "disguised.mp_cdp",
    "mp_dp_naive": "disguised.mp_dp_naive",
    "natural_channel": "channels.natural_channel",
    "personalized_channel": "channels.personalized_channel",
    "secagg_dp": "uploads.secagg_dp",
    "sgd_dp": "weighted.sgd_dp",
    "smpc_dp": "uploads.smpc_dp",
    "subject_ledger": "silos.subject_ledger",
    "swiftagg_dp": "uploads.swiftagg_dp",
    "user_ldp": "silos.user_ldp",
    "white_channel": "channels.white_channel",
}

if TYPE_CHECKING:
    from fljax.schemes import base as base
    from fljax.schemes import central as central
    from fljax.schemes import channels as channels
    from fljax.schemes import disguised as disguised
    from fljax.schemes import silos as silos
    from fljax.schemes import uploads as uploads
    from fljax.schemes import weighted as weighted
    from fljax.schemes.central import dp_fedavg as dp_fedavg
    from fljax.schemes.central import dp_fedsgd as dp_fedsgd
    from fljax.schemes.channels import natural_channel as natural_channel
    from fljax.schemes.channels import personalized_channel as personalized_channel
    from fljax.schemes.channels import white_channel as white_channel
    from fljax.schemes.disguised import bidirectional as bidirectional
    from fljax.schemes.disguised import mp_cdp as mp_cdp
    from fljax.schemes.disguised import mp_dp_naive as mp_dp_naive
    from fljax.schemes.silos import dp_psac as dp_psac
    from fljax.schemes.silos import dp_sgd as dp_sgd
    from fljax.schemes.silos import fedavg as fedavg
    from fljax.schemes.silos import higradavg as higradavg
    from fljax.schemes.silos import item_sum_cap as item_sum_cap
    from fljax.schemes.silos import local_group_dp as local_group_dp
    from fljax.schemes.silos import local_item_dp as local_item_dp
    from fljax.schemes.silos import subject_ledger as subject_ledger
    from fljax.schemes.silos import user_ldp as user_ldp
    from fljax.schemes.uploads import he_dp as he_dp
    from fljax.schemes.uploads import lightdp as lightdp
    from fljax.schemes.uploads import local_dp as local_dp
    from fljax.schemes.uploads import secagg_dp as secagg_dp
    from fljax.schemes.uploads import smpc_dp as smpc_dp
    from fljax.schemes.uploads import swiftagg_dp as swiftagg_dp
    from fljax.schemes.weighted import gd_dp as gd_dp
    from fljax.schemes.weighted import gsgd_dp as gsgd_dp
    from fljax.schemes.weighted import sgd_dp as sgd_dp
else:
    __getattr__, __dir__ = _rooms.doors(__name__, _MOVED)
