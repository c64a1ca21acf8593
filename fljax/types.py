"""Names for what travels along the road. Aliases only, no logic."""

from collections.abc import Callable
from typing import Any

import jax

PyTree = Any
Params = Any  # a pytree of floating arrays, D numbers in all
Example = Any  # a pytree, one example, no batch axis
Batch = Any  # a pytree of arrays with a leading axis B
ClientUpdate = Params  # server_params - client_params: points like a gradient
LossFn = Callable[..., jax.Array]  # loss(params, example) or loss(params, example, key) -> scalar
