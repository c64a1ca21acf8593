"""Functions rewritten for CPUs: convolutions in loops, pools, sums over axes that lie apart; for
GPUs: convolutions and pools of models side by side.
"""
