"""DP-PSAC in silos: DP-SGD that scales every gradient to nearly the bound, one near zero less so;
unit: example.

Source: Xia et al. (2022), "Differentially Private Learning with Per-Sample Adaptive Clipping",
  arXiv:2212.00328.
"""

import dataclasses
from typing import Literal

from fljax import _validate
from fljax.local import subject
from fljax.schemes import base
from fljax.schemes.silos import dp_sgd, local_item_dp
from fljax.schemes.silos import round as silos
from fljax.server.rounds import Performance
from fljax.types import LossFn


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(local_item_dp.Config):
    """As `local_item_dp.Config`, with a style of clipping."""

    clipping_style: Literal["psac", "flat"] = "psac"
    """"psac" weighs a gradient g by C / (|g| + r / (|g| + r)) with r = 0.1; "flat" clips it to
    C.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.one_of(("psac", "flat"), clipping_style=self.clipping_style)


def silo(config: Config, loss: LossFn, performance: Performance) -> silos.Silo:
    """The sum of scaled gradients of Poisson-sampled items, each shorter than the bound."""
    grid = silos.grid_of(config)
    query = subject.item_sum(
        loss, **silos.items(config, performance, grid), clipping_style=config.clipping_style
    )
    return silos.Silo(query, config.expected_items, silos.stddev(config), grid=grid)


def non_private(config: Config) -> Config:
    """The same training with a clip that never binds and no noise."""
    plain: Config = base.non_private(config)
    return dataclasses.replace(plain, clipping_style="flat")


SCHEME = silos.scheme(
    summary="DP-SGD in silos with adaptive scaling of each gradient; unit: example",
    promise="epsilon",
    Config=Config,
    make=silos.maker(silo),
    event=dp_sgd.event,
    non_private=non_private,
    start=dp_sgd.START,
    spent=dp_sgd.spent,
)
make, event, fitted, spent = SCHEME.make, SCHEME.event, SCHEME.fitted, SCHEME.spent
