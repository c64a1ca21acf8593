"""What can be told of a loss before it is differentiated: whether it is one of one example.

A loss that wants a batch is refused, and so is one that normalises over a batch. Within one example
that batch has one
row: the mean is the row itself, its gradient through the normalisation is zero, and nothing else
  would say so.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import jax
from jax.extend import core

from fljax_kernels.per_example import jaxprs

_WRITE = "write it for ONE example, without a batch axis, which is added around it"
_CALLS = (
    *jaxprs.INLINED,
    *jaxprs.REMAT,
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
)
_SAME_ROWS = ("convert_element_type", "copy", "square", "integer_pow", "mul", "sub", "abs")
_ARITHMETIC = ("add", "sub", "mul", "div")
_SHAPES = (
    "broadcast_in_dim",
    "reshape",
    "squeeze",
    "expand_dims",
    "convert_element_type",
    "copy",
    "neg",
)
_OF_A_MEAN = (
    *_ARITHMETIC,
    *_SHAPES,
    "rsqrt",
    "sqrt",
    "square",
    "integer_pow",
    "max",
    "stop_gradient",
)


def check_signature(loss: Any) -> None:
    """Raises ValueError unless `loss(params, example)` can be called."""
    if not callable(loss):
        raise ValueError(
            f"Expected loss to be a function, loss(params, example) -> scalar, got loss={loss!r}."
        )
    try:
        signature = inspect.signature(loss)
    except (TypeError, ValueError):  # some callables have none
        return
    try:
        signature.bind(None, None)
    except TypeError:
        name = getattr(loss, "__name__", type(loss).__name__)
        raise ValueError(
            f"Expected loss(params, example), a function of two arguments, got {name}{signature}: "
            "put inputs and labels into one example, a tuple or a dict."
        ) from None


def check(loss: Callable[..., Any], params: Any, batch: Any, has_aux: bool = False) -> None:
    """Raises ValueError unless `loss` is a scalar of ONE of the examples of `batch` `[B, ...]`, B
    >= 1. Traces it once, but computes nothing.
    """
    example, row = _shapes(batch)
    leaves, tree = jax.tree.flatten((params, example))

    def flat(*leaves: Any) -> Any:
        return loss(*jax.tree.unflatten(tree, leaves))

    try:
        closed, shapes = jax.make_jaxpr(flat, return_shape=True)(*leaves)
    except Exception as reason:
        if _traces(loss, params, row):
            raise ValueError(
                f"Expected loss(params, example) for one example, got one of a batch: {_WRITE}."
            ) from reason
        return  # the loss says the same again where it is differentiated
    value = shapes[0] if has_aux and isinstance(shapes, tuple) and len(shapes) == 2 else shapes
    if getattr(value, "shape", ()) != ():
        raise ValueError(
            "Expected loss(params, example) to be a scalar for ONE example, got shape "
            f"{value.shape}: the batch axis is added around it."
        )
    where = _normalised_over_rows(closed.jaxpr, [False] * len(jax.tree.leaves(params)))
    if where is not None:
        raise ValueError(
            "Expected loss(params, example) without batch statistics, got one that normalises "
            f"over a batch axis of length 1{where}, as batch normalisation does in training mode: "
            "it would mix examples, and sees one here, whose gradient vanishes. Use GroupNorm or "
            "LayerNorm, or running averages (evaluation mode)."
        )


def _shapes(batch: Any) -> tuple[Any, Any]:
    """Of one example, and of a batch of one."""
    if (
        jax.sharding.get_abstract_mesh().manual_axes
    ):  # inside a shard_map a type says more than shape and dtype
        return jax.eval_shape(
            lambda b: (jax.tree.map(lambda x: x[0], b), jax.tree.map(lambda x: x[:1], b)), batch
        )

    def of(shape: Callable[[Any], Any]) -> Any:
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(shape(jax.typeof(x).shape), jax.typeof(x).dtype), batch
        )

    return of(lambda shape: shape[1:]), of(lambda shape: (1, *shape[1:]))


def _traces(loss: Callable[..., Any], *args: Any) -> bool:
    try:
        jax.eval_shape(loss, *args)
    except Exception:
        return False
    return True


class _Known:
    """Of the values of one jaxpr. varies: whether it depends on the example. rows: of which values
    it is an elementwise function. means: of which values it holds the sum over a first axis of
    length 1.
    """

    def __init__(self) -> None:
        self.varies: dict[Any, bool] = {}
        self.rows: dict[Any, frozenset[Any]] = {}
        self.means: dict[Any, frozenset[Any]] = {}


def _union(sets: Iterable[frozenset[Any]]) -> frozenset[Any]:
    return frozenset().union(*sets)


def _normalised_over_rows(jaxpr: Any, constant: list[bool]) -> str | None:
    """Where a value meets its own mean over a first axis of length 1; None where nowhere. constant:
    leading inputs that do not depend on the example; the others do.
    """
    known = _Known()
    varies = constant + [True] * (len(jaxpr.invars) - len(constant))
    for var, depends in zip(jaxpr.invars, varies, strict=True):
        known.varies[var] = depends
    return _walk(jaxpr, known)


def _walk(jaxpr: Any, known: _Known) -> str | None:
    def of(table: dict[Any, Any], atom: Any, otherwise: Any) -> Any:
        return otherwise if isinstance(atom, core.Literal) else table.get(atom, otherwise)

    def rows(atom: Any) -> frozenset[Any]:
        return (
            frozenset()
            if isinstance(atom, core.Literal)
            else known.rows.get(atom, frozenset([atom]))
        )

    def means(atom: Any) -> frozenset[Any]:
        return of(known.means, atom, frozenset())

    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        varies = any(of(known.varies, v, False) for v in eqn.invars)
        known.varies.update(dict.fromkeys(eqn.outvars, varies))
        if not varies:
            continue
        if name in _ARITHMETIC and len(eqn.invars) == 2:
            first, second = eqn.invars
            if (rows(first) & means(second)) or (rows(second) & means(first)):
                scope = str(eqn.source_info.name_stack)
                return f" (in {scope})" if scope else ""
        if name in _CALLS:
            inside, _ = jaxprs.inner(eqn)
            if inside is None or len(inside.invars) != len(eqn.invars):
                continue
            for inner, outer in zip(inside.invars, eqn.invars, strict=True):
                known.varies[inner], known.rows[inner] = of(known.varies, outer, False), rows(outer)
                known.means[inner] = means(outer)
            found = _walk(inside, known)
            if found is not None:
                return found
            for inner, outer in zip(inside.outvars, eqn.outvars, strict=True):
                known.rows[outer] = rows(inner) | {outer}
                known.means[outer] = means(inner)
        elif name == "scan":
            inside, _ = jaxprs.inner(eqn)
            num_consts, num_carry = jaxprs.scan_counts(eqn)
            for place, (inner, outer) in enumerate(zip(inside.invars, eqn.invars, strict=True)):
                carried = num_consts <= place < num_consts + num_carry
                known.varies[inner] = carried or of(known.varies, outer, False)
            found = _walk(inside, known)
            if found is not None:
                return found
        elif name == "reduce_sum":
            (operand,) = eqn.invars
            shape, axes = operand.aval.shape, eqn.params["axes"]
            if 0 in axes and shape[0] == 1 and len(axes) < len(shape):
                known.means[eqn.outvars[0]] = rows(operand)
        else:
            if name in _SAME_ROWS:
                known.rows[eqn.outvars[0]] = _union(rows(v) for v in eqn.invars) | {eqn.outvars[0]}
            if name in _OF_A_MEAN:
                known.means[eqn.outvars[0]] = _union(means(v) for v in eqn.invars)
    return None
