"""What five papers print and what holds instead, with counter-examples that run.

A name such as E4 is a paper's own: `find` gives all errata of that name, `find(name, paper=)` one.
Those whose claims fljax still computes for comparison (`formula="paper"`) are named in reports.

Sources, by the name of a paper here:
  subject-dp: "Subject Granular Differential Privacy in Federated Learning", arXiv:2206.03617.
  lightdp: "Lightweight Federated Learning with Differential Privacy and Straggler Resilience".
  wfna: "Differentially Private Federated Learning without Noise Addition: When is it Possible?",
    arXiv:2405.04551.
  channel: "Defending Against Data Reconstruction Attacks in Federated Learning: An Information
    Theory Approach", arXiv:2403.01268.
  bidirectional: "Efficiently Achieving Secure Model Training and Secure Aggregation to Ensure
    Bidirectional Privacy-Preservation in Federated Learning".
"""

import importlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fljax import _validate

# What a name stands for on the command line, and the room of its errata.
PAPERS = {
    "subject-dp": "subject_dp",
    "lightdp": "lightdp",
    "wfna": "wfna",
    "channel": "channel",
    "bidirectional": "bidirectional",
}


class Shown(NamedTuple):
    """One figure of a counter-example: what it is, as printed, and as it is."""

    what: str
    printed: float
    holds: float


class Erratum(NamedTuple):
    """One statement that does not hold.

    Attributes:
      name: "E1", "E2", .., in one paper.
      where: theorem, equation or section.
      printed: what is stated.
      holds: what holds instead, and why.
      shows: computes a counter-example; None where a slip of the pen or a gap needs none.
    """

    name: str
    where: str
    printed: str
    holds: str
    shows: Callable[[], list[Shown]] | None = None


def of(paper: str) -> Sequence[Erratum]:
    """The errata of one paper, in the order of their names.

    Raises:
      ValueError: no such paper.
    """
    _validate.one_of(tuple(PAPERS), paper=paper)
    found: Sequence[Erratum] = importlib.import_module(
        f"fljax.papers.{PAPERS[paper]}.errata"
    ).ERRATA
    return found


def find(name: str | None = None, *, paper: str | None = None) -> dict[str, list[Erratum]]:
    """Errata by paper: all, those of a paper, those of a name, or the one of both.

    Raises:
      ValueError: no such paper, or none has such an erratum.
    """
    papers = tuple(PAPERS) if paper is None else (paper,)
    found = {
        one: [erratum for erratum in of(one) if name in (None, erratum.name)] for one in papers
    }
    found = {one: errata for one, errata in found.items() if errata}
    if not found:
        where = "any paper" if paper is None else f"paper={paper!r}"
        raise ValueError(f"Expected the name of an erratum of {where}, such as 'E1', got {name!r}.")
    return found
