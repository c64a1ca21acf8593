"""What a spectrum decides: noise that lifts it to a floor, the capacity of a noisy channel, the
error that leaves.
"""

from fljax_kernels.spectral.api import (
    Draw,
    Spectrum,
    filling_draw,
    lifted_draw,
    lifted_weights,
    spectrum,
)
from fljax_kernels.spectral.channel import (
    capacity,
    capacity_dense,
    capacity_gram,
    clipped_capacity,
    compose_capacity,
    compression_drop,
    log_expm1,
    solve_log_noise_var,
    white_log_snr,
)
from fljax_kernels.spectral.distortion import (
    mse_distortion_rate,
    mse_entropy_bound,
    mse_linear,
    mse_projected,
)
from fljax_kernels.spectral.noise_shapes import (
    capacity_hadamard,
    hadamard_terms,
    min_power_noise_var,
    personalized_values,
    solve_log_noise_var_hadamard,
)

__all__ = [
    "Draw",
    "Spectrum",
    "capacity",
    "capacity_dense",
    "capacity_gram",
    "capacity_hadamard",
    "clipped_capacity",
    "compose_capacity",
    "compression_drop",
    "filling_draw",
    "hadamard_terms",
    "lifted_draw",
    "lifted_weights",
    "log_expm1",
    "min_power_noise_var",
    "mse_distortion_rate",
    "mse_entropy_bound",
    "mse_linear",
    "mse_projected",
    "personalized_values",
    "solve_log_noise_var",
    "solve_log_noise_var_hadamard",
    "spectrum",
    "white_log_snr",
]
