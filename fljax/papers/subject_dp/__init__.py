"""Subject-level privacy: claims, comparison of methods, training, figures, bounds on utility."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.papers.subject_dp import claimed as claimed
    from fljax.papers.subject_dp import claims as claims
    from fljax.papers.subject_dp import compare as compare
    from fljax.papers.subject_dp import compare_report as compare_report
    from fljax.papers.subject_dp import errata as errata
    from fljax.papers.subject_dp import items as items
    from fljax.papers.subject_dp import paper as paper
    from fljax.papers.subject_dp import training as training
    from fljax.papers.subject_dp import utility as utility
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
