"""What a number of nats says and what it does not, in words for a report."""

from fljax.accounting.information.results import ErrorBound, Leakage
from fljax.accounting.rounding import at_least, at_most

NOT_PROMISED = (
    "anything about one record: nats and errors are means over records and noise; one image may "
    "be recovered better",
    "membership or attributes: no epsilon follows from nats, and a mean bound does not stop a "
    "membership test",
    "labels, where they were declared public: they are sent as they are",
    "what other clients' correlated data (the same person, the same site) tell",
    "quantities computed from clean records: normalisation statistics, losses, early stopping, "
    "sampling by content",
    "attacks on floating-point noise: the proof is about real-valued noise",
)


def statement(
    leakage: Leakage, bound: ErrorBound | None = None, *, data_range: float | None = None
) -> str:
    """The claim in words: nats, how they were added up, the error and PSNR they leave, what is not
    promised.

    Args:
      leakage: of one target: a single number of nats.
      bound: computed from it, or None.
      data_range: greatest minus least value of a coordinate; adds the PSNR.

    Raises:
      ValueError: nats `[...]` of many records: state the largest.
    """
    if not isinstance(leakage.nats, float):
        raise ValueError("Expected the nats of one target, got an array: state the largest.")
    per = leakage.nats / leakage.dimension
    lines = [
        f"At most {at_most(leakage.nats)} nats about each {leakage.target.replace('_', ' ')} "
        f"({at_most(per, 4)} per coordinate), {leakage.mode.replace('_', ' ')} count. "
        f"{_standing(leakage)}"
    ]
    if bound is not None:
        psnr = ""
        if data_range is not None:
            psnr = f", a PSNR of that error of {at_most(bound.psnr(data_range), 4)} dB at most"
        lines.append(
            "Expected squared error per coordinate of any reconstruction >= "
            f"{at_least(bound.mse)}{psnr}. {_standing(bound)}"
        )
    lines.append("Not promised: " + "; ".join(NOT_PROMISED) + ".")
    return "\n".join(lines)


def _standing(claim: Leakage | ErrorBound) -> str:
    known = f"covariance {claim.covariance_source}"
    return (
        f"A proved bound ({claim.reason}; {known})."
        if claim.certified
        else f"NOT proved ({claim.reason}; {known})."
    )
