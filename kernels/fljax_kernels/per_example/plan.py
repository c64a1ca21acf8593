"""Finds where parameters meet examples.

Each value of the traced loss is *shared* (the same for all examples: constants, parameters and what
is made of them) or *per example*. A shared value that still carries gradient to some parameter and
enters an equation with per-example values makes a `Site`. Three kinds:

- product (matrix product, convolution), gather, add: a tap on the result, records of the other
  operands;
- promote (everything else): a tap on the shared value itself. Its cotangent is its per-example
  gradient.

`Body` plans hold this for the loss and for each scan or remat body and branch of a `cond` in it.
Loops are numbered; a shared value inside scan bodies lists the loops along which it varies (a slice
of stacked parameters does, a closed-over weight does not).
"""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from fljax_kernels.per_example import jaxprs, tpu

ADDITIONS = ("add", "add_any")
# One input, one output, no more elements in than out: worth tapping before, not after.
GROWING = (
    "broadcast_in_dim",
    "reshape",
    "transpose",
    "squeeze",
    "expand_dims",
    "convert_element_type",
    "copy",
    "copy_p",
)


class Info(NamedTuple):
    """example: differs between examples. leaves: parameters that get gradient through it. loops: it
    varies along.
    """

    example: bool
    leaves: frozenset[int] = frozenset()
    loops: tuple[int, ...] = ()


SHARED = Info(False)
EXAMPLE = Info(True)


class Site(NamedTuple):
    """rule: product, conv, gather, add or promote. tap, records: identifiers. var: the shared
    operand.
    """

    rule: str
    eqn: Any
    position: int
    var: Any
    tap: int
    records: tuple[int, ...]
    rounds: bool = False


class Promotion(NamedTuple):
    """The shared operand is recomputed from the tapped `source` by `chain`."""

    tap: int
    source: Any
    chain: tuple[Any, ...]


class Tap(NamedTuple):
    """lengths: of the loops around it, outermost first. rounds: on a TPU, with its squares."""

    lengths: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: Any
    rounds: bool = False


@dataclasses.dataclass
class Body:
    """The plan of one jaxpr.

    lengths: of all loops. taps: result variable -> tap. promotions: (equation, operand) or ("out",
      k) -> how.
    once: inputs of products that are rounded once, since norm and sum both read them.
    aliases: final values of carries that a scan passes through untouched -> what the scan was
      given.
    inputs: of the whole loss, in its own plan.
    """

    jaxpr: Any
    consts: list[Any]
    loops: tuple[int, ...]
    lengths: list[int]
    infos: dict[Any, Info] = dataclasses.field(default_factory=dict)
    taps: dict[Any, int] = dataclasses.field(default_factory=dict)
    rounded_taps: dict[Any, int] = dataclasses.field(default_factory=dict)
    records: dict[tuple[Any, bool], int] = dataclasses.field(default_factory=dict)
    rounded: set[tuple[int, int]] = dataclasses.field(default_factory=set)
    once: set[Any] = dataclasses.field(default_factory=set)
    promotions: dict[tuple[Any, int], Promotion] = dataclasses.field(default_factory=dict)
    promoted: dict[Any, int] = dataclasses.field(default_factory=dict)
    sites: list[Site] = dataclasses.field(default_factory=list)
    children: dict[int, list["Body"]] = dataclasses.field(default_factory=dict)
    origin: dict[Any, Any] = dataclasses.field(default_factory=dict)
    aliases: dict[Any, Any] = dataclasses.field(default_factory=dict)

    def info(self, atom: Any) -> Info:
        return SHARED if jaxprs.is_literal(atom) else self.infos[atom]

    def convolutions(self) -> list[Any]:
        """Their equations."""
        inside = (child for children in self.children.values() for child in children)
        mine = [eqn for eqn in self.jaxpr.eqns if eqn.primitive.name == "conv_general_dilated"]
        return mine + [eqn for child in inside for eqn in child.convolutions()]

    def live(self, taps: "list[Tap]") -> int:
        """Bytes of an example's records, cotangents and tapped values on a TPU."""
        inside = (child for children in self.children.values() for child in children)
        steps = math.prod(self.lengths[loop] for loop in self.loops)
        mine = 0
        for atom, rounded in self.records:
            mine += steps * (_size(atom) * 2 if rounded else _bytes(atom))
        # Of a product outside loops its tap rounds; what it is added to has the same cotangent.
        for k in {*self.taps.values(), *self.rounded_taps.values()}:
            each = 6 if taps[k].rounds else 8 if self.loops else 0
            mine += steps * each * math.prod(taps[k].shape)
        return mine + sum(child.live(taps) for child in inside)

    def held_anyway(self) -> int:
        """How many parameters stand in products whose rows are no larger than the records that make
        them.

        For these `vmap(grad)` does what taps do, in fewer operations. Not for convolutions, which
        it would group, nor where a loop adds up steps, which it would do on rows.
        """
        total = sum(
            child.held_anyway() for children in self.children.values() for child in children
        )
        for site in self.sites:
            if site.rule == "product" and self.rows_are_less(site.eqn, site.position, _size):
                steps = math.prod(self.lengths[loop] for loop in self.loops)
                total += _size(site.var) * steps
        return total

    def rows_are_less(self, eqn: Any, position: int, size: Callable[[Any], int]) -> bool:
        """Whether a product's rows are no larger than what meets in it, step by step."""
        var, other = eqn.invars[position], eqn.invars[1 - position]
        if self.info(var).loops != self.loops:
            return False
        weight, data, result = map(_size, (var, other, eqn.outvars[0]))
        stacked = eqn.params["dimension_numbers"][1][position]
        blocks = math.prod(var.aval.shape[axis] for axis in stacked)
        # Sizes are blocks * p * q, blocks * n * p, blocks * n * q.
        n = round(math.sqrt(data * result / (weight * blocks)))
        return n > 1 and size(var) <= size(other) + size(eqn.outvars[0])


class Planner:
    """Numbers loops, taps and records while it walks.

    in_place: rows that are less than what they are made of are made where that is at hand, in the
    backward pass. It has to be kept for nothing, then, and no product is made twice.
    """

    def __init__(self, *, in_place: bool = False) -> None:
        self.in_place = in_place
        self.lengths: list[int] = []
        self.taps: list[Tap] = []
        self.num_records = 0

    def body(
        self, jaxpr: Any, consts: list[Any], arguments: list[Info], loops: tuple[int, ...]
    ) -> Body:
        body = Body(jaxpr, consts, loops, self.lengths)
        body.infos.update((v, SHARED) for v in jaxpr.constvars)
        body.infos.update(zip(jaxpr.invars, arguments, strict=True))
        uses: dict[Any, list[int]] = {}
        for index, eqn in enumerate(jaxpr.eqns):
            body.origin.update((v, eqn) for v in eqn.outvars)
            for atom in eqn.invars:
                if not jaxprs.is_literal(atom):
                    uses.setdefault(atom, []).append(index)
        for atom in jaxpr.outvars:
            if not jaxprs.is_literal(atom):
                uses.setdefault(atom, []).append(-1)
        for index, eqn in enumerate(jaxpr.eqns):
            infos = [body.info(atom) for atom in eqn.invars]
            if any(info.example for info in infos):
                self._example_equation(body, uses, index, eqn, infos)
                body.infos.update((v, EXAMPLE) for v in eqn.outvars)
                body.infos.update(
                    (v, body.info(atom)) for v, atom in body.aliases.items() if v in eqn.outvars
                )
            else:
                leaves = frozenset().union(*(info.leaves for info in infos))
                if eqn.primitive.name == "stop_gradient":
                    leaves = frozenset()
                inside = set().union(*(info.loops for info in infos))
                varying = tuple(loop for loop in loops if loop in inside)
                for v in eqn.outvars:
                    body.infos[v] = Info(False, leaves if _is_float(v) else frozenset(), varying)
        return body

    def finish(self, body: Body, slots: list[int]) -> None:
        """Taps the shared values that leave through per-example results."""
        for slot in slots:
            atom = body.jaxpr.outvars[slot]
            if not body.info(atom).example and body.info(atom).leaves:
                self._promote(body, ("out", slot), atom)

    def _example_equation(
        self, body: Body, uses: Any, index: int, eqn: Any, infos: list[Info]
    ) -> None:
        name = eqn.primitive.name
        if name == "scan":
            self._scan(body, index, eqn, infos)
            return
        if name in jaxprs.REMAT:
            child = self.body(*jaxprs.flatten(*jaxprs.inner(eqn)), infos, body.loops)
            self.finish(child, list(range(len(eqn.outvars))))
            body.children[index] = [child]
            return
        if name == "cond":
            self._cond(body, index, eqn, infos)
            return
        trained = [k for k, info in enumerate(infos) if not info.example and info.leaves]
        if not trained:
            return
        rule = _rule(eqn, trained, infos)
        if rule is None:
            for k in trained:
                self._promote(body, (index, k), eqn.invars[k])
            return
        (k,) = trained
        if rule == "product" and self.in_place and body.rows_are_less(eqn, k, _bytes):
            self._promote(body, (index, k), eqn.invars[k], narrow=True)
            return
        records: tuple[int, ...] = ()
        rounds = not self.in_place and rule in ("product", "conv") and _rounds_on_tpus(eqn, k)
        if rule != "add":
            met = [j for j, info in enumerate(infos) if j != k and info.example]
            records = tuple(self._record(body, eqn.invars[j], rounds) for j in met)
            body.rounded.update((index, j) for j in met if rounds)
            if rounds and (body.loops or not _holds_rows(eqn, k)):
                body.once.update(eqn.invars[j] for j in met)
        if rounds and not body.loops:
            # Of its own: rounded, what a sum passes on would be rounded for all that is added.
            tap = self._new_tap(body, eqn.outvars[0], rounds=True)
            body.rounded_taps[eqn.outvars[0]] = tap
        else:
            tap = self._tap_result(body, uses, eqn.outvars[0])
        body.sites.append(Site(rule, eqn, k, eqn.invars[k], tap, records, rounds))

    def _tap_result(self, body: Body, uses: Any, var: Any) -> int:
        """A tap on var, or further down where the cotangent is still the same: an LSTM's gates
        share one.
        """
        while len(uses.get(var, ())) == 1 and uses[var][0] >= 0:
            user = body.jaxpr.eqns[uses[var][0]]
            result = user.outvars[0]
            same = result.aval.shape == var.aval.shape and result.aval.dtype == var.aval.dtype
            if user.primitive.name not in ADDITIONS or not same:
                break
            var = result
        if var not in body.taps:
            body.taps[var] = self._new_tap(body, var)
        return body.taps[var]

    def _new_tap(self, body: Body, var: Any, *, rounds: bool = False) -> int:
        lengths = tuple(self.lengths[loop] for loop in body.loops)
        self.taps.append(Tap(lengths, var.aval.shape, var.aval.dtype, rounds))
        return len(self.taps) - 1

    def _record(self, body: Body, atom: Any, rounded: bool) -> int:
        key = atom, rounded
        if key not in body.records:
            body.records[key] = self.num_records
            self.num_records += 1
        return body.records[key]

    def _promote(
        self, body: Body, where: tuple[Any, int], var: Any, *, narrow: bool = False
    ) -> None:
        """narrow: the tap is of no wider dtype than var."""
        chain: list[Any] = []
        source = var
        while (eqn := body.origin.get(source)) is not None and eqn.primitive.name in GROWING:
            before = eqn.invars[0]
            if (
                jaxprs.is_literal(before)
                or not body.info(before).leaves
                or _size(before) > _size(source)
                or (narrow and before.aval.dtype.itemsize > source.aval.dtype.itemsize)
            ):
                break
            chain.append(eqn)
            source = before
        if source not in body.promoted:
            body.promoted[source] = self._new_tap(body, source)
            body.sites.append(Site("promote", None, 0, source, body.promoted[source], ()))
        body.promotions[where] = Promotion(body.promoted[source], source, tuple(reversed(chain)))

    def _scan(self, body: Body, index: int, eqn: Any, infos: list[Info]) -> None:
        num_consts, num_carry = jaxprs.scan_counts(eqn)
        jaxpr, consts = jaxprs.flatten(*jaxprs.inner(eqn))
        loop = len(self.lengths)
        self.lengths.append(eqn.params["length"])
        arguments: list[Info] = []
        slots = set(range(len(jaxpr.outvars)))
        for k, info in enumerate(infos):
            if num_consts <= k < num_consts + num_carry:
                invariant = jaxpr.outvars[k - num_consts] is jaxpr.invars[k]
                if not info.example and invariant:
                    body.aliases[eqn.outvars[k - num_consts]] = eqn.invars[k]
                    slots.discard(k - num_consts)
                elif not info.example:
                    if info.leaves:
                        self._promote(body, (index, k), eqn.invars[k])
                    info = EXAMPLE
            elif k >= num_consts and not info.example:
                info = Info(False, info.leaves, (*info.loops, loop))
            arguments.append(info)
        saved = len(self.taps), self.num_records, len(self.lengths)
        while True:
            child = self.body(jaxpr, consts, arguments, (*body.loops, loop))
            self.finish(child, sorted(slots))
            large = [k for k in _promoted_consts(child, num_consts) if not arguments[k].example]
            if not large:
                break
            # A tap inside the loop would hold one copy per step: tap before the loop.
            del self.taps[saved[0] :], self.lengths[saved[2] :]
            self.num_records = saved[1]
            for k in large:
                arguments[k] = EXAMPLE
                self._promote(body, (index, k), eqn.invars[k])
            saved = len(self.taps), self.num_records, len(self.lengths)
        body.children[index] = [child]

    def _cond(self, body: Body, index: int, eqn: Any, infos: list[Info]) -> None:
        """Each branch has taps and records of its own. What a branch could only tap as a whole is
        tapped before.
        """
        arguments = infos[1:]
        while True:
            saved = len(self.taps), self.num_records, len(self.lengths)
            children = []
            for branch in eqn.params["branches"]:
                child = self.body(
                    *jaxprs.flatten(branch.jaxpr, branch.consts), arguments, body.loops
                )
                self.finish(child, list(range(len(eqn.outvars))))
                children.append(child)
            whole = {k for child in children for k in _promoted_arguments(child, child.promotions)}
            if not whole:
                break
            del self.taps[saved[0] :], self.lengths[saved[2] :]
            self.num_records = saved[1]
            for k in sorted(whole):
                arguments[k] = EXAMPLE
                self._promote(body, (index, 1 + k), eqn.invars[1 + k])
        body.children[index] = children


def _promoted_consts(body: Body, num_consts: int) -> list[int]:
    """Closed-over parameters which a tap inside the loop would copy at every step, and more than
    once in size.
    """
    large = []
    for (index, k), promotion in body.promotions.items():
        if body.info(promotion.source).loops[-1:] == body.loops[-1:]:
            continue
        if index != "out" and _size(promotion.source) <= _size(body.jaxpr.eqns[index].outvars[0]):
            continue
        large.append((index, k))
    return [k for k in _promoted_arguments(body, large) if k < num_consts]


def _promoted_arguments(body: Body, which: Iterable[tuple[Any, int]]) -> list[int]:
    """Positions of the arguments from which these promoted values are made."""
    needed, queue = set(), [body.promotions[where].source for where in which]
    while queue:
        atom = queue.pop()
        if jaxprs.is_literal(atom) or not body.info(atom).leaves:
            continue
        if atom in body.origin:
            queue.extend(body.origin[atom].invars)
        else:
            needed.add(atom)
    return [k for k, v in enumerate(body.jaxpr.invars) if v in needed]


def _rule(eqn: Any, trained: list[int], infos: list[Info]) -> str | None:
    if len(trained) != 1:
        return None
    (k,) = trained
    name, shape = eqn.primitive.name, eqn.invars[k].aval.shape
    if name == "dot_general":
        return "product"
    if name == "conv_general_dilated" and k == 1 and eqn.params["batch_group_count"] == 1:
        return "conv"
    if name in ADDITIONS:
        return "add"
    if name == "gather" and k == 0 and infos[1].example:
        numbers = eqn.params["dimension_numbers"]
        whole = [d for d in range(len(shape)) if d not in numbers.collapsed_slice_dims]
        plain = (
            numbers.collapsed_slice_dims == (0,)
            and numbers.start_index_map == (0,)
            and not numbers.operand_batching_dims
            and all(eqn.params["slice_sizes"][d] == shape[d] for d in whole)
        )
        return "gather" if plain else None
    if name == "dynamic_slice" and k == 0 and len(shape) > 0:
        sizes = eqn.params["slice_sizes"]
        first_only = sizes[0] == 1 and sizes[1:] == shape[1:] and infos[1].example
        return "gather" if first_only and not any(info.example for info in infos[2:]) else None
    return None


def _rounds_on_tpus(eqn: Any, position: int) -> bool:
    """Whether a TPU's matrix unit takes the operands of the product with the parameter at
    `position` as bfloat16. XLA makes no matrix product of what has one row or one column.
    """
    asked = eqn.params["precision"]
    asked = asked if isinstance(asked, tuple) else (asked,)
    single = all(atom.aval.dtype == jnp.float32 for atom in (*eqn.invars, *eqn.outvars))
    shape = eqn.invars[position].aval.shape
    if eqn.primitive.name == "dot_general":
        contracted, stacked = (axes[position] for axes in eqn.params["dimension_numbers"])
        rows = math.prod(shape[axis] for axis in contracted)
        columns = math.prod(n for a, n in enumerate(shape) if a not in (*contracted, *stacked))
    else:
        features = shape[eqn.params["dimension_numbers"].rhs_spec[0]]
        rows = math.prod(shape) // max(features, 1)
        columns = features // eqn.params["feature_group_count"]
    whole = rows > 1 and columns > 1
    return single and whole and all(one in (None, lax.Precision.DEFAULT) for one in asked)


def _holds_rows(eqn: Any, position: int) -> bool:
    """Whether the site is a convolution whose rows a TPU holds: nothing else reads its input."""
    if eqn.primitive.name != "conv_general_dilated":
        return False
    x, y, row = map(_size, (eqn.invars[1 - position], eqn.outvars[0], eqn.invars[position]))
    features = eqn.invars[position].aval.shape[eqn.params["dimension_numbers"].rhs_spec[0]]
    work = y // max(features, 1) * row
    found = tpu.conv_forms(x, y, work, row, math.inf, math.inf, True)
    return min(found, key=found.__getitem__) == "held"


def _is_float(var: Any) -> bool:
    dtype = getattr(var.aval, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, np.inexact)


def _size(var: Any) -> int:
    return int(np.prod(var.aval.shape, dtype=np.int64))


def _bytes(var: Any) -> int:
    return _size(var) * int(var.aval.dtype.itemsize)
