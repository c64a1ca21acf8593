"""Who can learn what about whom in rounds on a disguised model, in words, for a run's report."""


def exposure(
    noise: str, *, additive_norm: float, constant: bool, allow_plain: bool, transitional: bool
) -> list[tuple[str, str, str]]:
    """(who, about what, what it can learn) in both directions.

    Args:
      noise: the mode: of `fljax.upload.disguised`.
      additive_norm: length of the secret vector on the last layer.
      constant: that vector is alike for all outputs.
      allow_plain: layers may be left unscaled.
      transitional: the perturbation has transitional layers.
    """
    rows = [
        (
            "a client",
            "the model",
            "directions of the first layer's rows; transitions tell it r s of every unit",
        )
    ]
    if noise == "r0_gaussian" or additive_norm == 0:
        rows.append(
            ("a client", "the model", "its outputs: the last layer carries no secret vector")
        )
    else:
        found = (
            "the network up to n_L numbers, which about ten labelled examples tell it by least "
            "squares"
        )
        rows.append(("a client", "the model", f"{found} (attack known_network)"))
        if constant:
            shown = (
                "class probabilities, without any attack: a softmax does not see a vector "
                "alike for all classes"
            )
            rows.append(("a client", "the model", shown))
    if allow_plain and transitional:
        rows.append(
            (
                "a client",
                "the model",
                "1 / r of every layer that is left plain: its transition is just that",
            )
        )
    if noise in ("upload_gaussian", "r0_gaussian"):
        told = (
            "what epsilon allows: everything it receives carries noise, and its secrets do not "
            "depend on data"
        )
    elif noise == "paper" and additive_norm == 0:
        told = (
            "the gradient but for noise that is uniform, hence bounded, to whoever knows the scales"
        )
    elif noise == "paper":
        told = (
            "where the loss is squared, so that Psi and Phi are sent, without noise: of a batch of "
            "one its input's direction before a dense layer, and its whole true gradient where the "
            "last layer has a bias, to a server that knows or guesses the label, without error; of "
            "b, the span of the b inputs (attack perturbation_leak). Else the gradient but for "
            "noise that is uniform, hence bounded"
        )
    else:
        told = "the true gradient, which only a simulator clips"
    return [*rows, ("the server", "the data", told)]
