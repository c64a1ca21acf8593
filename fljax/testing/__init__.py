"""What the author of a scheme tests it with: `fljax.testing.check_scheme`."""

from typing import TYPE_CHECKING

from fljax import _rooms

__all__ = ["CHECKS", "Check", "SchemeReport", "check_scheme"]

if TYPE_CHECKING:
    from fljax.testing import contracts as contracts
    from fljax.testing.contracts import CHECKS as CHECKS
    from fljax.testing.contracts import Check as Check
    from fljax.testing.contracts import SchemeReport as SchemeReport
    from fljax.testing.contracts import check_scheme as check_scheme
else:
    __getattr__, __dir__ = _rooms.doors(
        __name__, lifted=dict.fromkeys(__all__, "fljax.testing.contracts")
    )
