"""One federated round beside FedJAX, pfl-research, Flower, a torch loop and plain JAX: equal work,
compared first.
"""
