"""What is told of a loss before it is differentiated: one example, no batch, no batch
statistics.
"""

import jax
import jax.numpy as jnp
import pytest
from flax import linen, nnx

from fljax.local import sgd
from fljax.schemes.central import dp_fedavg, dp_fedsgd
from fljax.schemes.silos import user_ldp
from fljax_kernels import per_example_grads
from fljax_kernels.per_example import one_example


@pytest.fixture(autouse=True)
def lax_promotion():
    """Layers of flax mix dtypes and ranks."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


class Net(linen.Module):
    norm: str
    train: bool = True

    @linen.compact
    def __call__(self, x):
        x = linen.Conv(4, (3, 3))(x) if x.ndim == 4 else linen.Dense(4)(x)
        if self.norm == "batch":
            x = linen.BatchNorm(use_running_average=not self.train, name="normed")(x)
        elif self.norm == "group":
            x = linen.GroupNorm(num_groups=4, group_size=None)(
                x
            )  # one channel a group: means over an axis of length 1
        else:
            x = getattr(linen, self.norm)()(x)
        return linen.Dense(2)(linen.relu(x).reshape(len(x), -1))


def linen_loss(net, shape):
    variables = net.init(jax.random.key(0), jnp.ones((1, *shape)))
    stats = {name: tree for name, tree in variables.items() if name != "params"}

    def loss(params, example):
        outputs, _ = net.apply({"params": params, **stats}, example[None], mutable=["batch_stats"])
        return jnp.sum(outputs**2)

    return loss, variables["params"], jnp.ones((3, *shape))


@pytest.mark.parametrize("shape", [(5,), (6, 6, 2)], ids=["dense", "images"])
@pytest.mark.parametrize("jitted", [False, True])
def test_batch_normalisation_in_training_mode_is_refused_by_name(shape, jitted):
    loss, params, batch = linen_loss(Net("batch"), shape)
    with pytest.raises(
        ValueError, match=r"batch axis of length 1 \(in .*normed\), as batch normalisation does"
    ):
        per_example_grads(jax.jit(loss) if jitted else loss)(params, batch)


@pytest.mark.parametrize("shape", [(5,), (6, 6, 2)], ids=["dense", "images"])
@pytest.mark.parametrize("norm", ["group", "LayerNorm", "RMSNorm", "InstanceNorm"])
def test_normalisation_within_an_example_is_not(shape, norm):
    one_example.check(*linen_loss(Net(norm), shape))


def test_running_averages_are_not():
    one_example.check(*linen_loss(Net("batch", train=False), (5,)))


@pytest.mark.parametrize("train", [True, False])
def test_batch_normalisation_of_nnx_is_refused_in_training_mode(train):
    layers = [
        nnx.Linear(3, 4, rngs=nnx.Rngs(0)),
        nnx.BatchNorm(4, use_running_average=not train, rngs=nnx.Rngs(0)),
    ]
    graph, params, rest = nnx.split(nnx.Sequential(*layers), nnx.Param, ...)

    def loss(params, example):
        return jnp.sum(nnx.merge(graph, params, rest, copy=True)(example[None]) ** 2)

    if train:
        with pytest.raises(ValueError, match="without batch statistics"):
            one_example.check(loss, params, jnp.ones((2, 3)))
    else:
        one_example.check(loss, params, jnp.ones((2, 3)))


def centred(x):
    return x - jnp.mean(x, axis=0)


def standardised_kernel(params, example):
    w = params - params.mean((0, 1, 2))
    return jnp.sum(
        jax.lax.conv_general_dilated(
            example[None], w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
    )


def test_it_is_the_meeting_of_a_value_and_its_mean_over_rows_that_counts():
    refused = [
        lambda w, x: jnp.sum(centred(x[None] @ w)),
        lambda w, x: jnp.sum(jax.nn.relu(centred(jax.nn.relu(x[None] @ w)))),
        lambda w, x: jnp.sum(jax.checkpoint(centred)(x[None] @ w)),
        lambda w, x: jax.lax.scan(
            lambda c, _: (c + jnp.sum(centred(x[None] @ w)), None), 0.0, None, length=2
        )[0],
        lambda w, x: jnp.sum(jax.nn.standardize(x[None] @ w, axis=0)),
    ]
    for loss in refused:
        with pytest.raises(ValueError, match="without batch statistics"):
            one_example.check(loss, jnp.ones((3, 2)), jnp.ones((4, 3)))
    fine = [
        lambda w, x: jnp.mean(
            jnp.sum((x[None] @ w) ** 2, axis=-1)
        ),  # a loss with a batch axis of its own
        lambda w, x: jnp.sum(centred(w) @ w.T) * jnp.sum(x),  # of parameters, not of examples
        lambda w, x: jnp.sum(
            x[None] @ w - jnp.mean(x[None] @ w)
        ),  # over features too: one example's own
    ]
    for loss in fine:
        one_example.check(loss, jnp.ones((3, 2)), jnp.ones((4, 3)))
    one_example.check(
        standardised_kernel, jnp.ones((1, 1, 3, 4)), jnp.ones((2, 5, 5, 3))
    )  # 1 x 1 kernels


def batch_loss(params, batch):
    x, y = batch
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x @ params), y[:, None], axis=1))


def rows_of_losses(params, example):
    return jnp.square(example[0] @ params)


def unnormalised(params, example):
    return jnp.sum(centred(example[0][None] @ params))


LOSSES = {
    "batch": (
        batch_loss,
        r"^Expected loss\(params, example\) for one example, got one of a batch: write it for ONE",
    ),
    "rows": (rows_of_losses, "to be a scalar for ONE example, got shape"),
    "statistics": (unnormalised, "without batch statistics"),
}


@pytest.mark.parametrize(("loss", "words"), LOSSES.values(), ids=LOSSES)
def test_local_training_and_gradients_refuse_what_is_no_loss_of_one_example(loss, words, key):
    params, examples = jnp.ones((3, 2)), (jnp.ones((6, 3)), jnp.zeros(6, jnp.int32))
    indices, keys = jnp.arange(6).reshape(2, 3), jax.random.split(key, 2)
    for fun in (
        sgd.local_sgd(loss, learning_rate=0.1, batch_size=2, num_epochs=1),
        sgd.local_gradient(loss, batch_size=2),
        lambda params, examples, *_: per_example_grads(loss)(params, examples),
    ):
        with pytest.raises(ValueError, match=words):
            jax.jit(fun)(params, examples, indices, jax.random.clone(keys))


def test_a_loss_of_three_arguments_says_what_to_write_when_it_is_given():
    def loss(params, x, y):
        return jnp.sum((x @ params - y) ** 2)

    words = (
        r"^Expected loss\(params, example\), a function of two arguments, got loss\(params, x, "
        r"y\): put inputs"
    )
    makers = [
        per_example_grads,
        lambda loss: dp_fedavg.make(dp_fedavg.Config(noise_multiplier=1.0), loss, num_units=5),
        lambda loss: dp_fedsgd.make(dp_fedsgd.Config(noise_multiplier=1.0), loss, num_units=5),
        lambda loss: user_ldp.make(user_ldp.Config(noise_multiplier=1.0), loss, num_units=5),
    ]
    for make in makers:
        with pytest.raises(ValueError, match=words):
            make(loss)
        with pytest.raises(ValueError, match="Expected loss to be a function"):
            make("loss")


def test_a_batch_in_two_arguments_says_what_to_write():
    grads = per_example_grads(lambda params, example: jnp.sum(example[0] @ params))
    with pytest.raises(
        TypeError,
        match=r"Expected \(params, batch\), got 3 arguments: put inputs and labels into one",
    ):
        grads(jnp.ones(3), jnp.ones((4, 3)), jnp.ones(4))


@pytest.mark.parametrize("size", ["2", 2.0, True, 0, -1])
def test_a_microbatch_size_is_an_integer(size):
    with pytest.raises(
        ValueError, match="Expected microbatch_size > 0, an integer, got microbatch_size="
    ):
        per_example_grads(batch_loss, method="microbatch", microbatch_size=size)
