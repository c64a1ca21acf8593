"""Tables, figures and conclusions of "Lightweight Federated Learning with Differential Privacy and
Straggler Resilience".

The paper trains ResNet-18 on CIFAR-10 for 150 rounds with an unstated sensitivity, split and delta:
orders are compared, not numbers. By default a softmax model on the bundled digits stands in, for 20
rounds, delta 1e-3; updates are clipped, which the paper lacks.
"""

from fljax.papers.lightdp.claims import CONCLUSIONS
from fljax.papers.lightdp.items import ITEMS
from fljax.papers.paper import Paper

PAPER = Paper(
    title="Noise that clients share in pairs",
    source=(
        'Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy and Straggler '
        'Resilience"'
    ),
    items=ITEMS,
    conclusions=CONCLUSIONS,
    by_seed=frozenset({"accuracies", "counted"}),
    memory_gb={"demo": 2.0, "full": 12.0},
    stand_ins={
        "demo": ("A softmax model on the bundled 8 x 8 digits in place of ResNet-18 on CIFAR-10."),
        "full": ("A small CNN on the bundled 8 x 8 digits in place of ResNet-18 on CIFAR-10."),
    },
)
