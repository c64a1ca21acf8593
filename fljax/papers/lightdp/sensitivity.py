"""How far one client's upload moves when one of its examples is replaced, for training without
clipped updates.

Clipping the update at c is the mode that needs no assumption: 2 c for a replaced unit, c for one
that adds zero.
"""

from fljax import _validate
from fljax.errors import PrivacyPreconditionError


def full_batch_step(*, learning_rate: float, l2_clip_norm: float, num_examples: int) -> float:
    """2 learning_rate l2_clip_norm / num_examples: one step on the mean of clipped gradients, one
    example replaced.
    """
    _validate.positive(learning_rate=learning_rate, l2_clip_norm=l2_clip_norm)
    _validate.positive_int(num_examples=num_examples)
    return 2 * learning_rate * l2_clip_norm / num_examples


def convex_sgd(
    *,
    learning_rate: float,
    lipschitz: float,
    smoothness: float,
    num_epochs: int,
    batch_size: int,
    convex: bool,
) -> float:
    """Sensitivity of epochs of minibatch SGD on convex, smooth, Lipschitz losses in an order that
    ignores the data.

    Args:
      learning_rate: eta <= 2 / smoothness.
      lipschitz: beta, of every example's loss. smoothness: rho.
      num_epochs: E. batch_size: the smallest batch.
      convex: the caller's word that every example's loss is convex; nothing here can check it.

    Returns:
      2 eta beta E / batch_size.

    Raises:
      PrivacyPreconditionError: not convex, or `learning_rate` > 2 / `smoothness`: steps may then
        drift apart.

    Source: Hardt, Recht, Singer (2015), arXiv:1509.01240, Lemma 3.7 and Theorem 3.8.
    """
    _validate.positive(learning_rate=learning_rate, lipschitz=lipschitz, smoothness=smoothness)
    _validate.positive_int(num_epochs=num_epochs, batch_size=batch_size)
    if not convex:
        raise PrivacyPreconditionError(
            "Expected convex=True for the sensitivity of convex SGD, got convex=False."
        )
    if not learning_rate * smoothness <= 2:
        raise PrivacyPreconditionError(
            f"Expected learning_rate <= 2 / smoothness={2 / smoothness!r}, got "
            f"learning_rate={learning_rate!r}."
        )
    return 2 * learning_rate * lipschitz * num_epochs / batch_size
