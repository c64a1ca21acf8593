"""Functions rewritten for CPUs: convolutions in loops, pools, sums over axes that lie apart."""
