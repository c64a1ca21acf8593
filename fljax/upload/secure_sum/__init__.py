"""Secure sums: the server learns the sum of all uploads and nothing else, or nothing at all.

`ideal` is the functionality that simulations take for granted. The protocols beside it run: each
releases, in the ring, the very words that the ideal one does. `protocol` is what they have in
common, and `simulated` makes one for all its parties in this process.
"""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, get_args

from fljax import _rooms, _validate

# Name -> module; each has a `simulated(terms) -> SecureSumProtocol`.
_WHERE = {
    "ckks": "ckks",
    "inner_product": "inner_product",
    "joint_paillier": "joint_paillier",
    "light_secagg": "light_secagg",
    "paillier": "paillier",
    "secagg": "secagg",
    "secagg_plus": "secagg_plus",
    "servers": "servers",
    "shamir_servers": "shamir_servers",
}
NAMES = tuple(_WHERE)
# Those that take no power of long numbers, or multiple of a point, for each word or some.
Fast = Literal["ckks", "light_secagg", "secagg", "secagg_plus", "servers", "shamir_servers"]
FAST: tuple[Fast, ...] = get_args(Fast)
# Those that sum modulo 2**bits; the others need sums that do not wrap around.
IN_THE_RING = ("secagg", "secagg_plus", "servers")


def simulated(name: str, terms: Any, **options: Any) -> Any:
    """A `protocol.SecureSumProtocol` whose parties are all in this process.

    Args:
      name: one of NAMES. terms: `protocol.Terms`. options: of the module's own `simulated`.

    Raises:
      ValueError: nobody knows the name, or the terms are outside what the protocol stands.
      ImportError: a package is missing; the error names the extra.
    """
    _validate.one_of(NAMES, name=name)
    module = importlib.import_module(f"{__name__}.{_WHERE[name]}")
    make: Callable[..., Any] = module.simulated
    return make(terms, **options)


if TYPE_CHECKING:
    from fljax.upload.secure_sum import big_numbers as big_numbers
    from fljax.upload.secure_sum import channels as channels
    from fljax.upload.secure_sum import ckks as ckks
    from fljax.upload.secure_sum import curve as curve
    from fljax.upload.secure_sum import field as field
    from fljax.upload.secure_sum import ideal as ideal
    from fljax.upload.secure_sum import inner_product as inner_product
    from fljax.upload.secure_sum import joint_paillier as joint_paillier
    from fljax.upload.secure_sum import light_secagg as light_secagg
    from fljax.upload.secure_sum import paillier as paillier
    from fljax.upload.secure_sum import protocol as protocol
    from fljax.upload.secure_sum import secagg as secagg
    from fljax.upload.secure_sum import secagg_plus as secagg_plus
    from fljax.upload.secure_sum import servers as servers
    from fljax.upload.secure_sum import shamir_servers as shamir_servers
    from fljax.upload.secure_sum import signing as signing
    from fljax.upload.secure_sum import stream as stream
    from fljax.upload.secure_sum.ideal import SecureSum as SecureSum
    from fljax.upload.secure_sum.ideal import secure_sum as secure_sum
    from fljax.upload.secure_sum.ideal import share_stddev as share_stddev
else:
    _IDEAL = f"{__name__}.ideal"
    __getattr__, __dir__ = _rooms.doors(
        __name__, lifted=dict.fromkeys(("SecureSum", "secure_sum", "share_stddev"), _IDEAL)
    )
