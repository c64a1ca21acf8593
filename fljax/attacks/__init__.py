"""Attacks on what schemes certify: audits, reconstruction, membership, and the measures of their
success.

An attack of one's own is a function `(scheme, config, *, num_rounds) -> fljax.attacks.rounds.Game`.
`register` makes it known by a name, an installed package may name it under the entry-point group
`fljax.attacks`, and its dotted path is a
name, too: `fljax audit --attack NAME` and `fljax attack --attack NAME` play it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fljax import _plugins, _rooms

if TYPE_CHECKING:
    from fljax.attacks.rounds import Attack

_OWN = {
    "one_unit": "fljax.attacks.rounds.one_unit",
    "span": "fljax.attacks.span.span",
    "uploads": "fljax.attacks.rounds.uploads",
}
NAMES = tuple(_OWN)
# Of `fljax attack`: searches for a record, and linear equations that it solves.
SEARCHES = (
    "inversion",
    "inversion_lbfgs",
    "inversion_gauss_newton",
    "inversion_feature_prior",
    "dlg",
)
INVERSIONS = (*SEARCHES, "recursive", "first_dense")
# So do these, of a malicious server, which sends a model that is made for it.
MALICIOUS = ("imprint", "fishing")
# Of `fljax attack`, too: who was trained on, of models that the scheme trains.
MEMBERSHIP = (
    "lira",
    "lira_offline",
    "lira_of_views",
    "rmia",
    "rmia_offline",
    "loss_threshold",
    "reference",
    "exposure",
    "attack_network",
    "white_box",
    "label_only",
    "quantile_regression",
    "gradient_alignment",
    "subject_lira",
)
OF_SUBJECTS = ("subject_lira",)  # of those, what tells persons, by all of their examples
TEXTS = "decepticons"  # of `fljax attack`: what a batch of texts says, to a malicious server
SYMBOLS = "symbols"  # of `fljax attack`: which ones a text has, from its update
PROPERTIES = "properties"  # too: what all of a client's data share, from its update
CLASSES = "model_inversion"  # too: what each class looks like, from the trained model
# These play no game.
PROGRAMS = (*INVERSIONS, *MALICIOUS, *MEMBERSHIP, TEXTS, SYMBOLS, PROPERTIES, CLASSES)
_registry: "_plugins.Registry[Attack]" = _plugins.Registry(
    "attacks", "attack", _OWN, _plugins.a_function("attacks"), also=PROGRAMS
)


def register(name: str, attack: "Attack") -> None:
    """Lets `fljax audit --attack NAME` and `fljax attack --attack NAME` play an attack of one's
    own.

    Args:
      name: letters, digits, "_" and "."; none of NAMES.
      attack: (scheme, config, *, num_rounds=1) -> `rounds.Game`, or ValueError for a scheme that it
        is not for.

    Raises:
      ValueError: a name that is taken or cannot be one, or no function.
    """
    if name in PROGRAMS:
        raise ValueError(f"Expected a name that fljax does not use itself, got name={name!r}.")
    _registry.register(name, attack)


def names() -> tuple[str, ...]:
    """NAMES, then those that others brought."""
    return _registry.names()


def get(name: str) -> "Attack":
    """The attack of that name, or at that dotted path. Raises ValueError for an unknown one."""
    return _registry.get(name)


def check_name(**given: str) -> None:
    """Raises ValueError, with the argument's name and the nearest name there is, unless `get` knows
    the attack.
    """
    for argument, name in given.items():
        if name in PROGRAMS:
            raise ValueError(
                f"Expected {argument} to be a game, got {argument}={name!r}, a program of `fljax "
                "attack`."
            )
    _registry.check_name(**given)


def listed() -> Iterator[_plugins.Listed]:
    """All names with where they come from; one that cannot be loaded stops no other."""
    for name in PROGRAMS:
        yield _plugins.Listed(name, "fljax", name)
    yield from _registry.listed()


if TYPE_CHECKING:
    from fljax.attacks import analytic as analytic
    from fljax.attacks import audit as audit
    from fljax.attacks import decepticons as decepticons
    from fljax.attacks import fishing as fishing
    from fljax.attacks import floating_point as floating_point
    from fljax.attacks import gradient_inversion as gradient_inversion
    from fljax.attacks import imprint as imprint
    from fljax.attacks import membership as membership
    from fljax.attacks import metrics as metrics
    from fljax.attacks import model_inversion as model_inversion
    from fljax.attacks import noisy_records as noisy_records
    from fljax.attacks import noisy_uploads as noisy_uploads
    from fljax.attacks import one_run as one_run
    from fljax.attacks import perceptual as perceptual
    from fljax.attacks import properties as properties
    from fljax.attacks import reconstruction as reconstruction
    from fljax.attacks import recursive as recursive
    from fljax.attacks import released_bits as released_bits
    from fljax.attacks import replay as replay
    from fljax.attacks import rounds as rounds
    from fljax.attacks import shadow as shadow
    from fljax.attacks import span as span
    from fljax.attacks import table as table
    from fljax.attacks import trained as trained
    from fljax.attacks import victims as victims
    from fljax.attacks import white_box as white_box
    from fljax.attacks import worlds as worlds
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
