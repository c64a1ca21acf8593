"""Eigensystems of implicit matrices through their Gram matrix, and the noise that lifts a spectrum to a floor."""

from fljax_kernels.spectral.api import Draw, Spectrum, filling_draw, lifted_draw, spectrum

__all__ = ["Draw", "Spectrum", "filling_draw", "lifted_draw", "spectrum"]
