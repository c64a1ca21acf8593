"""Where a network may be rescaled unit by unit without changing what it computes: a plan, from its
own program.

ReLU networks keep their output if every number that leaves a unit is multiplied by a positive scale
and every weight that takes it in is divided by it. `plan` traces `apply(params, x)`, follows scales
through dense layers, convolutions, biases, ReLU and leaky ReLU, pools, reshapes, sums of streams
(which then share a scale) and entrywise affine layers, and refuses, with the reason, what does not
commute with scales. Scales are vectors with one number a unit; the multiplier of a parameter is a
quotient of two of them, broadcast, never an array of the parameter's size.

Each layer's product carries the scale of its *branch*; before the next layer (or a sum of two
streams) a *transition* multiplies by stream / branch. Where all branches equal their streams there
is nothing to multiply.

Source: Yang et al., "Efficiently Achieving Secure Model Training and Secure Aggregation to Ensure
Bidirectional Privacy-Preservation in Federated Learning", equations (4) to (6) and (12) to (15),
which treat dense layers without bias; the rest is ours.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax.models import _scale_labels, _scale_of_jaxpr
from fljax.models.functions import Apply
from fljax.types import Params
from fljax_kernels import _platforms
from fljax_kernels.per_example import jaxprs

_TAIL = ("reshape", "squeeze", "convert_element_type", "broadcast_in_dim", "copy", "copy_p")


class Leaf(NamedTuple):
    """One parameter array; int32 arrays that broadcast to its shape.

    numerator, denominator: positions in the scale vector `[1, branches, streams]` whose quotient
      multiplies it.
    classes: of the last layer, which output an entry serves; else None. hidden: of its kernel,
      which input; else None.
    """

    name: str
    numerator: np.ndarray
    denominator: np.ndarray
    classes: np.ndarray | None
    hidden: np.ndarray | None


class Layer(NamedTuple):
    """One hidden layer. branches: `[n]` positions in the scale vector; streams: `[n]`, where they
    go on (0: plain).

    first: it reads the example itself. last: the last layer reads some of its streams.
    """

    name: str
    branches: np.ndarray
    streams: np.ndarray
    first: bool
    last: bool


class Triple(NamedTuple):
    """What a client computes on the perturbed model, means over its batch; what it sends, too.

    body, head: gradient of its loss, in the order of `Plan.body` and `Plan.head`. psi: for the
      body, `[n_L, ...]` each.
    phi: for the body. psi_head: `hidden_shape`, the one row that all Psi of the last kernel share.
    psi_bias: `()`, or one number for the last bias. Phi of the last layer is 0. Without an additive
    vector the last four are ().
    """

    body: list[jax.Array]
    head: list[jax.Array]
    psi: Any = ()
    phi: Any = ()
    psi_head: Any = ()
    psi_bias: Any = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """What `plan` found; `layers`, `leaves` and the counts are its result, the rest serves `hidden`
    and `outputs`.

    Attributes:
      leaves: one for each parameter array, in the order of `jax.tree.leaves`.
      layers: hidden layers, in the order of the program.
      num_branches, num_streams: lengths of the vectors of scales.
      num_outputs, hidden_shape: of the network's output and of the last layer's input.
      sizes: numbers in each parameter array.
      body, head: positions of the hidden parameters and of the last layer's (its kernel first, then
        its bias if any).
      plain: names of layers whose output must stay unscaled, which `allow_plain` allowed.
    """

    leaves: tuple[Leaf, ...]
    layers: tuple[Layer, ...]
    num_branches: int
    num_streams: int
    num_outputs: int
    hidden_shape: tuple[int, ...]
    sizes: tuple[int, ...]
    body: tuple[int, ...]
    head: tuple[int, ...]
    plain: tuple[str, ...]
    structure: Any
    jaxpr: Any
    consts: tuple[Any, ...]
    transitions: dict[tuple[int, int], np.ndarray]
    hidden_var: Any
    hidden_transition: np.ndarray | None
    body_equations: tuple[int, ...]
    head_equations: tuple[int, ...]

    @property
    def has_bias(self) -> bool:
        """Whether the last layer has a bias."""
        return len(self.head) == 2


def plan(apply: Apply, params: Params, x: Any, *, allow_plain: bool = False) -> Plan:
    """The scales that the network `apply` admits.

    Guarantee: for any positive scales, and any additive vector on the last layer, the network with
    perturbed parameters computes the true output plus alpha(x) times that vector, exactly over the
    reals.

    Args:
      apply: `apply(params, x) -> [n_L]` of one example.
      params: arrays or `jax.ShapeDtypeStruct`s.
      x: one example, or its shape.
      allow_plain: leave a layer's output unscaled where it meets an operation that does not commute
        with scales (a normalisation, tanh) or a skip from the example, instead of refusing.
        Recovery stays exact; that layer is then hidden less, see `plain`.

    Raises:
      ValueError: the network has fewer than two layers, its last layer is not dense, a parameter
        serves two layers, or an operation does not commute with positive scales (and is not allowed
        to stay plain), or has a derivative of its own that is not known to (of custom_jvp only ReLU
        is, of custom_vjp none).
    """
    leaves, structure = jax.tree.flatten(params)
    names = [
        jax.tree_util.keystr(path, simple=True, separator=".")
        for path, _ in jax.tree_util.tree_leaves_with_path(params)
    ]

    def shape(leaf: Any) -> jax.ShapeDtypeStruct:
        """As JAX would hold it: of NumPy's float64 it takes half without x64, and warns."""
        return jax.ShapeDtypeStruct(jnp.shape(leaf), jax.dtypes.canonicalize_dtype(leaf.dtype))

    shapes, inputs = [shape(leaf) for leaf in leaves], jax.tree.map(shape, x)
    # Native layers, which are for accelerators: whoever runs the plan rewrites them for CPUs.
    with jaxprs.on_no_mesh(), _platforms.only("cuda", "tpu"):
        jaxpr, consts, out = jaxprs.trace(
            lambda p, x: apply(jax.tree.unflatten(structure, p), x), shapes, inputs
        )
    if not (hasattr(out, "shape") and len(out.shape) == 1):
        raise ValueError(f"Expected apply(params, x) of one array [n_L], got {out}.")
    num = len(leaves)
    head, kernel, bias = _head(jaxpr, num)
    nodes = _scale_labels.Nodes(allow_plain)
    walk = _scale_of_jaxpr.Walk(nodes, shapes, names, head)
    arguments: list[Any] = [
        _scale_of_jaxpr.Weights(k, np.arange(leaf.size).reshape(leaf.shape))
        for k, leaf in enumerate(shapes)
    ]
    arguments += [
        _scale_of_jaxpr.Stream(np.zeros(v.aval.shape, np.int64)) for v in jaxpr.invars[num:]
    ]
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        walk.body(jaxpr, consts, arguments)
    _check_head(walk, kernel, bias, int(out.shape[0]))
    if not walk.layers or not np.any(nodes.resolve(walk.head_labels) > 0):
        raise ValueError(
            "Expected a network of at least two layers, got one whose last layer reads unscaled "
            "numbers."
        )

    branches = np.concatenate([units for _, units, _ in walk.layers])
    streams = np.unique(nodes.resolve(nodes.streams(branches)))
    streams = streams[streams > 0]
    position = np.zeros(len(nodes.parent), np.int64)
    position[branches] = 1 + np.arange(branches.size)
    position[streams] = 1 + branches.size + np.arange(streams.size)

    def positions(labels: np.ndarray) -> np.ndarray:
        return position[np.maximum(nodes.resolve(labels), 0)]

    def compressed(flat: np.ndarray, k: int) -> np.ndarray:
        return _scale_labels.compressed(flat.reshape(shapes[k].shape))

    found = tuple(
        Leaf(
            names[k],
            compressed(positions(walk.numerator[k]), k),
            compressed(positions(walk.denominator[k]), k),
            compressed(walk.classes[k], k) if k in walk.classes else None,
            compressed(walk.hidden_index, k)
            if k == kernel and walk.hidden_index is not None
            else None,
        )
        for k in range(num)
    )
    at_end = set(nodes.resolve(walk.head_labels).tolist())
    layers = []
    for leaf, units, reads in walk.layers:
        going = nodes.resolve(nodes.streams(units))
        layers.append(
            Layer(
                names[leaf],
                position[units],
                position[going],
                not np.any(nodes.resolve(reads) > 0),
                bool(at_end & set(going.tolist())),
            )
        )

    def transition(labels: np.ndarray) -> np.ndarray:
        """Places in `[1, stream / branch]`; 1 for what is a stream already, as a part of a
        concatenation may be.
        """
        place = positions(labels)
        return _scale_labels.compressed(np.where(place <= branches.size, place, 0))

    transitions = {where: transition(labels) for where, labels in walk.transitions.items()}
    hidden_var = jaxpr.eqns[head.equation].invars[head.hidden]
    ends = (kernel,) if bias is None else (kernel, bias)
    body_equations, head_equations = _split(jaxpr, head, num, ends)
    return Plan(
        leaves=found,
        layers=tuple(layers),
        num_branches=int(branches.size),
        num_streams=int(streams.size),
        num_outputs=int(out.shape[0]),
        hidden_shape=tuple(hidden_var.aval.shape),
        sizes=tuple(leaf.size for leaf in shapes),
        body=tuple(k for k in range(num) if k not in ends),
        head=ends,
        plain=tuple(layer.name for layer in layers if np.any(layer.streams == 0)),
        structure=structure,
        jaxpr=jaxpr,
        consts=tuple(consts),
        transitions=transitions,
        hidden_var=hidden_var,
        hidden_transition=transitions.pop((head.equation, head.hidden), None),
        body_equations=body_equations,
        head_equations=head_equations,
    )


def _head(jaxpr: Any, num_leaves: int) -> tuple[_scale_of_jaxpr.Head, int, int | None]:
    """(the last layer, its kernel, its bias), found from the end of the program."""
    origin = {v: (index, eqn) for index, eqn in enumerate(jaxpr.eqns) for v in eqn.outvars}
    leaves = {v: k for k, v in enumerate(jaxpr.invars[:num_leaves])}

    def leaf_of(atom: Any) -> int | None:
        """The parameter that `atom` is made of by moving its entries about."""
        while not jaxprs.is_literal(atom) and atom in origin:
            eqn = origin[atom][1]
            if eqn.primitive.name not in _scale_labels.STRUCTURAL:
                return None
            atom = eqn.invars[0]
        return None if jaxprs.is_literal(atom) else leaves.get(atom)

    (var,), bias, additions = jaxpr.outvars, None, []
    while var in origin:
        index, eqn = origin[var]
        name, sources = eqn.primitive.name, [leaf_of(atom) for atom in eqn.invars]
        if name in _TAIL:
            var = eqn.invars[0]
        elif name == "add" and sources.count(None) == 1 and bias is None:
            var, bias = eqn.invars[sources.index(None)], next(s for s in sources if s is not None)
            additions.append(index)
        elif name == "dot_general" and sources.count(None) == 1:
            hidden = sources.index(None)
            return (
                _scale_of_jaxpr.Head(index, hidden, tuple(additions)),
                sources[1 - hidden] or 0,
                bias,
            )
        else:
            break
    raise ValueError(
        "Expected the last operation of the network to be a dense layer, got another one."
    )


def _check_head(
    walk: _scale_of_jaxpr.Walk, kernel: int, bias: int | None, num_outputs: int
) -> None:
    """Psi of the last layer is sent as one row, which holds where each of its parameters serves one
    output as it is.
    """
    for k in (kernel,) if bias is None else (kernel, bias):
        if not walk.assigned[k].all():
            raise ValueError(
                "Expected the last layer to use all of its parameters, got a part of "
                f"{walk.names[k]}."
            )
        count = np.unique(walk.classes[k]).size
        if count != num_outputs:
            raise ValueError(
                f"Expected the last layer to give each of the {num_outputs} outputs, "
                f"got {count} of {walk.names[k]}, broadcast or cut afterwards."
            )


def _split(
    jaxpr: Any, head: _scale_of_jaxpr.Head, num_leaves: int, ends: tuple[int, ...]
) -> tuple[Any, Any]:
    """Equations that the last layer's input needs, and those that the output needs beside that
    input.
    """
    origin = {v: index for index, eqn in enumerate(jaxpr.eqns) for v in eqn.outvars}
    hidden = jaxpr.eqns[head.equation].invars[head.hidden]

    def needed(target: Any, stop: Any) -> tuple[set[int], set[Any]]:
        equations: set[int] = set()
        roots, queue = set(), [target]
        while queue:
            atom = queue.pop()
            if jaxprs.is_literal(atom) or atom is stop:
                continue
            if atom not in origin:
                roots.add(atom)
            elif origin[atom] not in equations:
                equations.add(origin[atom])
                queue.extend(jaxpr.eqns[origin[atom]].invars)
        return equations, roots

    body, body_roots = needed(hidden, None)
    tail, tail_roots = needed(jaxpr.outvars[0], hidden)
    allowed = {jaxpr.invars[k] for k in ends} | set(jaxpr.constvars)
    if tail_roots - allowed or body_roots & {jaxpr.invars[k] for k in ends}:
        raise ValueError(
            "Expected the last layer to be dense and its parameters to serve it alone, got another "
            "use."
        )
    return tuple(sorted(body)), tuple(sorted(tail))


def _run(
    plan: Plan, equations: tuple[int, ...], env: dict[Any, Any], scales: jax.Array | None
) -> dict[Any, Any]:
    env |= dict(zip(plan.jaxpr.constvars, plan.consts, strict=True))
    for index in equations:
        eqn = plan.jaxpr.eqns[index]
        values = [atom.val if jaxprs.is_literal(atom) else env[atom] for atom in eqn.invars]
        for k, value in enumerate(values):
            if scales is not None and (index, k) in plan.transitions:
                values[k] = value * scales[plan.transitions[index, k]].astype(value.dtype)
        env |= dict(zip(eqn.outvars, jaxprs.bind(eqn, values), strict=True))
    return env


def hidden(plan: Plan, body: list[jax.Array], transition: jax.Array | None, x: Any) -> jax.Array:
    """Input `hidden_shape` of the last layer, for one example.

    Args:
      plan: of the network.
      body: the hidden parameters, in the order of `plan.body`.
      transition: `[num_branches]`, stream / branch; None: nothing to multiply.
      x: one example.
    """
    env: dict[Any, Any] = {
        plan.jaxpr.invars[k]: leaf for k, leaf in zip(plan.body, body, strict=True)
    }
    env |= dict(zip(plan.jaxpr.invars[len(plan.leaves) :], jax.tree.leaves(x), strict=True))
    scales = (
        None if transition is None else jnp.concatenate([jnp.ones(1, transition.dtype), transition])
    )
    with jax.numpy_rank_promotion("allow"):
        value = _run(plan, plan.body_equations, env, scales)[plan.hidden_var]
        if scales is not None and plan.hidden_transition is not None:
            value = value * scales[plan.hidden_transition].astype(value.dtype)
    return value


def outputs(plan: Plan, head: list[jax.Array], hidden: jax.Array) -> jax.Array:
    """Output `[n_L]` of the last layer with parameters `head`, in the order of `plan.head`, for one
    example.
    """
    env: dict[Any, Any] = {
        plan.jaxpr.invars[k]: leaf for k, leaf in zip(plan.head, head, strict=True)
    }
    return _run(plan, plan.head_equations, env | {plan.hidden_var: hidden}, None)[
        plan.jaxpr.outvars[0]
    ]


def split(plan: Plan, params: Params) -> tuple[list[jax.Array], list[jax.Array]]:
    """(body, head) of `params`, as `hidden` and `outputs` want them."""
    leaves = jax.tree.leaves(params)
    return [leaves[k] for k in plan.body], [leaves[k] for k in plan.head]


def join(plan: Plan, body: list[Any], head: list[Any]) -> Params:
    """The inverse of `split`."""
    leaves: list[Any] = [None] * len(plan.leaves)
    for k, leaf in zip((*plan.body, *plan.head), (*body, *head), strict=True):
        leaves[k] = leaf
    return jax.tree.unflatten(plan.structure, leaves)
