"""Attacks on what schemes certify: audits, reconstruction, membership, and the measures of their success."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.attacks import analytic as analytic
    from fljax.attacks import audit as audit
    from fljax.attacks import canaries as canaries
    from fljax.attacks import gradient_inversion as gradient_inversion
    from fljax.attacks import membership as membership
    from fljax.attacks import metrics as metrics
    from fljax.attacks import model_inversion as model_inversion
    from fljax.attacks import noisy_records as noisy_records
    from fljax.attacks import one_run as one_run
    from fljax.attacks import reconstruction as reconstruction
    from fljax.attacks import rounds as rounds
    from fljax.attacks import shadow as shadow
    from fljax.attacks import table as table
    from fljax.attacks import trained as trained
    from fljax.attacks import victims as victims
    from fljax.attacks import white_box as white_box
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
