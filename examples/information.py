"""Nats instead of epsilon: noise in the data, what many uses of a record tell, and the error that
every attack makes.

    python examples/information.py

Half of the bundled digits are public and give the covariance. Noise is made from it for a budget of
nats per use, the other half goes through, and an attacker who sees all noisy copies reconstructs by
the best linear estimator. The same with Gaussian records of that covariance, for which the bound is
proved and that estimator is the best of all.
"""

import numpy as np

from fljax import data
from fljax.accounting import information

NATS_PER_USE = 10.0
USES = (1, 13, 100)
NUM_RECORDS = 800
FLOOR = 1e-3  # variance added to each pixel's: directions that never vary must get noise too


def reconstruct(
    records: np.ndarray, mean: np.ndarray, values: np.ndarray, noise: np.ndarray, uses: int
) -> float:
    """Mean squared error per pixel of the best linear estimator from `uses` noisy copies, in
    eigencoordinates.
    """
    rng = np.random.default_rng(uses)
    seen = records + rng.normal(size=records.shape) * np.sqrt(noise / uses)
    estimate = mean + (seen - mean) * values / (values + noise / uses)
    return float(np.mean((estimate - records) ** 2))


def main() -> None:
    """Prints one table."""
    digits = data.load("digits")
    pixels = digits.train["x"].reshape(len(digits.train["x"]), -1).astype(np.float64)
    public, private = pixels[::2], pixels[1::2][:NUM_RECORDS]
    covariance = np.cov(public, rowvar=False, ddof=0) + FLOOR * np.eye(public.shape[1])
    values, basis = np.linalg.eigh(covariance)
    mean, rotated = public.mean(0) @ basis, private @ basis
    gaussian = mean + np.random.default_rng(0).normal(size=(NUM_RECORDS, values.size)) * np.sqrt(
        values
    )

    channels = {
        "natural": information.natural(
            values, nats=NATS_PER_USE, covariance_source="public", estimated_from=len(public)
        ),
        "white": information.white(
            values,
            floor=0.0,
            nats=NATS_PER_USE,
            covariance_source="public",
            estimated_from=len(public),
        ),
        "range": information.range_certified(0.0, 1.0, dimension=values.size, nats=NATS_PER_USE),
    }
    labels = information.label_entropy(10)
    print(
        f"{NATS_PER_USE:g} nats per use of a record of {values.size} pixels; labels add "
        f"{labels:.3f} nats once."
    )
    print(
        "channel   uses  linear   joint |  MSE of any  best linear  its error on  on digits |  "
        "PSNR of the"
    )
    print(
        "                 nats    nats  |  attack >=      error >=  Gaussians               |  "
        "bound <= dB"
    )
    for name, channel in channels.items():
        noise = np.broadcast_to(
            channel.noise_var if channel.noise_values is None else channel.noise_values,
            values.shape,
        )
        for uses in USES:
            spent = information.after_uses(channel, uses, label_nats=labels)
            linear = information.after_uses(channel, uses, label_nats=labels, mode="linear")
            bound = information.distortion_rate(spent, values, data_model="gaussian")
            best = information.linear_error(
                channel, values=values, uses=uses, data_model="gaussian"
            )
            on_gaussians = reconstruct(gaussian, mean, values, noise, uses)
            on_digits = reconstruct(rotated, mean, values, noise, uses)
            print(
                f"{name:8} {uses:5d} {linear.nats:7.1f} {spent.nats:7.2f} | {bound.mse:11.5f} "
                f"{best.mse:12.5f} {on_gaussians:13.5f} {on_digits:10.5f} | {bound.psnr(1.0):12.2f}"
            )
    spent = information.after_uses(channels["natural"], USES[0], label_nats=labels)
    print(
        information.statement(
            spent, information.distortion_rate(spent, values, data_model="unknown"), data_range=1.0
        )
    )
    print(
        "Digits are not Gaussian and their covariance is an estimate, so for them both numbers are "
        "a guide."
    )
    print("No epsilon and no delta follow from nats.")


if __name__ == "__main__":
    main()
