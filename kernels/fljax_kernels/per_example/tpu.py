"""What a form of a per-example product costs on a TPU, modelled.

An operation takes as long as its bytes or its passes over the matrix unit, whichever is longer: the
unit computes while memory is read. What a product makes and another operation reads goes through
memory twice; what it adds up itself, as squares of its results, never does.
"""

# Of a TPU v5e: bytes a second, and multiply-adds of bfloat16.
BYTES, MULTIPLY_ADDS = 819e9, 98.5e12
# Passes of a product that asks for the highest precision, by whether one operand is bfloat16.
PASSES = {True: 3, False: 6}

FAST = 2**27  # bytes of its fast memory
# Examples that go through a model together at least: below that a matrix unit would wait for
# weights, and of convolutional networks, whose examples may lie along its lanes, lanes would be
# empty.
FEWEST, LANES = 8, 128
SQUARED = "rows, squared as they are made, and one more product"


def seconds(moved: float, multiply_adds: float) -> float:
    """Of one operation."""
    return max(moved / BYTES, multiply_adds / MULTIPLY_ADDS)


def forms(
    x: float, y: float, work: float, row: float, pairs: float, work_of_pairs: float, exact: bool
) -> dict[str, float]:
    """Seconds for one example's norm and sum, by form.

    "held": rows are written and read again. "rows": they are squared as they are made, and the sum
    is made anew. "pairs": inner products of positions in their place.

    Args:
      x, y: numbers of the operands.
      work: multiply-adds of a row.
      row: its numbers.
      pairs: inner products of positions.
      work_of_pairs: their multiply-adds.
      exact: operands are bfloat16, so that one pass has their products.
    """
    met, passes = (2 if exact else 4) * (x + y), 1 if exact else PASSES[False]
    again = seconds(met, PASSES[exact] * work)
    return {
        "held": seconds(met + 4 * row, work) + seconds(4 * row, 0),
        "rows": seconds(met, passes * work) + again,
        "pairs": seconds(met + 4 * pairs, passes * work_of_pairs) + seconds(4 * pairs, 0) + again,
    }


def conv_forms(
    x: float, y: float, work: float, row: float, pairs: float, work_of_pairs: float, exact: bool
) -> dict[str, float]:
    """As `forms`, of a convolution. Where its rows are not held, its rounded input is: written."""
    found = forms(x, y, work, row, pairs, work_of_pairs, exact)
    kept = 2 * x / BYTES if exact else 0.0
    return {form: one + (0.0 if form == "held" else kept) for form, one in found.items()}


def examples_at_once(size: int, live: float, num_params: int, convolutional: bool) -> int:
    """How many examples of a batch go through a model together, by bytes.

    What norms and sums wait for, `live` bytes of an example, lies in fast memory if it fits there
    beside what the pass needs. Else it is written and read. By halves of the batch the weights are
    read in each, twice and for their sums, and the sums read and written.
    """
    room, halved, fewest = FAST * 3 // 4, size, LANES if convolutional else FEWEST
    while halved >= 2 * fewest and halved * live > room:
        halved = -(-halved // 2)
    parts = -(-size // halved)
    fits = halved * live <= room
    return halved if fits and 2 * (size * live - room) > parts * 5 * 4 * num_params else size


def said(modelled: dict[str, float], size: int) -> str:
    """For `explain`, of so many examples."""
    times = ", ".join(f"{form} {size * one * 1e6:.3g}" for form, one in modelled.items())
    return f" (modelled us on a v5e: {times})"
