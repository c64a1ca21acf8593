"""Noise in whole numbers for schemes with a trusted server: what they share of it."""

import dataclasses
import typing
from typing import Any, Literal

from fljax import _keys, _validate
from fljax.local import clipping
from fljax.schemes import base
from fljax.schemes.central import round as central
from fljax.server.rounds import Release, Round, Sums
from fljax.upload import exact_noise

Form = Literal["float32", "exact"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExactConfig(_validate.Checked):
    """How noise is drawn, a part of configs.

    Raises:
      ValueError: exact noise is asked for where the bound adapts, or each array has its own.
    """

    noise: Form = "float32"
    """"float32", or "exact": contributions are rounded to a grid, added up and noised in whole
    numbers, so that neither last bits nor the order of a sum tell anything. Epsilon is the same.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.one_of(typing.get_args(Form), noise=self.noise)
        if self.noise == "float32":
            return
        config: Any = self  # a part of a `turns.BandedConfig` with a `ClippingConfig`
        for name, wanted, got in (
            ("target_quantile", None, config.target_quantile),
            ("correlation", "none", config.correlation),
        ):
            if got != wanted:
                raise ValueError(
                    f"Expected {name}={wanted!r} with noise='exact', whose grid and noise are the "
                    f"same in all rounds, got {name}={got!r}."
                )
        if config.clipping_style == "per_layer":
            raise ValueError(
                "Expected clipping_style other than 'per_layer' with noise='exact', which has one "
                "grid for all arrays, got clipping_style='per_layer'."
            )


def noise(config: Any, expected_count: float) -> central.Noise:
    """As `central.noise`, in whole numbers.

    Guarantee: if one unit adds one row or none, what a round releases is a function of one Gaussian
    mechanism with the configured noise multiplier, on the sum of rounded rows: no idealisation of
    noise but that random bits are uniform. The divisor is `expected_count`, a public constant.
    """
    grid = exact_noise.grid(
        base.noise_multiplier(config),
        l2_clip_norm=config.l2_clip_norm,
        most_rows=max(1, round(expected_count / config.sampling_prob)),
    )

    def add_up(rows: Any, keys: Any, mask: Any) -> Any:
        norms = clipping.joint_norm(clipping.leaf_norms(rows))
        factors = clipping.to_bound(norms, config.l2_clip_norm, style=config.clipping_style)
        return exact_noise.total(grid, rows, factors, keys, mask), norms

    def release(here: Round, sums: Sums) -> Release:
        key = here.server_key(_keys.Purpose.NOISE)
        return Release(exact_noise.noised(grid, key, sums.total), expected_count)

    return central.Noise(lambda _: (), lambda _: config.l2_clip_norm, None, release, add_up)
