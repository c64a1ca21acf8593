"""Every rule against float64 vmap(grad), within twice the error of float32 vmap(grad)."""

import pytest

from fljax_kernels.per_example.cases import CASES
from tests.kernels.per_example._exact import check


@pytest.mark.parametrize("case", CASES, ids=str)
def test_taps_agree_with_float64(case):
    params, batch = case.make(3)
    large = ("gram", "materialize") if "transformer" in case.name else ()
    check(case.loss, params, batch, leave_out=large, method="taps")
