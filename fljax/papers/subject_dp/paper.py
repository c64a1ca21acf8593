"""Figures and conclusions of "Subject Granular Differential Privacy in Federated Learning",
arXiv:2206.03617.

The paper prints its curves as pictures alone, and neither the steps of a round nor seeds: orders
and the differences named in its text are compared. Group sizes and noise are at its sizes; training
is, by default, on stand-ins of both shapes.
"""

from fljax.papers.paper import Paper
from fljax.papers.subject_dp.claims import CONCLUSIONS
from fljax.papers.subject_dp.items import ITEMS

PAPER = Paper(
    title="Privacy for a subject whose items lie in several silos",
    source=(
        'Marathe et al. (2022), "Subject Granular Differential Privacy in Federated Learning", '
        "arXiv:2206.03617"
    ),
    items=ITEMS,
    conclusions=CONCLUSIONS,
    memory_gb={"demo": 2.0, "full": 60.0},
    by_seed=frozenset({"accuracies", "losses", "excess"}),
    stand_ins={
        "demo": (
            "Drawn writers and roles in place of FEMNIST and Shakespeare; a softmax model and "
            "a small LSTM in place of LEAF's."
        ),
        "full": (
            "Drawn writers and roles of the sizes of FEMNIST and Shakespeare; LEAF's CNN and LSTM."
        ),
    },
)
