"""What XLA makes of our programs for a TPU and a GPU, read without either."""
