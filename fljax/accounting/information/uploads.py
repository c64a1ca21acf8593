"""Nats of noisy uploads, which add up, and the refusal of noise that was used before."""

from typing import NamedTuple

import jax
import numpy as np

from fljax import _validate
from fljax.accounting.information.results import Leakage
from fljax.errors import NoGuaranteeError


class Uploads(NamedTuple):
    """What one client sent. leakages: of each upload. used: (bits of the key, round) of each."""

    leakages: tuple[Leakage, ...] = ()
    used: frozenset[tuple[bytes, int]] = frozenset()


def estimated_upload(*, nats: float, record_dimension: int) -> Leakage:
    """The claim of an upload whose noise came from an estimated covariance of gradients: nats, not
    certified.

    Args:
      nats: > 0. record_dimension: coordinates of a record, not of the upload.
    """
    _validate.positive(nats=nats)
    _validate.positive_int(record_dimension=record_dimension)
    return Leakage(
        nats=float(nats),
        dimension=record_dimension,
        mode="one_use",
        certified=False,
        reason=(
            "the covariance of gradients was estimated from the batch, and differs given what "
            "was sent before"
        ),
        covariance_source="private",
    )


def count_upload(
    uploads: Uploads, leakage: Leakage, *, key: jax.Array, round_index: int
) -> Uploads:
    """The uploads after one more.

    Args:
      uploads: `Uploads()` before the first.
      leakage: of this upload: `clipped_upload(...).one_use()`, or `estimated_upload(...)`.
      key, round_index: what `fljax.upload.controlled_channel` was given.

    Raises:
      NoGuaranteeError: this key has been used in this round: the two uploads differ by a function
        of the data without noise, and what they tell is unbounded.
      ValueError: an argument is not of the stated kind.
    """
    _validate.typed_key(key=key)
    _validate.non_negative_int(round_index=round_index)
    if leakage.mode != "one_use":
        raise ValueError(f"Expected the leakage of one upload, got mode={leakage.mode!r}.")
    draw = (np.asarray(jax.random.key_data(key)).tobytes(), int(round_index))
    if draw in uploads.used:
        raise NoGuaranteeError(
            f"Expected fresh noise, got a key that was used in round_index={round_index} before: "
            "two uploads with one noise differ by the data alone."
        )
    return Uploads((*uploads.leakages, leakage), uploads.used | {draw})


def uploads_total(uploads: Uploads) -> Leakage:
    """Linear nats of all uploads about the client's records, and so about each one; certified if
    each upload is.

    Raises:
      ValueError: nothing was sent, or uploads about records of different dimensions are mixed.
    """
    parts = uploads.leakages
    if not parts or any(part.dimension != parts[0].dimension for part in parts):
        raise ValueError("Expected one or more uploads about records of one dimension.")
    weakest = next((part for part in parts if not part.certified), parts[0])
    return Leakage(
        nats=float(sum(part.nats for part in parts)),
        dimension=weakest.dimension,
        target=weakest.target,
        mode="linear",
        certified=weakest.certified,
        reason=weakest.reason,
        covariance_source=weakest.covariance_source,
        formula=weakest.formula,
    )
