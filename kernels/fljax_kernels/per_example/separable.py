"""Whether a function of arrays `[b, ...]` takes their entries one by one: then any part of them may go through it."""

from collections.abc import Callable
from typing import Any

import jax

from fljax_kernels.per_example import jaxprs

# fmt: off
_ELEMENTWISE = {
    "abs", "add", "and", "cbrt", "ceil", "clamp", "convert_element_type", "copy", "copy_p", "cos", "div", "eq", "erf",
    "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "is_finite", "le", "log", "log1p", "logistic", "lt",
    "max", "min", "mul", "ne", "neg", "not", "or", "pbroadcast", "pow", "pvary", "reduce_precision", "rem", "round",
    "rsqrt", "select_n", "sign", "sin", "sqrt", "square", "stop_gradient", "sub", "tanh", "xor",
}
# fmt: on


def one_by_one(fun: Callable[..., Any], *args: Any) -> bool:
    """True only where no entry of the results sees another entry, or its place; args: trees of `ShapeDtypeStruct`.

    Nothing but elementwise operations passes: a reduction, a sort, a position, an array of `[b]` from outside do not.
    A function that refuses arguments of these shapes is not one of parts either.
    """
    try:
        jaxpr, _, _ = jaxprs.trace(fun, *args)
    except (TypeError, ValueError):
        return False
    of_entries = set(jaxpr.invars)
    same_everywhere: set[Any] = set()

    def is_uniform(atom: Any) -> bool:
        return jaxprs.is_literal(atom) or atom in same_everywhere or atom.aval.size == 1

    for eqn in jaxpr.eqns:
        mine = [v for v in eqn.invars if not jaxprs.is_literal(v) and v in of_entries]
        if not mine:
            if eqn.primitive.name in ("broadcast_in_dim", *_ELEMENTWISE) and all(map(is_uniform, eqn.invars)):
                same_everywhere.update(eqn.outvars)
            continue
        shapes = {v.aval.shape for v in (*mine, *eqn.outvars)}
        others = all(is_uniform(v) for v in eqn.invars if v not in mine)
        if eqn.primitive.name not in _ELEMENTWISE or len(shapes) > 1 or not others:
            return False
        of_entries.update(eqn.outvars)
    return all(is_uniform(v) or v in of_entries for v in jaxpr.outvars)


def like(leading: int, tree: Any) -> Any:
    """The shapes of a tree of arrays with this many entries along the first axis."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((leading, *x.shape[1:]), x.dtype), tree)
