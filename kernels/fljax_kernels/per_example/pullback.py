"""From sites to parameters: reverse mode over the shared values, with terms for cotangents.

A term at a shared value stands for `[B, *loops it varies along, *shape]`. Operations that only
rearrange keep a term in its compact form; any other is differentiated at its own operands, for each
example, on held rows.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fljax_kernels import _platforms, _rounding
from fljax_kernels.per_example import jaxprs
from fljax_kernels.per_example.batches import fresh_keys
from fljax_kernels.per_example.conv import ConvProduct
from fljax_kernels.per_example.conv_cuda import CudaConv
from fljax_kernels.per_example.conv_native import NativeConv
from fljax_kernels.per_example.plan import Body, Site
from fljax_kernels.per_example.terms import Lookup, Product, Rows


class SharedValues:
    """The values of shared variables, each with the loops it varies along as leading axes; computed
    when asked for.
    """

    def __init__(
        self,
        body: Body,
        arguments: Sequence[Any],
        parent: "tuple[SharedValues, Sequence[Any]] | None" = None,
    ):
        self._body, self._parent = body, parent
        self._known: dict[Any, Any] = dict(
            zip(body.jaxpr.constvars, fresh_keys(list(body.consts)), strict=True)
        )
        if parent is None:
            self._known.update(zip(body.jaxpr.invars, arguments, strict=True))

    def child(self, operands: Sequence[Any], body: Body) -> "SharedValues":
        """The same inside a scan, a remat or a branch, to which these operands go."""
        return SharedValues(body, (), (self, operands))

    def value(self, atom: Any) -> Any:
        if jaxprs.is_literal(atom):
            return atom.val
        if atom not in self._known:
            self._known[atom] = self._compute(atom)
        return self._known[atom]

    def _compute(self, var: Any) -> Any:
        if var in self._body.aliases:
            return self.value(self._body.aliases[var])
        eqn = self._body.origin.get(var)
        if eqn is None:
            assert self._parent is not None
            outer, operands = self._parent
            return outer.value(operands[self._body.jaxpr.invars.index(var)])
        loops = self._body.info(var).loops
        run = vmap_loops(
            lambda *args: jaxprs.bind(eqn, args),
            loops,
            [self._body.info(a).loops for a in eqn.invars],
        )
        self._known.update(zip(eqn.outvars, run(*map(self.value, eqn.invars)), strict=True))
        return self._known[var]


def vmap_loops(fun: Any, loops: Sequence[int], of_arguments: Sequence[Sequence[int]]) -> Any:
    """Fun mapped over `loops`, the first outermost; an argument has the loops it varies along as
    leading axes.
    """
    for loop in reversed(loops):
        axes = tuple(0 if loop in mine else None for mine in of_arguments)
        fun = jax.vmap(fun, in_axes=axes)
    return fun


def site_term(site: Site, body: Body, cotangent: Any, records: Sequence[Any]) -> Any:
    """The per-example gradient of a site's shared operand."""
    squares = None
    if site.rounds:
        (record, of_x), of_y = records[0], None
        if not body.loops:
            cotangent, of_y = cotangent
        if _platforms.tpu_alone():
            if of_y is None:
                cotangent = _rounding.to_bfloat16(cotangent)
            else:
                cotangent, squares = cotangent.astype(jnp.bfloat16), (of_x, of_y)
        records = [record]
    varying = body.info(site.var).loops
    fixed = [k for k, loop in enumerate(body.loops) if loop not in varying]
    shape = site.var.aval.shape
    loops = len(body.loops)
    # Loops along which the operand varies go first; the others are summed.
    if site.rule in ("promote", "add"):
        found = _unbroadcast(cotangent, shape, loops) if site.rule == "add" else cotangent
        if fixed:
            found = jnp.sum(found, axis=tuple(1 + k for k in fixed))
        tapped = site.rule == "promote"
        beside = not tapped and found is cotangent
        return Rows(found, "tapped" if tapped else "sum", beside)
    if site.rule == "product":
        (batch, free, result) = _product_labels(site, loops)
        out = tuple(1 + k for k, loop in enumerate(body.loops) if loop in varying) + tuple(free)
        labels = records[0], batch, cotangent, result, out
        return Product(*labels, note="product", squares=squares)
    if site.rule == "conv":
        if varying:
            return _stacked_conv(site, body, cotangent, records[0])
        found = _convolution(records[0], cotangent, shape, site.eqn.params, loops)
        found.squares = squares
        again = site.rounds and site.eqn.invars[1 - site.position] not in body.once
        if again and isinstance(found, NativeConv) and _platforms.tpu_alone() and not found.held:
            found.round_once()  # the plan took it for held
        return found
    return _lookup(site, body, cotangent, records[0])


def _convolution(*arguments: Any) -> ConvProduct:
    if _platforms.cpu_alone():
        return ConvProduct(*arguments)
    return (CudaConv if _platforms.candidates() == ("cuda",) else NativeConv)(*arguments)


def _product_labels(site: Site, loops: int) -> tuple[list[int], list[int], list[int]]:
    """Einsum labels of (the recorded operand, the parameter, the result), loops being labels
    1..loops.
    """
    (contract, batch) = site.eqn.params["dimension_numbers"]
    k = site.position
    mine, other = site.eqn.invars[k].aval.ndim, site.eqn.invars[1 - k].aval.ndim
    first = 1 + loops
    labels = {0: [0] * 0, 1: [0] * 0}
    own = list(range(first, first + mine))
    theirs = list(range(first + mine, first + mine + other))
    for a, b in zip(contract[k], contract[1 - k], strict=True):
        theirs[b] = own[a]
    for a, b in zip(batch[k], batch[1 - k], strict=True):
        theirs[b] = own[a]
    labels[k], labels[1 - k] = own, theirs
    free = [
        [
            label
            for axis, label in enumerate(labels[side])
            if axis not in contract[side] and axis not in batch[side]
        ]
        for side in (0, 1)
    ]
    lead = list(range(loops + 1))
    result = lead + [labels[0][axis] for axis in batch[0]] + free[0] + free[1]
    return lead + theirs, own, result


def _unbroadcast(cotangent: jax.Array, shape: tuple[int, ...], loops: int) -> jax.Array:
    lead = 1 + loops
    if len(shape) < cotangent.ndim - lead:
        return jnp.sum(cotangent, axis=tuple(range(lead, cotangent.ndim)))
    wide = [
        lead + k for k, size in enumerate(shape) if size == 1 and cotangent.shape[lead + k] != 1
    ]
    return jnp.sum(cotangent, axis=tuple(wide), keepdims=True) if wide else cotangent


def _stacked_conv(site: Site, body: Body, cotangent: jax.Array, inputs: jax.Array) -> Rows:
    """A kernel per loop step: one convolution term for each, held."""
    varying = body.info(site.var).loops
    order = [k for k, loop in enumerate(body.loops) if loop in varying]
    rest = [k for k, loop in enumerate(body.loops) if loop not in varying]
    axes = [1 + k for k in order] + [0] + [1 + k for k in rest]

    def front(z: jax.Array) -> jax.Array:
        z = jnp.transpose(z, [*axes, *range(1 + len(body.loops), z.ndim)])
        return z.reshape(-1, *z.shape[len(order) :])

    lengths = [cotangent.shape[1 + k] for k in order]

    def one(pair: tuple[jax.Array, jax.Array]) -> jax.Array:
        shape = site.var.aval.shape
        return _convolution(pair[0], pair[1], shape, site.eqn.params, len(rest)).rows()

    rows = jax.vmap(lambda x, y: one((x, y)))(front(inputs), front(cotangent))
    rows = jnp.moveaxis(rows, 1, 0)
    return Rows(rows.reshape(rows.shape[0], *lengths, *site.var.aval.shape), "stacked convolution")


def _lookup(site: Site, body: Body, cotangent: jax.Array, index: jax.Array) -> Any:
    varying = body.info(site.var).loops
    size, *row = site.var.aval.shape
    loops = len(body.loops)
    lead = 1 + loops
    if site.eqn.primitive.name == "gather":
        numbers = site.eqn.params["dimension_numbers"]
        index = index[..., 0]
        positions = [a for a in range(cotangent.ndim - lead) if a not in numbers.offset_dims]
        y = jnp.transpose(
            cotangent,
            [
                *range(lead),
                *(lead + a for a in positions),
                *(lead + a for a in numbers.offset_dims),
            ],
        )
        drops = site.eqn.params["mode"] == jax.lax.GatherScatterMode.FILL_OR_DROP
    else:
        y, drops = cotangent, False
    y = y.reshape(*y.shape[:lead], -1, *row)
    index = index.reshape(*index.shape[:lead], -1)
    if drops:
        inside = (index >= 0) & (index < size)
        y = jnp.where(inside.reshape(*inside.shape, *[1] * len(row)), y, jnp.zeros((), y.dtype))
    index = jnp.clip(index, 0, size - 1)
    if not varying:
        return Lookup(index.reshape(index.shape[0], -1), y.reshape(y.shape[0], -1, *row), size)
    order = [1 + k for k, loop in enumerate(body.loops) if loop in varying]
    rest = [1 + k for k, loop in enumerate(body.loops) if loop not in varying]

    def split(z: jax.Array) -> jax.Array:
        z = jnp.transpose(z, [0, *order, *rest, *range(lead, z.ndim)])
        lengths = z.shape[1 : 1 + len(order)]
        return z.reshape(z.shape[0], *lengths, -1, *z.shape[lead + 1 :])

    def table(i: jax.Array, g: jax.Array) -> jax.Array:
        return jnp.zeros((size, *row), g.dtype).at[i].add(g)

    for _ in range(1 + len(order)):
        table = jax.vmap(table)
    return Rows(table(split(index), split(y)), "stacked gather")


def pull_back(
    body: Body, shared: SharedValues, cotangents: dict[int, Any], records: dict[int, Any]
) -> dict[Any, list[Any]]:
    """Terms at the arguments and constants of a body."""
    terms: dict[Any, list[Any]] = {}

    def add(atom: Any, term: Any) -> None:
        if term is not None and not jaxprs.is_literal(atom) and body.info(atom).leaves:
            terms.setdefault(atom, []).append(term)

    for site in body.sites:
        add(
            site.var,
            site_term(site, body, cotangents[site.tap], [records[r] for r in site.records]),
        )
    for index, eqn in reversed(list(enumerate(body.jaxpr.eqns))):
        if index in body.children:
            operands = eqn.invars[1:] if eqn.primitive.name == "cond" else eqn.invars
            for child in body.children[index]:
                inside = pull_back(child, shared.child(operands, child), cotangents, records)
                for var, atom in zip(child.jaxpr.invars, operands, strict=True):
                    for term in inside.get(var, ()):
                        add(atom, term)
            for var in body.aliases.keys() & set(eqn.outvars):
                for term in terms.pop(var, ()):
                    add(body.aliases[var], term)
            continue
        arriving = [terms.pop(v, []) for v in eqn.outvars]
        if any(arriving):
            _through(eqn, body, shared, arriving, add)
    return terms


def _through(
    eqn: Any, body: Body, shared: SharedValues, arriving: list[list[Any]], add: Any
) -> None:
    """Terms at the results of a shared equation become terms at its operands."""
    loops = body.info(eqn.outvars[0]).loops
    waiting: list[Any] = []
    if eqn.primitive.name == "split":
        _joined(eqn, body, shared, arriving, add)
        return
    for term in arriving[0] if len(arriving) == 1 else ():
        parts = _rearranged(eqn, body, shared, term, len(loops))
        if parts is None:
            waiting.append(term)
            continue
        for atom, part in parts:
            add(atom, part)
    if len(arriving) > 1 or waiting:
        _differentiated(eqn, body, shared, [waiting] if len(arriving) == 1 else arriving, add)


def _joined(
    eqn: Any, body: Body, shared: SharedValues, arriving: list[list[Any]], add: Any
) -> None:
    """Terms at the parts of a split, each with zeros in place of the other parts."""
    (atom,) = eqn.invars
    axis = len(body.info(atom).loops) + eqn.params["axis"]
    whole, at = atom.aval.shape[eqn.params["axis"]], 0
    rest: list[list[Any]] = []
    for size, terms in zip(eqn.params["sizes"], arriving, strict=True):
        padded = [
            term.pad(axis, at, whole - at - size) if isinstance(term, Product) else None
            for term in terms
        ]
        rest.append([term for term, wide in zip(terms, padded, strict=True) if wide is None])
        for term in padded:
            add(atom, term)
        at += size
    if any(rest):
        _differentiated(eqn, body, shared, rest, add)


def _rearranged(
    eqn: Any, body: Body, shared: SharedValues, term: Any, loops: int
) -> list[tuple[Any, Any]] | None:
    """(operand, term) pairs where the operation only rearranges or scales; None where it does not,
    or not compactly.
    """
    name, params = eqn.primitive.name, eqn.params
    if any(
        body.info(atom).loops != body.info(eqn.outvars[0]).loops
        for atom in eqn.invars
        if not jaxprs.is_literal(atom)
    ):
        return None
    first = eqn.invars[0]
    inside = getattr(first.aval, "shape", ())
    lead = term.shape[:loops]
    if name in (
        "convert_element_type",
        "copy",
        "copy_p",
        "reduce_precision",
        "sharding_constraint",
    ):
        return [(first, term)]
    if name in ("mul", "div") and len(eqn.invars) == 2:
        for k, other in ((0, 1), (1, 0)) if name == "mul" else ((0, 1),):
            scalar = eqn.invars[other]
            if (
                body.info(scalar).leaves
                or scalar.aval.shape != ()
                or eqn.invars[k].aval.shape != eqn.outvars[0].aval.shape
            ):
                continue
            if loops:
                return None
            factor = jnp.asarray(shared.value(scalar))
            return [(eqn.invars[k], term.scale(1 / factor if name == "div" else factor))]
        return None
    if isinstance(term, Lookup) and name not in ("add", "add_any"):
        return None
    if name in ADDITIVE and all(
        atom.aval.shape == eqn.outvars[0].aval.shape for atom in eqn.invars
    ):
        return [(atom, term) for atom in eqn.invars]
    if isinstance(term, Rows):
        return None
    if name in ("reshape", "squeeze", "expand_dims") and (
        name != "reshape" or params.get("dimensions") is None
    ):
        return [(first, term.reshape((*lead, *inside)))]
    if name == "broadcast_in_dim" and math.prod(inside) == math.prod(eqn.outvars[0].aval.shape):
        return [(first, term.reshape((*lead, *inside)))]
    if name == "transpose":
        back = [0] * len(inside)
        for position, axis in enumerate(params["permutation"]):
            back[axis] = position
        return [(first, term.transpose((*range(loops), *(loops + axis for axis in back))))]
    if name == "concatenate":
        axis, at, parts = params["dimension"], 0, []
        for atom in eqn.invars:
            part = term.cut(loops + axis, at, at + atom.aval.shape[axis])
            if part is None:
                return None
            parts.append((atom, part))
            at += atom.aval.shape[axis]
        return parts
    if name == "slice" and all(step == 1 for step in params["strides"] or (1,)):
        for axis, (start, stop) in enumerate(
            zip(params["start_indices"], params["limit_indices"], strict=True)
        ):
            if (start, stop) != (0, inside[axis]):
                term = term.pad(loops + axis, start, inside[axis] - stop)
                if term is None:
                    return None
        return [(first, term)]
    return None


ADDITIVE = ("add", "add_any")


def _differentiated(
    eqn: Any, body: Body, shared: SharedValues, arriving: list[list[Any]], add: Any
) -> None:
    """The general case: the equation's own vjp on held rows."""
    outs = [(v, terms) for v, terms in zip(eqn.outvars, arriving, strict=True)]
    loops: tuple[int, ...] = max((body.info(v).loops for v in eqn.outvars), key=len)
    trained = [k for k, atom in enumerate(eqn.invars) if body.info(atom).leaves]
    values = [shared.value(atom) for atom in eqn.invars]
    rows = []
    for var, terms in outs:
        held = [term.rows() for term in terms]
        rows.append(functools.reduce(jnp.add, held).astype(var.aval.dtype) if held else None)
    present = [k for k, row in enumerate(rows) if row is not None]

    def one(arguments: list[Any], cotangents: list[Any]) -> list[Any]:
        def partial(*mine: Any) -> list[Any]:
            full = list(arguments)
            for k, value in zip(trained, mine, strict=True):
                full[k] = value
            results = jaxprs.bind(eqn, full)
            return [results[k] for k in present]

        return list(jax.vjp(partial, *[arguments[k] for k in trained])[1](cotangents))

    of_arguments = [body.info(atom).loops for atom in eqn.invars]
    mapped = one
    for loop in reversed(loops):
        mapped = jax.vmap(
            mapped, in_axes=([0 if loop in mine else None for mine in of_arguments], 0)
        )
    results = jax.vmap(mapped, in_axes=(None, 0))(values, [rows[k] for k in present])
    for k, result in zip(trained, results, strict=True):
        missing = tuple(1 + at for at, loop in enumerate(loops) if loop not in of_arguments[k])
        add(
            eqn.invars[k],
            Rows(
                jnp.sum(result, axis=missing) if missing else result,
                f"through {eqn.primitive.name}",
            ),
        )
