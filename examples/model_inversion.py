"""What a model of colour images says of its classes: 40 places of photographs, 32 x 32 pixels.

A class is a place, photographed fifteen times with the camera a little off. Logistic regression
and an MLP are trained by a scheme's rounds, plainly and with noise, and whoever holds the model
steps along the gradient of each class's logit, with public patches that share no pixel with the
places. It is held against the best guess without the model: the mean of public patches.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax import accounting, models, schemes
from fljax.attacks import gradient_inversion, metrics, model_inversion, rounds, trained
from fljax.papers.channel.rounds import photographs

SCHEME, NOISE, DELTA = "dp_fedsgd", 10.0, 1e-3
PLACES, EACH, SIDE, MORE = 40, 15, 32, 8  # pixels, and how many more the camera may be off by
CONTRAST = 0.12  # standard deviation in a channel: a sky looks like any other
ROUNDS = {"softmax": (20, 0.01), "mlp": (300, 0.05)}  # and the rate
CLIP = 40.0


def views(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Of each patch one that is off by up to MORE pixels down and to the right."""
    offs = rng.integers(0, MORE + 1, (len(x), 2))
    return np.stack(
        [
            one[top : top + SIDE, left : left + SIDE]
            for one, (top, left) in zip(x, offs, strict=True)
        ]
    )


def found(noise_multiplier: float, name: str = "softmax") -> dict[str, float]:
    """Of a model trained with this noise: PSNR in dB of what was found and of the mean of public
    patches, medians over places, and shares of places told and of training images told right.
    """
    rng = np.random.default_rng(0)
    public, others = (part["x"] for part in photographs(SIDE + MORE))
    places = others[others.std((1, 2)).mean(1) > CONTRAST]
    places = places[rng.choice(len(places), PLACES, replace=False)]
    y = np.tile(np.arange(PLACES, dtype=np.int32), EACH)
    x = views(places[y], rng)
    truth = np.stack([x[y == place].mean(0) for place in range(PLACES)])
    prior = gradient_inversion.gaussian_prior(views(public, rng))
    sizes: dict[str, Any] = {"hidden": (64,)} if name == "mlp" else {}
    model = models.create(
        name, example_shape=x.shape[1:], num_classes=PLACES, key=jax.random.key(0), **sizes
    )
    # Logistic regression learns no matter where it starts; from zero it has nothing else in it.
    start = jax.tree.map(jnp.zeros_like, model.params) if name == "softmax" else model.params
    trained_models = trained.models(
        SCHEME,
        config(noise_multiplier, name),
        models.softmax_cross_entropy(model.apply),
        start,
        {"x": jnp.asarray(x), "y": jnp.asarray(y)},
        jnp.ones((1, len(y)), bool),
        jax.random.key(1)[None],
        num_rounds=ROUNDS[name][0],
    )
    params = jax.tree.map(lambda leaf: leaf[0], trained_models)
    find = jax.jit(lambda params: model_inversion.by_gradient(model.apply, params, prior, PLACES))
    images = np.clip(find(params), 0, 1)

    def near(of: np.ndarray) -> float:
        return float(np.median([float(metrics.psnr(a, b)) for a, b in zip(of, truth, strict=True)]))

    errors = np.square(images[:, None] - truth[None]).mean((2, 3, 4))
    right = jax.jit(jax.vmap(model.apply, (None, 0)))(params, x).argmax(1) == y
    return {
        "psnr": near(images),
        "guessed": near(np.broadcast_to(prior.mean, truth.shape)),
        "told": float(np.mean(errors.argmin(1) == np.arange(PLACES))),
        "accuracy": float(np.mean(right)),
    }


def config(noise_multiplier: float, name: str) -> Any:
    """Of the scheme: all images in each round."""
    return rounds.config(
        SCHEME,
        noise_multiplier=noise_multiplier,
        l2_clip_norm=CLIP,
        sampling_prob=1.0,
        server_learning_rate=ROUNDS[name][1],
        server_momentum=0.0,
    )


def main() -> None:
    for name, (num_rounds, _) in ROUNDS.items():
        event = schemes.get(SCHEME).run_event(config(NOISE, name), num_rounds)
        spent = f"epsilon {accounting.epsilon(event, delta=DELTA):.1f} at delta {DELTA}"
        for defence, noise in (("undefended", 0.0), (spent, NOISE)):
            of = found(noise, name)
            print(
                f"{name}, {defence}: {of['psnr']:.1f} dB beside each place, {of['told']:.0%} "
                f"nearest to their own; public patches {of['guessed']:.1f} dB; the model's "
                f"accuracy {of['accuracy']:.0%}"
            )


if __name__ == "__main__":
    main()
