"""Every rule against float64 vmap(grad), within twice the error of float32 vmap(grad)."""

import pytest

from fljax_kernels.per_example.cases import CASES
from tests.kernels.per_example._exact import check


@pytest.mark.slow(
    reason="compiles nested loops and branches in float32 and float64",
    ids=[
        "nested_scans",
        "branches_inside_scan",
        "branches_of_many_kinds",
        "scanned_tied_transformer",
    ],
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_taps_agree_with_float64(case):
    params, batch = case.make(3)
    large = ("gram", "materialize") if "transformer" in case.name else ()
    check(case.loss, params, batch, leave_out=large, method="taps")
