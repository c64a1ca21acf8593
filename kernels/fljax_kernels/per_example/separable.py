"""Whether a function of arrays `[b, ...]` takes their entries one by one: then any part of them may
go through it.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fljax_kernels.per_example import jaxprs

# fmt: off
_ELEMENTWISE = {
    "abs", "add", "and", "cbrt", "ceil", "clamp", "convert_element_type", "copy", "cos", "div",
    "eq", "erf", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "is_finite", "le",
    "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "not", "or", "pow",
    "reduce_precision", "rem", "round", "rsqrt", "select_n", "sign", "sin", "sqrt", "square",
    "stop_gradient", "sub", "tanh", "xor",
}
# fmt: on


def one_by_one(
    fun: Callable[..., Any], of: Callable[[int], tuple[Any, ...]], part: int, whole: int
) -> bool:
    """True only where no entry of the results sees another entry, its place, or how many there are.

    Nothing but elementwise operations passes: a reduction, a sort, a position, an array of `[b]`
    from outside do not. The program must be the same for a part and for the whole, its numbers
    included.

    Args:
      fun: takes what `of` gives, returns arrays `[b]`.
      of: b -> arguments, as trees of `ShapeDtypeStruct`.
      part, whole: two different b.
    """
    try:
        programs = [jaxprs.trace(fun, *of(size))[:2] for size in (part, whole)]
    # of any kind: it is the user's function. The whole batch goes through it next, and raises it
    except Exception:
        return False
    (short, short_consts), (long, long_consts) = programs
    return (
        all(
            _is_elementwise(jaxpr, size)
            for (jaxpr, _), size in zip(programs, (part, whole), strict=True)
        )
        and len(short.eqns) == len(long.eqns)
        and all(map(_same_step, short.eqns, long.eqns))
        and len(short_consts) == len(long_consts)
        and all(map(_same_value, short_consts, long_consts))
    )


def _is_elementwise(jaxpr: Any, size: int) -> bool:
    entries = set(jaxpr.invars)
    uniform = {v for v in jaxpr.constvars if v.aval.size == 1}

    def is_uniform(atom: Any) -> bool:
        return jaxprs.is_literal(atom) or atom in uniform

    for eqn in jaxpr.eqns:
        mine = [v for v in eqn.invars if not jaxprs.is_literal(v) and v in entries]
        name, others_uniform = (
            eqn.primitive.name,
            all(v in mine or is_uniform(v) for v in eqn.invars),
        )
        if not mine:
            if others_uniform and (name == "broadcast_in_dim" or name in _ELEMENTWISE):
                uniform.update(eqn.outvars)
        elif (
            name in _ELEMENTWISE
            and others_uniform
            and len({v.aval.shape for v in (*mine, *eqn.outvars)}) == 1
        ):
            entries.update(eqn.outvars)
        else:
            return False
    return all(v.aval.shape == (size,) and (is_uniform(v) or v in entries) for v in jaxpr.outvars)


def _same_step(a: Any, b: Any) -> bool:
    """The same operation with the same literals; a broadcast may go to another length."""
    if a.primitive is not b.primitive or len(a.invars) != len(b.invars):
        return False
    if a.primitive.name != "broadcast_in_dim" and a.params != b.params:
        return False
    return all(
        _same_value(x.val, y.val)
        if jaxprs.is_literal(x) and jaxprs.is_literal(y)
        else type(x) is type(y)
        for x, y in zip(a.invars, b.invars, strict=True)
    )


def _same_value(a: Any, b: Any) -> bool:
    if a is b:
        return True
    return (
        not isinstance(a, jax.core.Tracer)
        and not isinstance(b, jax.core.Tracer)
        and np.array_equal(a, b)
    )
