"""The little that depends on how JAX writes its programs down: binding, scan's parameters,
inlining.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend
from jax.extend import core

from fljax_kernels import _platforms

# Calls whose body may be written in place of the call.
INLINED = ("jit", "pjit", "closed_call", "core_call")
REMAT = ("remat2", "checkpoint", "remat")


def is_literal(atom: Any) -> bool:
    """Literals carry their value; variables do not."""
    return isinstance(atom, core.Literal)


def on_no_mesh() -> contextlib.AbstractContextManager[None]:
    """What is traced in here may be bound on any mesh: outside a `shard_map` and inside."""
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ()))


def bind(eqn: Any, args: Sequence[Any]) -> list[Any]:
    """The results of one equation, on the mesh of here."""
    here = jax.sharding.get_abstract_mesh()
    with eqn.ctx.manager, jax.sharding.use_abstract_mesh(here):
        out = eqn.primitive.bind(*args, **eqn.primitive.get_bind_params(eqn.params))
    return list(out) if eqn.primitive.multiple_results else [out]


def inner(eqn: Any) -> tuple[Any, Sequence[Any]]:
    """(jaxpr, constants) of a call or of a scan body."""
    closed = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
    return getattr(closed, "jaxpr", closed), getattr(closed, "consts", ())


def scan_counts(eqn: Any) -> tuple[int, int]:
    """(number of constants, number of carries) of a scan equation."""
    if "num_carry" in eqn.params:  # jax < 0.11
        return eqn.params["num_consts"], eqn.params["num_carry"]
    consts, carry, _ = eqn.params["ft_in"].unpack()
    return len(consts), len(carry)


def _run(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Evaluates a jaxpr with its calls written out."""
    env: dict[Any, Any] = {}
    env.update(zip(jaxpr.constvars, consts, strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if is_literal(atom) else env[atom]

    for eqn in jaxpr.eqns:
        values = [read(v) for v in eqn.invars]
        if eqn.primitive.name in INLINED:
            results = _run(*inner(eqn), values)
        elif (branch := _platforms.branch_of(eqn)) is not None:
            results = _run(branch.jaxpr, branch.consts, values[1:])
        else:
            results = bind(eqn, values)
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(v) for v in jaxpr.outvars]


def flatten(jaxpr: Any, consts: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The same program without calls and choices of one platform's form, and its constants."""
    if not any(eqn.primitive.name in INLINED or _platforms.is_choice(eqn) for eqn in jaxpr.eqns):
        return jaxpr, list(consts)
    avals = [v.aval for v in jaxpr.invars]
    closed = jax.make_jaxpr(lambda *args: _run(jaxpr, consts, args))(*avals)
    return closed.jaxpr, list(closed.consts)


def holds_choice(jaxpr: Any) -> bool:
    """Whether some platform has a form of its own, in the program or in one that it holds."""
    return any(
        _platforms.is_choice(eqn) or any(map(holds_choice, core.jaxprs_in_params(eqn.params)))
        for eqn in jaxpr.eqns
    )


def trace_state() -> Any:
    """Equal while the same trace runs: what one has made no other may read."""
    return core.get_opaque_trace_state(convention="flax")


def trace(fun: Callable[..., Any], *args: Any) -> tuple[Any, list[Any], Any]:
    """(jaxpr without calls, constants, output shapes) of fun at arguments like these."""
    closed, shapes = jax.make_jaxpr(fun, return_shape=True)(*args)
    jaxpr, consts = flatten(closed.jaxpr, closed.consts)
    return jaxpr, consts, shapes
