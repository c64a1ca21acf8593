"""Every rule against float64 vmap(grad), within twice the error of float32 vmap(grad)."""

import pytest

from fljax_kernels.per_example.cases import CASES
from tests.kernels.per_example._exact import check


@pytest.mark.slow(
    reason="compiles a loss in float32 and float64",
    but=[
        "mlp",
        "einsum_with_a_shared_axis",
        "bilinear_form",
        "conv_1d_strided",
        "conv_2d_grouped",
        "conv_2d_transposed",
        "weight_norm",
        "layer_norm_and_rms_norm",
        "lookups_out_of_bounds",
        "dynamic_slices",
        "tied_embedding",
        "gru",
        "scanned_layers",
        "indexed_layers",
        "one_flat_vector",
        "weight_decay_and_unused",
        "branches_with_parameters",
        "custom_rules_with_parameters",
        "remat",
        "dropout",
        "selections",
        "ensemble_under_vmap",
        "scatter_into_parameters",
        "half_precision",
    ],
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_taps_agree_with_float64(case):
    params, batch = case.make(3)
    large = ("gram", "materialize") if "transformer" in case.name else ()
    check(case.loss, params, batch, leave_out=large, method="taps")
