"""Walks the program of a network and finds which scale each of its parameters and intermediate
numbers may carry.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax.models._scale_labels import ONE, STRUCTURAL, WILD, Labels, Nodes, common, merged, padded
from fljax_kernels.per_example import jaxprs

_SAME = ("abs", "neg", "real", "optimization_barrier")
_SUMS = ("add", "add_any", "sub", "max", "min")
_COMPARISONS = ("gt", "ge", "lt", "le", "eq", "ne")
_REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min")
_WINDOWS = ("reduce_window_sum", "reduce_window_max", "reduce_window_min")
_WHY = {
    "clamp": "a bound other than 0 does not move with the scale",
    "cond": "branches are not followed",
    "custom_jvp_call": "its derivative is its own, and no ReLU's",
    "custom_vjp_call": "its derivative is its own",
    "div": "a normalisation divides the scale out",
    "dot_general": "it multiplies two scaled arrays",
    "mul": "it multiplies two scaled arrays",
    "rsqrt": "a normalisation divides the scale out",
    "scan": "loops are not followed",
    "sqrt": "it is not of degree 1",
    "while": "loops are not followed",
}


class Weights(NamedTuple):
    """Entries of one parameter, moved about: which leaf, and which of its numbers stands where."""

    leaf: int
    entries: np.ndarray


class Stream(NamedTuple):
    """What depends on parameters, or on the example (labels ONE)."""

    labels: Labels


class Const(NamedTuple):
    """Neither."""

    value: np.ndarray


class Head(NamedTuple):
    """The last layer. equation, additions: of the walked program. hidden: position of its input
    among the operands.
    """

    equation: int
    hidden: int
    additions: tuple[int, ...]


class _TransitionInside(Exception):
    """A transition is needed inside a call."""


class Walk:
    """The state of one walk; `transitions`: (equation, operand) -> labels before the transition."""

    def __init__(
        self, nodes: Nodes, leaves: Sequence[Any], names: Sequence[str], head: Head
    ) -> None:
        self.nodes, self.names, self.head = nodes, names, head
        self.numerator = [np.zeros(leaf.size, np.int64) for leaf in leaves]
        self.denominator = [np.zeros(leaf.size, np.int64) for leaf in leaves]
        self.assigned = [np.zeros(leaf.size, bool) for leaf in leaves]
        self.classes: dict[int, np.ndarray] = {}
        self.hidden_index: np.ndarray | None = None
        self.head_labels: Labels = np.zeros(0, np.int64)
        self.transitions: dict[tuple[int, int], Labels] = {}
        self.layers: list[
            tuple[int, np.ndarray, Labels]
        ] = []  # (leaf, branch nodes, labels of its input)
        self.depth = 0

    def body(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """Values of the program's results."""
        env: dict[Any, Any] = dict(
            zip(jaxpr.constvars, (Const(np.asarray(c)) for c in consts), strict=True)
        )
        env |= dict(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Any:
            return Const(np.asarray(atom.val)) if jaxprs.is_literal(atom) else env[atom]

        for index, eqn in enumerate(jaxpr.eqns):
            env.update(
                zip(
                    eqn.outvars,
                    self._equation(index, eqn, [read(v) for v in eqn.invars]),
                    strict=True,
                )
            )
        return [read(v) for v in jaxpr.outvars]

    def _equation(self, index: int, eqn: Any, values: list[Any]) -> list[Any]:
        name = eqn.primitive.name
        if all(isinstance(value, Const) for value in values):
            with jax.ensure_compile_time_eval():
                return [
                    Const(np.asarray(r))
                    for r in jaxprs.bind(eqn, [jnp.asarray(v.value) for v in values])
                ]
        if name in jaxprs.REMAT or _is_relu(eqn):
            return self._call(index, eqn, values)
        found = [k for k, value in enumerate(values) if isinstance(value, Weights)]
        if found:
            return [self._parameters(index, eqn, values, found)]
        return self._streams(index, eqn, values)

    def _call(self, index: int, eqn: Any, values: list[Any]) -> list[Any]:
        """A call that must stay one, since its derivative is its own: transitions stand before
        it.
        """
        jaxpr, consts = jaxprs.flatten(*jaxprs.inner(eqn))
        self.depth += 1
        try:
            return self.body(jaxpr, consts, values)
        except _TransitionInside:
            if self.depth > 1:
                raise
            self.depth = 0
            values = [
                Stream(self._streamed(index, k, value.labels))
                if isinstance(value, Stream)
                else value
                for k, value in enumerate(values)
            ]
            self.depth = 1
            try:
                return self.body(jaxpr, consts, values)
            except _TransitionInside:
                raise ValueError(
                    "Expected no layers inside calls with derivatives of their own, got "
                    f"{eqn.primitive.name}."
                ) from None
        finally:
            self.depth -= 1

    def _parameters(self, index: int, eqn: Any, values: list[Any], found: list[int]) -> Any:
        name, weights = eqn.primitive.name, values[found[0]]
        if name in STRUCTURAL and _floating(eqn.outvars[0]):
            return Weights(weights.leaf, STRUCTURAL[name](eqn.params, weights.entries))
        if len(found) == 1 and len(values) == 2:
            k = found[0]
            other = self._labels(values[1 - k])
            if name == "dot_general" and not eqn.params["dimension_numbers"][1][0]:
                return self._product(index, eqn, k, weights, self._streamed(index, 1 - k, other))
            if name == "conv_general_dilated" and k == 1 and eqn.params["batch_group_count"] == 1:
                return self._conv(eqn, weights, self._streamed(index, 0, other))
            if name in ("add", "add_any", "sub"):
                return self._bias(index, eqn, 1 - k, weights, other)
            if name == "mul":
                return self._diagonal(eqn, weights, self._streamed(index, 1 - k, other))
        raise ValueError(
            "Expected parameters to enter a network by products, convolutions, sums and entrywise "
            f"scaling, got {name} of {self.names[weights.leaf]}."
        )

    def _streamed(self, index: int, operand: int, labels: Labels) -> Labels:
        """Labels after the transition, which is noted down if there is one."""
        if not self.nodes.is_branch(labels):
            return labels
        if self.depth:
            raise _TransitionInside
        self.transitions[index, operand] = labels
        return self.nodes.streams(labels)

    def _labels(self, value: Any, shape: tuple[int, ...] | None = None) -> Labels:
        if isinstance(value, Stream):
            labels = value.labels
        else:
            # An infinity fits any scale as 0 does: it pads a maximum.
            numbers = value.value
            fits = (
                (numbers == 0) | np.isinf(numbers)
                if numbers.dtype.kind in "fiub"
                else np.zeros(numbers.shape, bool)
            )
            labels = np.where(fits, WILD, ONE)
        return labels if shape is None else np.broadcast_to(labels, shape)

    def _equal(self, first: Labels, second: Labels) -> bool:
        first, second = self.nodes.resolve(first), self.nodes.resolve(second)
        return bool(np.all((first == second) | (first == WILD) | (second == WILD)))

    def _assign(
        self, weights: Weights, entries: np.ndarray, numerator: Any, denominator: Any
    ) -> None:
        leaf, flat = weights.leaf, entries.ravel()
        before = np.count_nonzero(self.assigned[leaf])
        self.assigned[leaf][flat] = True
        if np.count_nonzero(self.assigned[leaf]) - before != flat.size:
            raise ValueError(
                f"Expected every parameter to serve one layer, got {self.names[leaf]} in several "
                "places."
            )
        self.numerator[leaf][flat] = np.broadcast_to(numerator, entries.shape).ravel()
        denominator = np.broadcast_to(denominator, entries.shape).ravel()
        self.denominator[leaf][flat] = np.where(denominator == WILD, ONE, denominator)

    def _only(self, labels: Labels, axes: Sequence[int], what: str) -> Labels:
        """One label for each index of the other axes, of streams."""
        label, rows, wanted = common(labels, axes)
        self.nodes.unite(rows, wanted, _plain(what))
        return label

    def _product(self, index: int, eqn: Any, k: int, weights: Weights, labels: Labels) -> Stream:
        contracting = eqn.params["dimension_numbers"][0]
        of_weights, of_stream = list(contracting[k]), list(contracting[1 - k])
        free = [axis for axis in range(labels.ndim) if axis not in of_stream]
        order = np.argsort(np.argsort(of_stream))
        inputs = self._only(labels, free, "a product").transpose(order).reshape(-1)
        entries = weights.entries
        rest = [axis for axis in range(entries.ndim) if axis not in of_weights]
        shape = tuple(entries.shape[axis] for axis in rest)
        entries = entries.transpose(of_weights + rest).reshape(inputs.size, -1)
        if self.depth == 0 and index == self.head.equation:
            units = np.zeros(entries.shape[1], np.int64)
            places = (
                np.arange(labels.size)
                .reshape(labels.shape)
                .transpose(of_stream + free)
                .reshape(inputs.size, -1)
            )
            if places.shape[1] != 1 or len(rest) != 1:
                raise ValueError(
                    f"Expected the last layer to be a dense one, got {self.names[weights.leaf]} of "
                    "it."
                )
            size = self.numerator[weights.leaf].size
            self.hidden_index, self.classes[weights.leaf] = (
                np.zeros(size, np.int64),
                np.zeros(size, np.int64),
            )
            self.hidden_index[entries] = places
            self.classes[weights.leaf][entries] = np.arange(entries.shape[1])
            self.head_labels = inputs
        else:
            units = self._layer(weights, entries.shape[1], inputs)
        self._assign(weights, entries, units[None, :], inputs[:, None])
        kept = tuple(labels.shape[axis] for axis in free)
        if k == 1:
            return Stream(np.broadcast_to(units.reshape((1,) * len(kept) + shape), kept + shape))
        return Stream(np.broadcast_to(units.reshape(shape + (1,) * len(kept)), shape + kept))

    def _layer(self, weights: Weights, count: int, inputs: Labels) -> np.ndarray:
        units = self.nodes.new_units(count, len(self.layers))
        self.layers.append((weights.leaf, units, inputs))
        return units

    def _conv(self, eqn: Any, weights: Weights, labels: Labels) -> Stream:
        lhs, rhs, out = eqn.params["dimension_numbers"]
        groups = eqn.params["feature_group_count"]
        inputs = self._only(
            labels, [axis for axis in range(labels.ndim) if axis != lhs[1]], "a convolution"
        )
        entries = weights.entries.transpose(rhs)
        outs, ins = entries.shape[:2]
        units = self._layer(weights, outs, inputs)
        channel = np.arange(outs)[:, None] // (outs // groups) * ins + np.arange(ins)
        spread = (slice(None), slice(None), *(None,) * (entries.ndim - 2))
        self._assign(
            weights, entries, units.reshape(-1, *(1,) * (entries.ndim - 1)), inputs[channel][spread]
        )
        result = eqn.outvars[0].aval.shape
        return Stream(
            np.broadcast_to(
                units.reshape([-1 if a == out[1] else 1 for a in range(len(result))]), result
            )
        )

    def _per_entry(
        self, weights: Weights, labels: Labels, shape: tuple[int, ...]
    ) -> tuple[Any, Any, Labels, Labels]:
        """(distinct entries, which of them stands where, label of each, labels) for entrywise
        operations.
        """
        labels = np.broadcast_to(labels, shape)
        distinct, place = np.unique(np.broadcast_to(weights.entries, shape), return_inverse=True)
        label = np.full(distinct.size, WILD, np.int64)
        np.maximum.at(label, place.ravel(), labels.ravel())
        return distinct, place.reshape(shape), label, labels

    def _bias(self, index: int, eqn: Any, operand: int, weights: Weights, labels: Labels) -> Stream:
        shape = eqn.outvars[0].aval.shape
        distinct, place, label, labels = self._per_entry(weights, labels, shape)
        if not self._equal(label[place], labels):
            labels = self._streamed(index, operand, labels)
            label = np.full(distinct.size, WILD, np.int64)
            np.maximum.at(label, place.ravel(), labels.ravel())
            self.nodes.unite(label[place], labels, _plain("a bias"))
        if self.depth == 0 and index in self.head.additions:
            if distinct.size != place.size:
                raise ValueError("Expected one bias for each output, got a shared one.")
            self.classes[weights.leaf] = np.zeros(self.numerator[weights.leaf].size, np.int64)
            self.classes[weights.leaf][distinct[place.ravel()]] = np.arange(place.size)
        self._assign(weights, distinct, np.where(label == WILD, ONE, label), ONE)
        return Stream(merged(labels, np.where(label == WILD, ONE, label)[place]))

    def _diagonal(self, eqn: Any, weights: Weights, labels: Labels) -> Stream:
        shape = eqn.outvars[0].aval.shape
        distinct, place, label, labels = self._per_entry(weights, labels, shape)
        self.nodes.unite(label[place], labels, _plain("entrywise scaling"))
        units = self._layer(weights, distinct.size, label)
        self._assign(weights, distinct, units, label)
        return Stream(units[place])

    def _streams(self, index: int, eqn: Any, values: list[Any]) -> list[Any]:
        name, params = eqn.primitive.name, eqn.params
        shape = getattr(eqn.outvars[0].aval, "shape", ())
        if name in _SAME or (name in STRUCTURAL and _floating(eqn.outvars[0])):
            move = STRUCTURAL.get(name, lambda params, x: x)
            return [Stream(move(params, self._labels(value))) for value in values]
        if name in _SUMS or name in _COMPARISONS:
            labels = self._meet(
                index, [(k, self._labels(v, shape)) for k, v in enumerate(values)], name
            )
            return [Stream(np.zeros(shape, np.int64) if name in _COMPARISONS else labels)]
        if name == "sign":
            return [Stream(np.zeros(shape, np.int64))]
        if name == "select_n" and self._is_plain(values[0]):
            cases = [(k, self._labels(v, shape)) for k, v in enumerate(values) if k]
            return [Stream(self._meet(index, cases, "a choice"))]
        if name in ("mul", "div") and self._is_plain(values[1]):
            return [Stream(self._labels(values[0], shape))]
        if name == "mul" and self._is_plain(values[0]):
            return [Stream(self._labels(values[1], shape))]
        if name in _REDUCTIONS:
            return [Stream(self._pool(index, self._labels(values[0]), params["axes"], name))]
        if name in _WINDOWS and all(
            d == 1 for d in (*params["base_dilation"], *params["window_dilation"])
        ):
            windows = params["window_dimensions"]
            axes = [axis for axis, size in enumerate(windows) if size > 1]
            label = self._pool(index, self._labels(values[0]), axes, name)
            if all(
                params["window_strides"][axis] == 1
                for axis in range(len(windows))
                if axis not in axes
            ):
                return [Stream(np.broadcast_to(np.expand_dims(label, axes), shape))]
        if name == "pad" and all(min(low, high) >= 0 for low, high, _ in params["padding_config"]):
            fill = int(self._labels(values[1]))
            return [Stream(padded(params["padding_config"], self._labels(values[0]), fill))]
        if name == "concatenate":
            return [Stream(np.concatenate([self._labels(v) for v in values], params["dimension"]))]
        if name == "split":
            cuts = np.cumsum(params["sizes"])[:-1]
            return [
                Stream(part) for part in np.split(self._labels(values[0]), cuts, params["axis"])
            ]
        why = _WHY.get(name, "it is not positively homogeneous, f(c x) = c f(x)")
        for k, value in enumerate(values):
            labels = self._streamed(index, k, self._labels(value))
            self.nodes.unite(
                labels,
                np.zeros_like(labels),
                f"Expected operations that keep positive scales, got {name}: {why}.",
            )
        return [Stream(np.zeros(getattr(v.aval, "shape", ()), np.int64)) for v in eqn.outvars]

    def _is_plain(self, value: Any) -> bool:
        return isinstance(value, Const) or bool(np.all(self.nodes.resolve(value.labels) <= ONE))

    def _meet(self, index: int, cases: list[tuple[int, Labels]], what: str) -> Labels:
        """Labels of an entrywise sum or choice: one scale for all its operands."""
        (first, labels), *others = cases
        if not all(self._equal(labels, other) for _, other in others):
            labels = self._streamed(index, first, labels)
            others = [(k, self._streamed(index, k, other)) for k, other in others]
        for _, other in others:
            self.nodes.unite(labels, other, _plain(what))
            labels = merged(labels, other)
        return labels

    def _pool(self, index: int, labels: Labels, axes: Sequence[int], what: str) -> Labels:
        _, rows, wanted = common(labels, axes)
        if not self._equal(rows, wanted):
            labels = self._streamed(index, 0, labels)
        return self._only(labels, axes, what)


def _plain(what: str) -> str:
    return (
        f"Expected {what} to join streams that all carry a scale, got one of the example itself or "
        "of a constant, whose scale is 1: the layers on the other side could not be hidden "
        "(allow_plain=True leaves them plain)."
    )


def _is_relu(eqn: Any) -> bool:
    """Whether it is the call of `jax.nn.relu`, whose derivative of its own keeps scales as its
    value does.

    That derivative cannot be walked before it is applied, so that no other call with one is
    followed.
    """
    if eqn.primitive.name != "custom_jvp_call":
        return False
    inside = jaxprs.inner(eqn)[0].eqns
    if len(inside) != 1 or inside[0].params.get("name") != "relu":
        return False
    program = jaxprs.flatten(*jaxprs.inner(eqn))[0].eqns
    return len(program) == 1 and program[0].primitive.name == "max"


def _floating(var: Any) -> bool:
    return bool(jnp.issubdtype(var.aval.dtype, jnp.floating))
