"""Functions rewritten for loops: convolutions as patches and matrix products."""
