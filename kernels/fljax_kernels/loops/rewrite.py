"""Evaluates a jaxpr with its convolutions, tiling pools and split sums rewritten, whatever they are
nested in.

An equation that holds none of these is bound as it stands. One that holds some inside a sub-jaxpr
is bound with that sub-jaxpr rewritten: the equation keeps its other parameters, so this code need
not know what they mean in this version of JAX. The rules of `custom_jvp` and `custom_vjp` are
Python callables, not jaxprs; they are had by differentiating the equation as it is, and rewritten
as functions of their own.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.extend.core import primitives

from fljax_kernels import _platforms
from fljax_kernels.loops import convolution, pooling, sums

# Parameters that hold jaxprs to rewrite, by the name of the primitive.
_CONTAINERS = {
    "jit": ("jaxpr",),
    "closed_call": ("call_jaxpr",),
    "cond": ("branches",),
    primitives.remat_p.name: ("jaxpr",),
}
_LOOPS = {"scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr")}
_CUSTOM = {"custom_jvp_call", "custom_vjp_call"}
_GPUS = "cuda"


def rewritten(
    fun: Callable[..., Any], active: bool, side_by_side: bool = False
) -> Callable[..., Any]:
    """`fun`, traced at each call and evaluated by the rewritten program; `active`: it is a loop's
    body already; `side_by_side`: it is mapped over its weights, and has a form for GPUs.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = jax.tree.flatten((args, kwargs))
        traced = [isinstance(leaf, (jax.Array, np.ndarray, np.generic)) for leaf in leaves]
        arrays = [leaf for leaf, is_array in zip(leaves, traced, strict=True) if is_array]

        def of_arrays(*arrays: Any) -> Any:
            rest = iter(arrays)
            merged = [
                next(rest) if is_array else leaf
                for leaf, is_array in zip(leaves, traced, strict=True)
            ]
            new_args, new_kwargs = jax.tree.unflatten(structure, merged)
            return fun(*new_args, **new_kwargs)

        closed, out_shape = jax.make_jaxpr(of_arrays, return_shape=True)(*arrays)

        def for_cpus(*arrays: Any) -> list[Any]:
            return _evaluate(closed.jaxpr, closed.consts, arrays, active)

        def for_gpus(*arrays: Any) -> list[Any]:
            return _evaluate(closed.jaxpr, closed.consts, arrays, True)

        def as_it_is(*arrays: Any) -> list[Any]:
            return core.jaxpr_as_fun(closed)(*arrays)

        default = as_it_is if holds_target(closed, active, "cpu") else for_cpus
        forms = {"cpu": for_cpus}
        if side_by_side and holds_target(closed, True, _GPUS):
            forms[_GPUS] = for_gpus
        outputs = _platforms.choose(*arrays, default=default, **forms)
        return jax.tree.unflatten(jax.tree.structure(out_shape), outputs)

    return call


def _evaluate(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], active: bool) -> list[Any]:
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))
    last: dict[Any, int] = {}
    for at, equation in enumerate(jaxpr.eqns):
        last.update({atom: at for atom in _variables(equation.outvars, equation.invars)})
    last.update({atom: len(jaxpr.eqns) for atom in _variables(jaxpr.outvars)})

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for at, equation in enumerate(jaxpr.eqns):
        # The equation's own context: matmul precision, metadata and the like.
        with equation.ctx.manager:
            outputs = _apply(equation, [read(atom) for atom in equation.invars], active)
        values.update(zip(equation.outvars, outputs, strict=True))
        for atom in _variables(equation.outvars, equation.invars):
            if last[atom] == at:  # outside jit, what nobody reads any more would keep its memory
                values.pop(atom, None)
    return [read(atom) for atom in jaxpr.outvars]


def _variables(*atoms: Sequence[Any]) -> set[Any]:
    return {atom for some in atoms for atom in some if isinstance(atom, core.Var)}


def _apply(equation: Any, args: list[Any], active: bool) -> list[Any]:
    name, params = equation.primitive.name, equation.params
    if _is_target(equation, active, _here()):
        return [_rewrite(equation, args, active)]
    if _platforms.is_choice(equation):
        branch = _platforms.branch_of(equation)
        if branch is None:
            return _bind(equation, args, params)
        return _evaluate(branch.jaxpr, branch.consts, args[1:], active)
    if name in _CUSTOM and holds_target(params["call_jaxpr"], active):
        return (_custom_jvp if name == "custom_jvp_call" else _custom_vjp)(equation, args, active)
    held = _LOOPS.get(name) or _CONTAINERS.get(name) or ()
    changed = {param: _rewrite_param(params[param], active or name in _LOOPS) for param in held}
    return _bind(equation, args, {**params, **changed})


def _bind(equation: Any, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """The one place that binds: the convention for parameters that hold functions differs between
    JAX versions.
    """
    outputs = equation.primitive.bind(*args, **equation.primitive.get_bind_params(params))
    return list(outputs) if equation.primitive.multiple_results else [outputs]


def _here() -> str:
    """The platform that what is rewritten now is for."""
    return _GPUS if _platforms.candidates() == (_GPUS,) else "cpu"


def _is_target(equation: Any, active: bool, platform: str) -> bool:
    """Convolutions inside loops, pools and sums everywhere: they are slow outside too. A GPU's sums
    are not.
    """
    name, params = equation.primitive.name, equation.params
    avals = [atom.aval for atom in equation.invars]
    if name == "conv_general_dilated":
        return active and convolution.supports(avals[0].shape, avals[1].shape, params)
    if name == "reduce_window_max":
        return pooling.tiles(avals[0], params)
    if name == "select_and_scatter_add":
        return params["select_prim"] is primitives.ge_p and pooling.tiles(avals[1], params)
    if name == "reduce_sum":
        return platform == "cpu" and sums.apart(avals[0], params)
    return False


def _rewrite(equation: Any, args: list[Any], active: bool) -> Any:
    name, params = equation.primitive.name, equation.params
    if name == "conv_general_dilated":
        return convolution.convolution(args[0], args[1], params)
    if name == "reduce_window_max":
        return pooling.max_pool(args[0], params["window_dimensions"], not active)
    if name == "reduce_sum":
        return sums.sum_in_stages(args[0], params["axes"])
    return pooling.max_pool_gradient(args[0], args[1], params["window_dimensions"])


def _open(jaxpr: Any) -> Any:
    return jaxpr.jaxpr if hasattr(jaxpr, "jaxpr") else jaxpr


def holds_target(jaxpr: Any, active: bool, platform: str | None = None) -> bool:
    """Whether something in it is rewritten for a platform, None for that of what is rewritten now.
    active: it is the body of a loop.
    """
    platform = platform or _here()
    for equation in _open(jaxpr).eqns:
        inside = active or equation.primitive.name in _LOOPS
        branch = _platforms.branch_of(equation, platform)
        held = core.jaxprs_in_params(equation.params) if branch is None else [branch]
        if _is_target(equation, active, platform):
            return True
        if any(holds_target(inner, inside, platform) for inner in held):
            return True
    return False


def _rewrite_param(param: Any, active: bool) -> Any:
    """A jaxpr, closed or open, or a tuple of them, of the same types as before."""
    if isinstance(param, (tuple, list)):
        return tuple(_rewrite_param(one, active) for one in param)
    if not holds_target(param, active):
        return param
    consts = getattr(param, "consts", ())
    avals = [variable.aval for variable in _open(param).invars]
    new = jax.make_jaxpr(lambda *args: _evaluate(_open(param), consts, args, active))(*avals)
    if len(new.consts) > len(consts):
        # a container that cannot carry constants keeps its convolutions: never wrong, only slow
        return param
    return new if isinstance(new, type(param)) else new.jaxpr


def _differentiable(args: Sequence[Any]) -> list[bool]:
    return [jnp.issubdtype(jnp.result_type(arg), jnp.inexact) for arg in args]


def _merge(args: Sequence[Any], floating: Sequence[bool], replacements: Sequence[Any]) -> list[Any]:
    rest = iter(replacements)
    return [next(rest) if is_float else arg for arg, is_float in zip(args, floating, strict=True)]


def _custom_jvp(equation: Any, args: list[Any], active: bool) -> list[Any]:
    """The user's rule stays the rule; its own convolutions are rewritten too."""
    floating = _differentiable(args)
    call = equation.params["call_jaxpr"]
    fun = jax.custom_jvp(lambda *primals: _evaluate(_open(call), call.consts, primals, active))

    def jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        def native(*floats: Any) -> list[Any]:
            return _bind(equation, _merge(primals, floating, floats), equation.params)

        return jax.jvp(native, _pick(primals, floating), tangents)

    @fun.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return rewritten(jvp, active)(tuple(primals), _pick(tangents, floating))

    return fun(*args)


def _pick(values: Sequence[Any], chosen: Sequence[bool]) -> tuple[Any, ...]:
    return tuple(value for value, keep in zip(values, chosen, strict=True) if keep)


def _custom_vjp(equation: Any, args: list[Any], active: bool) -> list[Any]:
    """As `_custom_jvp`, for the forward and the backward rule."""
    floating = _differentiable(args)
    call = equation.params["call_jaxpr"]
    fun = jax.custom_vjp(lambda *primals: _evaluate(_open(call), call.consts, primals, active))

    def forward(*primals: Any) -> Any:
        def native(*floats: Any) -> list[Any]:
            return _bind(equation, _merge(primals, floating, floats), equation.params)

        return jax.vjp(native, *_pick(primals, floating))

    def backward(pullback: Any, cotangents: Any) -> Any:
        cotangents = rewritten(lambda pullback, cotangents: pullback(cotangents), active)(
            pullback, cotangents
        )
        return tuple(_merge([None] * len(floating), floating, cotangents))

    fun.defvjp(rewritten(forward, active), backward)
    return fun(*args)
