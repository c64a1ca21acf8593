"""Figures, Table 2 and conclusions of "Defending Against Data Reconstruction Attacks in Federated
Learning: An Information Theory Approach", arXiv:2403.01268: noise in the data, counted in nats.

The paper prints no accuracy, error or AUC in numbers, no learning rate and no number of clients:
trends and orders are compared. Its victims are LeNet, ResNet10, AlexNet and VGG16 on CIFAR-10,
CelebA, SVHN and Fashion-MNIST at 32 x 32; by default a small dense network on 8 x 8 digits and on
16 x 16 Gaussian fields, whose law is known, stands in, at the same nats per coordinate.
"""

from fljax.papers.channel.claims import CONCLUSIONS
from fljax.papers.channel.items import ITEMS
from fljax.papers.paper import Paper

PAPER = Paper(
    title="Noise in the data, counted in nats",
    source=(
        'Tan et al. (2024), "Defending Against Data Reconstruction Attacks in Federated Learning: '
        'An Information Theory Approach", arXiv:2403.01268'
    ),
    items=ITEMS,
    conclusions=CONCLUSIONS,
    memory_gb={"demo": 3.0, "full": 16.0},
    by_seed=frozenset({"rows"}),
    stand_ins={
        "demo": (
            "Small dense networks on 8 x 8 digits and 16 x 16 Gaussian fields, and LeNet on "
            "patches of two photographs, in place of four networks on CIFAR-10, CelebA, SVHN "
            "and Fashion-MNIST."
        ),
        "full": (
            "8 x 8 digits, 16 x 16 Gaussian fields and patches of two photographs in place of "
            "CIFAR-10, CelebA, SVHN and Fashion-MNIST; dense networks and LeNet in place of "
            "four networks."
        ),
    },
)
