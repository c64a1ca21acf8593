"""A Flower app whose rounds are DP-FedAvg's: see docs/howto/deploy.md."""
