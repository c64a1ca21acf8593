"""One thin file per published scheme: Config, make, event.

Each module in NAMES offers

- `Config`: frozen dataclass of plain public numbers;
- `make(config, loss, *, num_units, ...) -> FederatedAlgorithm(init, round, client_sampling_prob)`;
- `event(config)`: what one round does, for the accountants;
- `non_private(config)`: the same training without clipping or noise, to compare with;
- `SUMMARY`: one line for a table.

A module may also name NOISE_AT ("silo" or "client": the server need not be trusted), SIMULATION (sections of a run's
config that `fljax simulate` starts from), `views(config, key, num_rounds)` (who saw what in a run, for its report),
and, where a paper's own formula is on offer, what `_paper` lists.
"""

import importlib
from types import ModuleType

from fljax import _validate

NAMES = (
    "dp_fedavg",
    "dp_fedsgd",
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
    "secagg_dp",
    "sgd_dp",
    "smpc_dp",
    "swiftagg_dp",
    "user_ldp",
)


def get(name: str) -> ModuleType:
    """The scheme's module. Raises ValueError for a name that is not in NAMES."""
    _validate.one_of(NAMES, scheme=name)
    return importlib.import_module(f"fljax.schemes.{name}")
