"""Noise in whole numbers: what schemes of trusted servers, silos and clients share of it."""

import dataclasses
import functools
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax

from fljax import _keys, _validate
from fljax.local import clipping
from fljax.server.rounds import Round
from fljax.upload import exact_noise
from fljax_kernels import PerExampleGrads

Form = Literal["float32", "exact"]
# What else a config may have, its only value with exact noise, and why.
_RULES: dict[str, tuple[Any, str]] = {
    "target_quantile": (None, "whose grid and noise are the same in all rounds"),
    "correlation": ("none", "whose grid and noise are the same in all rounds"),
    "silo_noise": ((), "whose grid and noise are the same in all silos"),
    "formula": ("sound", "which no paper's formula is of"),
}
_OF_SEVERAL = (
    "in which noise of several clients hides one of them, and what each rounds does not add up to "
    "the rounding of one Gaussian (distributed_dgauss and skellam draw whole numbers)"
)
# (round, ids `[B]`, rows `[B]`, mask `[B]`) -> (sum of clipped rows, norms `[B]`)
AddUp = Callable[[Round, jax.Array, Any, jax.Array], tuple[Any, jax.Array]]
# (round, gradients `[B, D]`, places `[B]`) -> the same
AddUpGradients = Callable[[Round, PerExampleGrads, jax.Array], tuple[Any, jax.Array]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExactConfig(_validate.Checked):
    """How noise is drawn, a part of configs.

    Raises:
      ValueError: exact noise is asked for where the bound adapts, noise is correlated or not the
        same in all silos, each array has a bound of its own, or a paper's formula is asked for.
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
        fields = dataclasses.asdict(self)  # of the config that this is a part of
        for name, (wanted, why) in _RULES.items():
            got = fields.get(name, wanted)
            if got != wanted and got != []:  # a tuple, as TOML has it
                raise ValueError(
                    f"Expected {name}={wanted!r} with noise='exact', {why}, got {name}={got!r}."
                )
        if fields.get("clipping_style") == "per_layer":
            raise ValueError(
                "Expected clipping_style other than 'per_layer' with noise='exact', which has one "
                "grid for all arrays, got clipping_style='per_layer'."
            )


def check_known(scheme: Any, values: Mapping[str, Any]) -> None:
    """Raises ValueError where `values` for the Config of a `Scheme` say how noise is drawn, and it
    has no such field.
    """
    names = {field.name for field in dataclasses.fields(scheme.Config)}
    if "noise" in values and "noise" not in names:
        check_offered(scheme, values["noise"])


def check_offered(scheme: Any, noise: Any = "exact") -> None:
    """Raises ValueError where a `Scheme` does not offer exact noise, and says why."""
    if issubclass(scheme.Config, ExactConfig):
        return
    why = _OF_SEVERAL if scheme.noise_at == "client" else "whose noise is drawn in float32 alone"
    if "noise" in {field.name for field in dataclasses.fields(scheme.Config)}:
        why = "whose exact noise is of several clients: fljax.testing.check_scheme replays it"
    raise ValueError(
        f"Expected a scheme that offers noise='exact', got noise={noise!r} with one {why}."
    )


def asked(config: Any) -> bool:
    """Whether a config, of any scheme, asks for exact noise."""
    return isinstance(config, ExactConfig) and config.noise == "exact"


def add_up(
    grid: exact_noise.Grid, *, style: clipping.Style = "flat", noise_of_each: bool = False
) -> AddUp:
    """Clips rows, rounds them to the grid by a key of the round and the number of each, and adds
    them up in whole numbers; `noise_of_each`: each with noise of its own.

    Guarantee: as `exact_noise.total`.
    """

    def summed(here: Round, ids: jax.Array, rows: Any, mask: jax.Array) -> tuple[Any, jax.Array]:
        norms = clipping.joint_norm(clipping.leaf_norms(rows))
        factors = clipping.to_bound(norms, grid.l2_clip_norm, style=style)
        found = exact_noise.total(
            grid,
            rows,
            factors,
            here.server_key(_keys.Purpose.ROUND),
            ids,
            mask,
            noise_keys=here.client_keys(ids, _keys.Purpose.NOISE) if noise_of_each else None,
        )
        return found, norms

    return summed


def add_up_gradients(grid: exact_noise.Grid, *, style: clipping.Style = "flat") -> AddUpGradients:
    """As `add_up`, of per-example gradients."""

    def summed(here: Round, gradients: PerExampleGrads, places: jax.Array) -> tuple[Any, jax.Array]:
        return exact_noise.total_of_gradients(
            grid,
            gradients,
            functools.partial(clipping.to_bound, l2_clip_norm=grid.l2_clip_norm, style=style),
            here.server_key(_keys.Purpose.ROUND),
            places,
        )

    return summed


def noised(grid: exact_noise.Grid, here: Round, total: Any) -> Any:
    """A round's sum with the server's noise, in the unit of the updates."""
    return exact_noise.noised(grid, here.server_key(_keys.Purpose.NOISE), total)
