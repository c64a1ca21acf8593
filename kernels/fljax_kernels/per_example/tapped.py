"""Evaluates a planned loss for one example: taps on, records out."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fljax_kernels import _rounding
from fljax_kernels.per_example import jaxprs
from fljax_kernels.per_example.batches import make_varying, varying_axes
from fljax_kernels.per_example.plan import Body, Planner


@jax.custom_jvp
def tap(value: jax.Array, zero: jax.Array) -> jax.Array:
    """Value + zero, whose forward pass does not read the zero."""
    del zero
    return value


@tap.defjvp
def _tap_jvp(primals: Any, tangents: Any) -> Any:
    return primals[0], tangents[0] + tangents[1]


@jax.custom_vjp
def rounded_tap(value: jax.Array, zeros: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Value, whose cotangent goes on as `_rounding.rounded` gives it. That and the sum of its
    squares are the zeros'.
    """
    del zeros
    return value


def _cotangents(_: None, cotangent: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    found = _rounding.rounded(cotangent)
    return found[0], found


rounded_tap.defvjp(lambda value, zeros: (value, None), _cotangents)


def zero_taps(planner: Planner) -> dict[int, Any]:
    """A zero for each tap, with the loops around it as leading axes; two for one that rounds."""
    zeros: dict[int, Any] = {}
    for k, t in enumerate(planner.taps):
        zero = jnp.zeros(t.lengths + t.shape, t.dtype)
        zeros[k] = (zero, jnp.zeros((), t.dtype)) if t.rounds else zero
    return zeros


def run(
    body: Body, arguments: list[Any], taps: Mapping[int, Any]
) -> tuple[list[Any], dict[int, Any]]:
    """(results, records) of a planned jaxpr."""
    env: dict[Any, Any] = {}
    records: dict[int, Any] = {}
    tapped: dict[int, Any] = {}
    rounded_env: dict[Any, Any] = {}

    def write(var: Any, value: Any) -> None:
        if var in body.rounded_taps:
            value = rounded_tap(value, taps[body.rounded_taps[var]])
        env[var] = tap(value, taps[body.taps[var]]) if var in body.taps else value

    def read(atom: Any) -> Any:
        return atom.val if jaxprs.is_literal(atom) else env[atom]

    def rounded(atom: Any) -> Any:
        if atom not in rounded_env:
            rounded_env[atom] = _rounding.rounded(env[atom], atom in body.once)
        return rounded_env[atom]

    def operand(where: tuple[Any, int], atom: Any) -> Any:
        if where in body.rounded:
            return rounded(atom)[0]
        promotion = body.promotions.get(where)
        if promotion is None:
            return read(atom)
        if promotion.tap not in tapped:
            tapped[promotion.tap] = tap(read(promotion.source), taps[promotion.tap])
        return functools.reduce(
            lambda x, eqn: jaxprs.bind(eqn, [x])[0], promotion.chain, tapped[promotion.tap]
        )

    for var, value in zip(body.jaxpr.constvars, body.consts, strict=True):
        write(var, value)
    for var, value in zip(body.jaxpr.invars, arguments, strict=True):
        write(var, value)
    for index, eqn in enumerate(body.jaxpr.eqns):
        values = [operand((index, k), atom) for k, atom in enumerate(eqn.invars)]
        if index in body.children:
            step_into = {"scan": _run_scan, "cond": _run_cond}.get(eqn.primitive.name, _run_remat)
            results, inner_records = step_into(eqn, body.children[index], values, taps)
            records |= inner_records
        else:
            results = jaxprs.bind(eqn, values)
        for var, value in zip(eqn.outvars, results, strict=True):
            write(var, env[body.aliases[var]] if var in body.aliases else value)
    # Records are data: no derivative of them is wanted.
    for (var, is_rounded), record in body.records.items():
        kept = env[var]
        if is_rounded:  # squares of steps would be carried through the loop for nothing
            kept = (rounded(var)[0], None) if body.loops else rounded(var)
        records[record] = jax.lax.stop_gradient(kept)
    return [operand(("out", k), atom) for k, atom in enumerate(body.jaxpr.outvars)], records


def _run_scan(
    eqn: Any, children: list[Body], values: list[Any], taps: Mapping[int, Any]
) -> tuple[list[Any], dict[int, Any]]:
    (child,) = children
    num_consts, num_carry = jaxprs.scan_counts(eqn)
    consts, init, xs = (
        values[:num_consts],
        values[num_consts : num_consts + num_carry],
        values[num_consts + num_carry :],
    )
    mine = {k: taps[k] for k in sorted(all_taps(child))}

    def step(carry: list[Any], slices: Any) -> tuple[list[Any], Any]:
        x, inner_taps = slices
        results, records = run(child, [*consts, *carry, *x], inner_taps)
        return results[:num_carry], (results[num_carry:], records)

    options = {name: eqn.params[name] for name in ("length", "reverse", "unroll")}
    carry, (ys, records) = jax.lax.scan(step, init, (xs, mine), **options)
    return [*carry, *ys], records


def _run_cond(
    eqn: Any, children: list[Body], values: list[Any], taps: Mapping[int, Any]
) -> tuple[list[Any], dict[int, Any]]:
    """The branch that is taken has its records, the others' are zero, and so are the cotangents of
    their taps.
    """
    index, *operands = values
    mine = {k: taps[k] for child in children for k in sorted(all_taps(child))}
    shapes: dict[int, Any] = {}
    for child in children:
        shapes |= jax.eval_shape(functools.partial(run, child), operands, mine)[1]
    # Inside shard_map what a branch gives differs between devices, as its operands do: so must
    # zeros and constants.
    axes = varying_axes(*operands, *jax.tree.leaves(mine))

    def branch(child: Body) -> Any:
        def taken(operands: list[Any], mine: dict[int, Any]) -> tuple[list[Any], dict[int, Any]]:
            results, records = run(child, operands, mine)
            absent = {
                k: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), s)
                for k, s in shapes.items()
                if k not in records
            }
            return jax.tree.map(lambda x: make_varying(x, axes), (results, records | absent))

        return taken

    return jax.lax.switch(index, [branch(child) for child in children], operands, mine)


def _run_remat(
    eqn: Any, children: list[Body], values: list[Any], taps: Mapping[int, Any]
) -> tuple[list[Any], dict[int, Any]]:
    (child,) = children
    mine = {k: taps[k] for k in sorted(all_taps(child))}
    options = {name: eqn.params[name] for name in ("prevent_cse", "policy")}
    return jax.checkpoint(functools.partial(run, child), **options)(values, mine)


def all_taps(body: Body) -> set[int]:
    """The taps of a body and of the bodies in it."""
    own = {*body.taps.values(), *body.rounded_taps.values(), *body.promoted.values()}
    return own.union(
        *(all_taps(child) for children in body.children.values() for child in children)
    )
