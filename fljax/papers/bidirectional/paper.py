"""What is remade of "Efficiently Achieving Secure Model Training and Secure Aggregation to Ensure
Bidirectional Privacy-Preservation in Federated Learning": tables, a figure, conclusions.

Its own figures are of ResNets on CIFAR and on images of tissue, which stand-ins replace here; it
does not print the laws of its secrets, delta, the unit that epsilon protects, nor pair noise.
"""

from fljax.papers.bidirectional.claims import CONCLUSIONS
from fljax.papers.bidirectional.items import ITEMS
from fljax.papers.paper import Paper

PAPER = Paper(
    title="Privacy in both directions: the server's model, the clients' data",
    source=(
        'Yang et al., "Efficiently Achieving Secure Model Training and Secure Aggregation to '
        'Ensure Bidirectional Privacy-Preservation in Federated Learning"'
    ),
    items=ITEMS,
    conclusions=CONCLUSIONS,
    memory_gb={"demo": 3.0, "full": 48.0},
    by_seed=frozenset({"accuracies"}),
    stand_ins={
        "demo": (
            '"Ours" is the method of the paper. Small dense networks on 8 x 8 digits, on '
            "pairs of them and on the breast-cancer table, in place of ResNets on CIFAR-10, "
            "CIFAR-100 and images of tissue."
        ),
        "full": (
            '"Ours" is the method of the paper. ResNets on 8 x 8 digits and on pairs of them, '
            "and a small dense network on the breast-cancer table, in place of CIFAR-10, "
            "CIFAR-100 and images of tissue."
        ),
    },
)
