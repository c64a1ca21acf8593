"""Tables, figures and conclusions of "Differentially Private Federated Learning without Noise
Addition: When is it Possible?", arXiv:2405.04551.

The paper prints no accuracy and no learning rate: orders are compared, not numbers. Its 50 users
have 1,200 records of MNIST each, batches of 32, clip norm 10, 100 epochs, delta 1e-4; by default
the bundled 8 x 8 digits stand in, 28 records a user, batches of 8, clip norm 1.
"""

from fljax.papers.paper import Paper
from fljax.papers.wfna.claims import CONCLUSIONS
from fljax.papers.wfna.items import ITEMS

PAPER = Paper(
    title="Privacy without adding noise: when is it possible?",
    source=(
        'Zhang et al. (2024), "Differentially Private Federated Learning without Noise Addition: '
        'When is it Possible?", arXiv:2405.04551'
    ),
    items=ITEMS,
    conclusions=CONCLUSIONS,
    by_seed=frozenset({"accuracies"}),
    stand_ins={
        "demo": ("Users hold the bundled 8 x 8 digits in place of MNIST; a softmax model."),
        "full": (
            "Users hold the bundled 8 x 8 digits in place of MNIST; a softmax model and a CNN."
        ),
    },
)
