"""A small language model that has read public text is fine-tuned in four silos, private per role.

    python examples/language_model.py

The roles of `roles` speak one language, each a little in a way of its own. A decoder learns the
language from public text, in which no role has a part. Then its weights are frozen, small matrices
beside its linear layers (LoRA) are trained by HiGradAvg on what the roles said, and what each role
said, in all silos, is protected. Only the small matrices are clipped, noised and uploaded.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from fljax import accounting, data, models
from fljax.data import dataset, targets
from fljax.data.sources import standins
from fljax.models import decoder, lora, tasks
from fljax.schemes.silos import higradavg
from fljax.types import Params

WIDTH, LAYERS, RANK = 64, 1, 2
PUBLIC_STEPS, TEXTS, LENGTH = 300, 32, 41  # of Adam, and texts in each
NUM_ROUNDS, NUM_SILOS = 20, 4
EPSILON, DELTA = 8.0, 1e-3
LEARNING_RATE, CLIP = 0.5, 0.5


def of_public_text() -> decoder.Decoder:
    """A decoder that has learned the language from text of nobody in the data."""
    shape = decoder.Shape(
        vocabulary=standins.NUM_SYMBOLS,
        width=WIDTH,
        hidden=4 * WIDTH,
        layers=LAYERS,
        heads=4,
        kv_heads=2,
        head_width=WIDTH // 4,
        rope_base=10_000.0,
        norm_of_queries=True,
    )
    module = decoder.Decoder(shape, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(module, optax.adamw(3e-3, b2=0.98), wrt=nnx.Param)
    text = standins.common_speech(
        dataset.fixed_rng(), num_texts=PUBLIC_STEPS * TEXTS, length=LENGTH, mean_items=100.0
    )

    @nnx.jit
    def step(
        module: decoder.Decoder, optimizer: nnx.Optimizer[decoder.Decoder], text: jax.Array
    ) -> None:
        def mean_loss(module: decoder.Decoder) -> jax.Array:
            logits = jax.vmap(module)(text[:, :-1])
            of_each = jax.vmap(models.losses.of_output("next_token"))(logits, text[:, 1:])
            return jnp.mean(of_each)

        optimizer.update(module, nnx.grad(mean_loss)(module))

    for number in range(PUBLIC_STEPS):
        step(module, optimizer, jnp.asarray(text[number * TEXTS : (number + 1) * TEXTS]))
    return module


def main() -> None:
    """Fine-tunes, and prints what it brought and what it cost."""
    roles = targets.settled(data.load("roles"), "tokens")
    counts = np.bincount(roles.train["y"].ravel(), minlength=standins.NUM_SYMBOLS) + 1.0
    unigram = np.exp(-np.log(counts / counts.sum())[roles.test["y"]].mean())
    print(f"perplexity {unigram:5.1f}  of symbols by their frequency alone (unigram)")

    module = lora.add(of_public_text(), RANK, rngs=nnx.Rngs(1))
    model = models.functional(module, batched=False)
    size = sum(leaf.size for leaf in jax.tree.leaves(model.params))

    def say(params: Params, who: str) -> None:
        found = tasks.measure(model.apply, params, roles.test, task="tokens")
        print(f"perplexity {found['perplexity']:5.1f}  accuracy {found['accuracy']:.1%}  {who}")

    say(model.params, "of the model that has read public text")

    ids = data.subjects.subject_ids(roles.train)
    rng = np.random.default_rng(0)
    table = data.subjects.uniform(ids, NUM_SILOS, rng)
    table, _ = data.subjects.cap_items(ids, table, max_items=1, rng=rng)
    num_roles = np.unique(ids).size

    def configured(noise_multiplier: float) -> higradavg.Config:
        return higradavg.Config(
            num_parties=NUM_SILOS,
            num_local_steps=1,
            item_sampling_prob=0.3,
            max_items_per_subject=1,
            l2_clip_norm=CLIP,
            local_learning_rate=LEARNING_RATE,
            expected_subjects=0.3 * num_roles,
            noise_multiplier=noise_multiplier,
        )

    def event(noise_multiplier: float) -> accounting.PrivacyEvent:
        return higradavg.event(configured(noise_multiplier)).repeat(NUM_ROUNDS)

    noise_multiplier = accounting.calibrate(event, epsilon=EPSILON, delta=DELTA)
    loss = models.next_token(model.apply)
    algorithm = higradavg.make(configured(noise_multiplier), loss, num_units=num_roles)
    examples = jax.tree.map(jnp.asarray, roles.train)
    cohort = data.Cohort(examples, jnp.asarray(table), jnp.arange(NUM_SILOS, dtype=jnp.int32))
    one_round, state = jax.jit(algorithm.round), algorithm.init(model.params)
    for _ in range(NUM_ROUNDS):
        state, _ = one_round(state, cohort, jax.random.key(0))
    say(state.params, f"fine-tuned, {size:,} numbers trained, private per role")
    spent = accounting.epsilon(event(noise_multiplier), delta=DELTA)
    print(
        f"epsilon {spent:.3f} at delta {DELTA:g} for all that any one of {num_roles} roles said, "
        f"noise {noise_multiplier:.2f}; the public text is not counted"
    )


if __name__ == "__main__":
    main()
