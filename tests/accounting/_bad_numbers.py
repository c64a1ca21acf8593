"""For each public function of the accountants: numbers that it can answer and, by argument, numbers
it must not.
"""

import math
from typing import Any

import jax
import numpy as np

import fljax.accounting
from fljax.accounting import (
    correlated,
    float32_tail,
    gaussian,
    groups,
    information,
    mixture,
    pld,
)
from fljax.accounting.information import (
    budget,
    channels,
    clipped,
    compression,
    reconstruction,
    results,
    sums,
    uploads,
)
from fljax.accounting.pld import without_replacement
from fljax.accounting.renyi import (
    allocation,
    conversion,
    gaussian_pair,
    integer_noise,
    kov,
    noise_grid,
    rdp,
)
from fljax.accounting.shared_noise import (
    adversaries,
    colluders,
    least_noise,
    printed,
    theta,
    unequal_clients,
)
from fljax.accounting.shared_noise import exact as view
from fljax.accounting.shared_noise import sparse as sparse_views
from fljax.accounting.subjects import printed as subjects
from fljax.accounting.weighted_sums import curves as weighted_curves
from fljax.accounting.weighted_sums import replaced_record, span, spectrum
from fljax.accounting.weighted_sums import rounds as weighted_rounds
from fljax.accounting.weighted_sums import setups as weighted_setups
from fljax.papers.lightdp import convergence, sensitivity

NAN, INF = math.nan, math.inf
# What no argument of the kind may be.
SIGNED = (NAN, -1.0, -INF)  # >= 0, and infinite is a limit that means something
POSITIVE = (NAN, -1.0, -1e-9, -INF)
FINITE = (NAN, -1.0, -INF, INF)
COUNT = (NAN, -5.0, INF)
PROBABILITY = (NAN, -0.1, 1.5, -INF, INF)
DELTA = (NAN, -1.0, 2.0, INF)
ORDER = (NAN, 1.0, 0.5, 0.0, -2.0)
WHOLE = (NAN, -5, 0, 2.5, INF)  # integers >= 1 on the host

ORDERS = np.array([1.5, 4.0, 32.0])
CURVE = np.array([0.02, 0.05, 0.4])


class Case:
    """`fun(**good)` with `bad` numbers for its arguments; `fixed` arguments are not numbers."""

    def __init__(self, fun: Any, good: dict[str, Any], bad: dict[str, Any], **fixed: Any) -> None:
        self.fun, self.good, self.bad, self.fixed = fun, good, bad, fixed
        self.name = f"{fun.__module__.removeprefix('fljax.accounting.')}.{fun.__name__}"

    def __repr__(self) -> str:
        return self.name + "".join(
            f"-{value}" for value in self.fixed.values() if isinstance(value, str | bool)
        )


def _named(like, fun):
    fun.__module__, fun.__name__ = like.__module__, like.__name__
    return fun


def _on_path(fun, **options):
    """A function of a graph as one of numbers: four clients in a row, the number of the first is an
    argument.
    """

    def of_numbers(own_variance, pair_variance, first_client, **rest):
        xp = jax.numpy if isinstance(own_variance, jax.core.Tracer) else np
        clients = xp.asarray([[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]])
        edges = (clients + first_client * np.asarray([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])).astype(
            np.int32
        )
        return fun(
            view.PairGraph(own_variance * xp.ones(4), edges, pair_variance * xp.ones(3)),
            **rest,
            **options,
        )

    return _named(fun, of_numbers)


GRAPH = {"own_variance": 0.5, "pair_variance": 2.0, "first_client": 0.0}
BAD_GRAPH = {"own_variance": FINITE, "pair_variance": FINITE, "first_client": (-1.0, 1.0, 4.0)}
WEIGHTED = {
    "orders": ORDERS,
    "floor": 2.0,
    "l2_clip_norm": 1.0,
    "num_records": 50.0,
    "batch_size": 10.0,
}
BAD_WEIGHTED = {
    "orders": ORDER,
    "floor": SIGNED,
    "l2_clip_norm": FINITE,
    "num_records": FINITE,
    "batch_size": FINITE,
}


def _part(tree, *names):
    return {name: tree[name] for name in names}


UNSAMPLED = ("orders", "floor", "l2_clip_norm", "num_records")
PAIR = {"mean_shift": np.array([0.5, 0.2]), "cov1": 1.0, "cov2": 1.2, "orders": ORDERS}
BAD_PAIR = {
    "mean_shift": (NAN, INF),
    "cov1": (NAN, -1.0, 0.0, INF),
    "cov2": (NAN, -1.0, 0.0),
    "orders": ORDER,
}

TRACED = [
    Case(
        noise_grid.poisson_gaussian_noise,
        {"sampling_prob": 0.01, "num_steps": 100.0, "epsilon": 2.0, "delta": 1e-5},
        {"sampling_prob": PROBABILITY, "num_steps": COUNT, "epsilon": FINITE, "delta": DELTA},
        orders=(1.5, 4.0, 32.0),
    ),
    Case(
        conversion.rdp_to_epsilons,
        {"rdp": CURVE, "orders": ORDERS, "delta": 1e-5},
        {"rdp": SIGNED, "orders": ORDER, "delta": DELTA},
    ),
    Case(
        conversion.rdp_to_epsilon,
        {"rdp": CURVE, "orders": ORDERS, "delta": 1e-5},
        {"rdp": SIGNED, "orders": ORDER, "delta": DELTA},
    ),
    Case(
        conversion.rdp_to_log_deltas,
        {"rdp": CURVE, "orders": ORDERS, "epsilon": 2.0},
        {"rdp": SIGNED, "orders": ORDER, "epsilon": SIGNED},
    ),
    Case(
        conversion.rdp_to_delta,
        {"rdp": CURVE, "orders": ORDERS, "epsilon": 2.0},
        {"rdp": SIGNED, "orders": ORDER, "epsilon": SIGNED},
    ),
    Case(
        conversion.epsilon_to_rdp,
        {"epsilon": 2.0, "delta": 1e-5, "orders": ORDERS},
        {"epsilon": FINITE, "delta": DELTA, "orders": ORDER},
    ),
    Case(conversion.zcdp_to_epsilon, {"rho": 0.1, "delta": 1e-5}, {"rho": SIGNED, "delta": DELTA}),
    Case(
        rdp.gaussian,
        {"noise_multiplier": 2.0, "orders": ORDERS},
        {"noise_multiplier": SIGNED, "orders": ORDER},
    ),
    Case(
        rdp.laplace,
        {"noise_multiplier": 2.0, "orders": ORDERS},
        {"noise_multiplier": SIGNED, "orders": ORDER},
    ),
    Case(rdp.pure, {"epsilon": 0.5, "orders": ORDERS}, {"epsilon": SIGNED, "orders": ORDER}),
    Case(
        rdp.poisson_gaussian,
        {"noise_multiplier": 2.0, "sampling_prob": 0.01, "orders": np.array([1.5, 4.0])},
        {"noise_multiplier": SIGNED, "sampling_prob": PROBABILITY, "orders": (*ORDER, INF)},
    ),
    Case(
        rdp.poisson_gaussian,
        {"noise_multiplier": 2.0, "sampling_prob": 0.01},
        {"noise_multiplier": SIGNED, "sampling_prob": PROBABILITY},
        orders=(1.5, 4.0),
    ),
    Case(
        rdp.sampled_without_replacement,
        {"noise_multiplier": 2.0, "sampling_rate": 0.01},
        {"noise_multiplier": SIGNED, "sampling_rate": PROBABILITY},
        orders=(1.5, 4.0),
    ),
    Case(
        _named(rdp.group, lambda rdp: fljax.accounting.rdp.group(rdp, (4.0, 32.0), 1)[0]),
        {"rdp": CURVE[1:]},
        {"rdp": SIGNED},
    ),
    Case(gaussian.log_delta, {"mu": 1.0, "epsilon": 1.0}, {"mu": SIGNED, "epsilon": SIGNED}),
    Case(gaussian.mu_to_delta, {"mu": 1.0, "epsilon": 1.0}, {"mu": SIGNED, "epsilon": SIGNED}),
    Case(gaussian.mu_to_epsilon, {"mu": 1.0, "delta": 1e-5}, {"mu": SIGNED, "delta": DELTA}),
    Case(
        gaussian.mu_to_epsilon,
        {"mu": 0.0, "log_delta": -9.0},
        {"mu": SIGNED, "log_delta": (NAN, 0.7, INF)},
    ),
    Case(
        gaussian.epsilon_to_mu,
        {"epsilon": 1.0, "delta": 1e-5},
        {"epsilon": FINITE, "delta": (0.0, *DELTA)},
    ),
    Case(
        gaussian.epsilon_to_mu,
        {"epsilon": 1.0, "log_delta": -9.0},
        {"epsilon": FINITE, "log_delta": (NAN, 0.7)},
    ),
    Case(gaussian.compose, {"mus": np.array([0.1, 0.2])}, {"mus": SIGNED}),
    Case(gaussian.trade_off, {"mu": 1.0, "fpr": 0.1}, {"mu": SIGNED, "fpr": PROBABILITY}),
    Case(gaussian.tpr_at_fpr, {"mu": 1.0, "fpr": 0.1}, {"mu": SIGNED, "fpr": PROBABILITY}),
    Case(gaussian.advantage, {"mu": 1.0}, {"mu": SIGNED}),
    Case(gaussian_pair.gaussian_pair, PAIR, BAD_PAIR),
    Case(
        gaussian_pair.gaussian_pair,
        PAIR | {"cov1": np.array([1.0, 1.1]), "cov2": np.array([1.2, 1.3])},
        BAD_PAIR,
    ),
    Case(
        gaussian_pair.gaussian_pair,
        PAIR | {"cov1": np.diag([1.0, 1.1]), "cov2": np.diag([1.2, 1.3])},
        BAD_PAIR | {"mean_shift": (NAN,)},
    ),
    Case(
        replaced_record.divergence,
        {"first_square": 1.0, "second_square": 0.5, "product": 0.1}
        | {"orders": ORDERS, "floor": 2.0, "weight": 0.01, "num_records": 50.0},
        {
            "first_square": SIGNED,
            "second_square": SIGNED,
            "product": (NAN, 2.0, -2.0, INF),
            "orders": ORDER,
        }
        | {"floor": SIGNED, "weight": SIGNED, "num_records": FINITE},
    ),
    Case(
        replaced_record.worst, WEIGHTED | {"orders": ORDERS[:1]}, BAD_WEIGHTED | {"floor": SIGNED}
    ),
    Case(
        spectrum.lift,
        {"values": np.array([0.1, 3.0]), "floor": 1.0},
        {"values": SIGNED, "floor": FINITE},
    ),
    Case(
        spectrum.savings,
        {"values": np.array([0.1, 3.0]), "floor": 1.0, "dimension": 10.0},
        {"values": SIGNED, "floor": FINITE, "dimension": FINITE},
    ),
    Case(
        _named(view.covariance, lambda **n: _on_path(view.covariance)(**n).diagonal()),
        GRAPH,
        BAD_GRAPH,
    ),
    *(
        Case(_on_path(fun), GRAPH | {"sensitivity": 1.0}, BAD_GRAPH | {"sensitivity": SIGNED})
        for fun in (view.exact_mu, view.sum_mu, view.own_upload_mu, printed.loss_variance)
    ),
    Case(
        _on_path(view.certificate),
        GRAPH | {"sensitivity": 1.0, "num_colluders": 1.0},
        BAD_GRAPH | {"sensitivity": SIGNED, "num_colluders": COUNT},
    ),
    Case(
        _on_path(view.average_variance, responders=np.array([True, True, True, False])),
        GRAPH,
        BAD_GRAPH,
    ),
    Case(
        view.complete_mu,
        {
            "own_variance": 0.5,
            "pair_variance": 2.0,
            "num_seen": 4.0,
            "num_unseen": 1.0,
            "sensitivity": 1.0,
        },
        {
            "own_variance": SIGNED,
            "pair_variance": SIGNED,
            "num_seen": (0.0, *COUNT),
            "num_unseen": COUNT,
        }
        | {"sensitivity": SIGNED},
    ),
    Case(
        printed.complete_loss_variance,
        {"ratio": 2.0, "num_honest": 4.0},
        {"ratio": SIGNED, "num_honest": COUNT},
    ),
    Case(printed.loss_tail, {"epsilon": 1.0, "mu": 0.5}, {"epsilon": SIGNED, "mu": SIGNED}),
    Case(weighted_curves.joint, WEIGHTED, BAD_WEIGHTED),
    Case(weighted_curves.joint, WEIGHTED, BAD_WEIGHTED, lifted=True, instance=True),
    Case(weighted_curves.unsampled, _part(WEIGHTED, *UNSAMPLED), _part(BAD_WEIGHTED, *UNSAMPLED)),
    Case(
        weighted_curves.clipped_update,
        _part(WEIGHTED, *UNSAMPLED[:3]),
        _part(BAD_WEIGHTED, *UNSAMPLED[:3]),
    ),
    Case(
        weighted_curves.theorem_2,
        {"least_eigenvalue": 2.0}
        | _part(WEIGHTED, "orders", "l2_clip_norm", "num_records", "batch_size"),
        {"least_eigenvalue": SIGNED}
        | _part(BAD_WEIGHTED, "orders", "l2_clip_norm", "num_records", "batch_size"),
    ),
    Case(weighted_curves.theorem_4, WEIGHTED, BAD_WEIGHTED),
    Case(weighted_curves.theorem_4, WEIGHTED, BAD_WEIGHTED, printed_interval=True),
    Case(weighted_curves.isotropic_printed, WEIGHTED, BAD_WEIGHTED),
    Case(
        weighted_curves.gaussian_weights,
        {"noise_multiplier": 2.0, "sampling_rate": 0.5, "orders": ORDERS},
        {"noise_multiplier": SIGNED, "sampling_rate": FINITE, "orders": ORDER},
    ),
]

RING = view.pair_graph([[0, 1], [1, 2], [0, 2]], num_clients=3, own_variance=0.5, pair_variance=2.0)
SETUP = {
    "num_clients": 3,
    "num_records": 50,
    "batch_size": 10.0,
    "l2_clip_norm": 1.0,
    "noise_stddev": 1.0,
}
BAD_SETUP = {"num_clients": WHOLE, "num_records": WHOLE} | dict.fromkeys(
    ("batch_size", "l2_clip_norm", "noise_stddev"), (0.0, *FINITE)
)
CONVEX = {"gap": 1.0, "num_rounds": 3, "dimension": 5, "variance": 0.1}
BAD_CONVEX = {"gap": FINITE, "num_rounds": WHOLE, "dimension": WHOLE, "variance": FINITE}
CONSTANTS = {"smoothness": 0.3, "polyak_lojasiewicz": 0.1, "dissimilarity": 1.2}
BAD_CONSTANTS = dict.fromkeys(CONSTANTS, (0.0, *FINITE))
KNOWN = {"covariance_source": "public"}
CHANNEL = information.natural([1.0, 0.5], nats=0.3, **KNOWN)
LEAKAGE = CHANNEL.one_use()
TARGET = {"epsilon": 1.0, "delta": 1e-5}
BAD_TARGET = {"epsilon": FINITE, "delta": DELTA}
ROUNDS = {"noise_multiplier": 1.0, "sampling_rate": 0.1, "num_rounds": 5}
BAD_ROUNDS = {"noise_multiplier": FINITE, "sampling_rate": PROBABILITY, "num_rounds": WHOLE}
SAMPLED = {"noise_multiplier": 1.0, "sampling_prob": 0.1, "steps": 5}
BAD_SAMPLED = {"noise_multiplier": FINITE, "sampling_prob": PROBABILITY, "steps": WHOLE}
ONE_SUBJECT = fljax.accounting.PrivacyEvent(
    mechanism=fljax.accounting.events.Gaussian(2.0),
    privacy_unit="subject",
    neighboring_relation="ADD_OR_REMOVE_ONE",
)
PAIRS = {"num_clients": 4, "num_colluders": 1}
BAD_PAIRS = {"num_clients": WHOLE, "num_colluders": (NAN, -1, 4, 0.5, INF)}


def _with(like, convert):
    """`like` as a function of plain numbers: `convert` makes its arguments of them."""
    return _named(like, lambda **numbers: like(**convert(**numbers)))


def _gaps(like):
    return _with(
        like,
        lambda smoothness, polyak_lojasiewicz, dissimilarity, **rest: {
            "problem": convergence.Problem(smoothness, polyak_lojasiewicz, dissimilarity),
            **rest,
        },
    )


def _rounds(like, **fixed):
    """A function of a `wfna_curves.Setup` as one of its numbers."""
    names = tuple(SETUP)
    return _with(
        like,
        lambda **n: {
            "setup": weighted_setups.Setup(**{k: v for k, v in n.items() if k in names}),
            **{k: v for k, v in n.items() if k not in names},
            **fixed,
        },
    )


def _graph(like, **fixed):
    return _with(
        like,
        lambda own_variance, pair_variance, **rest: {
            "graph": RING._replace(
                own_variance=np.full(3, own_variance), pair_variance=np.full(3, pair_variance)
            ),
            **rest,
            **fixed,
        },
    )


NOISE = {"own_variance": 0.5, "pair_variance": 2.0}
BAD_NOISE = {"own_variance": FINITE, "pair_variance": FINITE}

MOVES = {"l2_sensitivity": 3.0, "l1_sensitivity": 5.0, "dimension": 4}
BAD_MOVES = {
    "l2_sensitivity": (0.0, 0.9, 1e200, *FINITE),
    "l1_sensitivity": (0.0, 0.9, 1e200, *FINITE),
    "dimension": WHOLE,
}
SUM = {"stddev": 2.0, "count": 5}
BAD_SUM = {"stddev": (0.0, 1e-200, 1e200, *FINITE), "count": (*WHOLE, 10**101)}

BANDS = {"num_rounds": 12, "bands": 3}

HOST = [
    Case(
        float32_tail.delta,
        {"num_coordinates": 3, "delta": 1e-5},
        {"num_coordinates": WHOLE, "delta": DELTA},
        releases=((2.0, 1),),
    ),
    Case(
        allocation.gaussian,
        {"noise_multiplier": 2.0, "num_rounds": 20, "times": 3, "orders": 2.0},
        {
            "noise_multiplier": (0.0, *FINITE),
            "num_rounds": WHOLE,
            "times": (21, *WHOLE),
            "orders": (*ORDER, INF),
        },
    ),
    Case(correlated.tree, {"num_rounds": 12}, {"num_rounds": WHOLE}),
    Case(correlated.square_root, BANDS, dict.fromkeys(BANDS, WHOLE)),
    Case(correlated.banded, BANDS, dict.fromkeys(BANDS, WHOLE), error="max"),
    Case(correlated.endless_bands, BANDS, dict.fromkeys(BANDS, WHOLE)),
    Case(correlated.dense_banded, BANDS, dict.fromkeys(BANDS, WHOLE)),
    Case(
        correlated.banded_inverse,
        BANDS | {"min_separation": 4},
        dict.fromkeys((*BANDS, "min_separation"), WHOLE),
    ),
    Case(
        correlated.buffered,
        {"num_rounds": 12, "num_buffers": 2, "min_separation": 4},
        dict.fromkeys(("num_rounds", "num_buffers", "min_separation"), WHOLE),
    ),
    Case(
        correlated.most_participations,
        {"num_rounds": 12, "min_separation": 4, "participations": 2},
        dict.fromkeys(("num_rounds", "min_separation", "participations"), WHOLE),
    ),
    Case(
        correlated.sensitivity,
        {"min_separation": 4, "participations": 2},
        dict.fromkeys(("min_separation", "participations"), WHOLE),
        strategy=correlated.tree(12),
    ),
    Case(integer_noise.lengths, MOVES, BAD_MOVES),
    Case(integer_noise.log_distance, SUM, BAD_SUM),
    Case(
        integer_noise.discrete_gaussian_sum,
        SUM | MOVES | {"orders": 2.0},
        BAD_SUM | BAD_MOVES | {"orders": (*ORDER, INF)},
    ),
    Case(
        integer_noise.skellam,
        {"variance": 4.0, "orders": 2.0} | MOVES,
        {"variance": (0.0, *FINITE), "orders": (*ORDER, INF)} | BAD_MOVES,
    ),
    Case(
        integer_noise.log_masses,
        {"variance": 4.0, "reach": 20},
        {"variance": (0.0, *FINITE), "reach": WHOLE},
    ),
    Case(
        rdp.bounded_range,
        {"epsilon": 0.5, "orders": ORDERS},
        {"epsilon": SIGNED, "orders": (*ORDER, INF)},
    ),
    Case(conversion.group_privacy, TARGET | {"size": 3}, BAD_TARGET | {"size": WHOLE}),
    Case(conversion.compose_optimal, TARGET | {"count": 3}, BAD_TARGET | {"count": WHOLE}),
    Case(
        conversion.compose_advanced,
        TARGET | {"count": 3, "slack": 1e-6},
        BAD_TARGET | {"count": WHOLE, "slack": (0.0, *DELTA)},
    ),
    Case(
        conversion.classic_gaussian_noise,
        TARGET | {"epsilon": 0.5},
        {"epsilon": (2.0, *FINITE), "delta": DELTA},
    ),
    Case(
        conversion.epsilon_delta_trade_off, TARGET | {"fpr": 0.1}, BAD_TARGET | {"fpr": PROBABILITY}
    ),
    Case(
        conversion.reconstruction_bound,
        {"prior": 0.1},
        {"prior": PROBABILITY},
        trade_off=lambda a: 1 - a,
    ),
    Case(rdp.as_orders, {"orders": 2.0}, {"orders": (*ORDER, INF)}),
    *(
        Case(
            fun,
            {
                "stddev": 1.0,
                "sensitivities": np.array([1.0, 2.0]),
                "sampling_probs": np.array([0.1, 0.2]),
            },
            {"stddev": (0.0, *FINITE), "sensitivities": FINITE, "sampling_probs": PROBABILITY},
            orders=(2.0, 4.0),
        )
        for fun in (rdp.gaussian_mixture, rdp.replaced_gaussian_mixture)
    ),
    *(
        Case(fun, TARGET | {"size": 3}, BAD_TARGET | {"size": WHOLE}, form=form)
        for fun in (groups.group_delta, groups.split_budget)
        for form in groups.FORMS
    ),
    Case(
        groups.rounds_within,
        {"num_rounds": 9, "silos_per_subject": 2},
        dict.fromkeys(("num_rounds", "silos_per_subject"), WHOLE),
    ),
    Case(
        kov.exact_slack,
        {"epsilon": 0.1, "count": 5, "total": 0.3},
        {"epsilon": FINITE, "count": WHOLE} | {"total": FINITE},
    ),
    *(
        Case(
            fun,
            TARGET | {"count": 5, "slack": 1e-6},
            BAD_TARGET | {"count": WHOLE, "slack": (0.0, *DELTA)},
        )
        for fun in (kov.grid, kov.real, kov.simplified)
    ),
    Case(
        mixture.subject_sampling_prob,
        {"num_items": 3, "item_sampling_prob": 0.1},
        {"num_items": WHOLE, "item_sampling_prob": PROBABILITY},
    ),
    Case(
        mixture.subject_fixed_size_prob,
        {"num_items": 3, "population": 50, "batch_size": 5},
        {"num_items": (60, *WHOLE), "population": (2, *WHOLE), "batch_size": (60, *WHOLE)},
    ),
    Case(
        mixture.item_count_pmf,
        {"num_items": 3, "item_sampling_prob": 0.1, "cap": 2},
        {"num_items": WHOLE, "item_sampling_prob": PROBABILITY, "cap": WHOLE},
    ),
    Case(
        mixture.item_sum,
        {"noise_multiplier": 1.0, "num_items": 3, "item_sampling_prob": 0.1, "cap": 2},
        {
            "noise_multiplier": FINITE,
            "num_items": WHOLE,
            "item_sampling_prob": PROBABILITY,
            "cap": WHOLE,
        },
    ),
    Case(
        mixture.two_point,
        {"noise_multiplier": 1.0, "subject_prob": 0.1, "sensitivity": 1.0},
        {"noise_multiplier": FINITE, "subject_prob": PROBABILITY, "sensitivity": (0.0, *FINITE)},
    ),
    Case(
        pld.api.poisson_gaussian_interval,
        SAMPLED | {"delta": 1e-5},
        BAD_SAMPLED | {"delta": (0.0, *DELTA)},
    ),
    Case(
        pld.api.poisson_gaussian_interval,
        SAMPLED | {"epsilon": 1.0},
        {"epsilon": FINITE},
        accuracy=1e-2,
    ),
    Case(
        pld.api.poisson_gaussian_epsilon,
        SAMPLED | {"delta": 1e-5},
        BAD_SAMPLED | {"delta": (0.0, *DELTA)},
    ),
    Case(
        pld.api.poisson_gaussian_delta,
        SAMPLED | {"epsilon": 1.0},
        BAD_SAMPLED | {"epsilon": FINITE},
    ),
    Case(
        without_replacement.sampled_epsilon,
        ROUNDS | {"delta": 1e-5},
        BAD_ROUNDS | {"delta": (0.0, *DELTA)},
    ),
    Case(without_replacement.delta, ROUNDS | {"epsilon": 1.0}, BAD_ROUNDS | {"epsilon": FINITE}),
    Case(
        _with(
            without_replacement.estimate,
            lambda delta, **n: {"rounds": without_replacement.Rounds(**n), "delta": delta},
        ),
        ROUNDS | {"delta": 1e-5},
        BAD_ROUNDS | {"delta": (0.0, *DELTA)},
    ),
    Case(
        sensitivity.full_batch_step,
        {"learning_rate": 0.1, "l2_clip_norm": 1.0, "num_examples": 5},
        {"learning_rate": FINITE, "l2_clip_norm": FINITE, "num_examples": WHOLE},
    ),
    Case(
        sensitivity.convex_sgd,
        {
            "learning_rate": 0.1,
            "lipschitz": 1.0,
            "smoothness": 1.0,
            "num_epochs": 2,
            "batch_size": 5,
        },
        {"learning_rate": (9.0, *FINITE), "lipschitz": FINITE, "smoothness": FINITE}
        | {"num_epochs": WHOLE, "batch_size": WHOLE},
        convex=True,
    ),
    Case(
        span.residual,
        {"rows": np.eye(3)[:2], "vector": np.ones(3), "rtol": 1e-10},
        {"rows": (NAN, INF), "vector": (NAN, INF), "rtol": FINITE},
    ),
    Case(
        span.condition,
        {"gradients": np.ones((2, 1, 3)), "replacement": np.ones(3)},
        {"gradients": (NAN, INF), "replacement": (NAN, INF)},
        client=0,
        record=0,
    ),
    Case(
        span.least_delta,
        {"batch_size": 5.0, "num_records": 10},
        {"batch_size": FINITE, "num_records": WHOLE},
        sampling="subset",
    ),
    Case(
        span.distinguish,
        {"known": np.eye(3)[:2], "aggregate": np.ones(3), "threshold": 0.1},
        {"known": (NAN, INF), "aggregate": (NAN, INF), "threshold": FINITE},
    ),
    Case(span.least_eigenvalue, {"gradients": np.eye(3)}, {"gradients": (NAN, INF)}),
    Case(
        convergence.noise_norm,
        {"dimension": 5, "variance": 1.0},
        {"dimension": WHOLE, "variance": FINITE},
    ),
    *(
        Case(
            _gaps(fun),
            CONVEX | CONSTANTS | {"lipschitz": 1.0},
            BAD_CONVEX | BAD_CONSTANTS | {"lipschitz": FINITE},
        )
        for fun in (convergence.printed, convergence.corrected)
    ),
    Case(_gaps(convergence.sharpened), CONVEX | CONSTANTS, BAD_CONVEX | BAD_CONSTANTS),
    Case(
        convergence.sampling_excess,
        {"num_clients": 5, "num_stragglers": 1, "dissimilarity": 1.2},
        {
            "num_clients": WHOLE,
            "num_stragglers": (NAN, -1, 5, 0.5),
            "dissimilarity": (0.5, *FINITE),
        },
    ),
    Case(
        _gaps(convergence.gradient_steps),
        CONVEX | CONSTANTS | {"learning_rate": 0.5, "num_clients": 5, "num_stragglers": 1},
        BAD_CONVEX
        | BAD_CONSTANTS
        | {
            "learning_rate": (0.0, 99.0, *FINITE),
            "num_clients": WHOLE,
            "num_stragglers": (NAN, -1, 5, 0.5),
        },
    ),
    Case(
        weighted_curves.largest_order,
        _part(WEIGHTED, *tuple(WEIGHTED)[1:]),
        _part(BAD_WEIGHTED, *tuple(WEIGHTED)[1:]),
        lifted=True,
    ),
    Case(
        _rounds(weighted_setups.curve, sampling="gaussian", noise="isotropic"),
        SETUP,
        BAD_SETUP,
    ),
    Case(
        weighted_setups.noiseless,
        {
            "least_eigenvalues": np.ones(3),
            "l2_clip_norm": 1.0,
            "num_records": 50,
            "batch_size": 10.0,
        },
        {"least_eigenvalues": (0.0, *FINITE), "l2_clip_norm": (0.0, *FINITE), "num_records": WHOLE}
        | {"batch_size": (0.0, *FINITE)},
        scope="uniform",
    ),
    Case(
        weighted_rounds.amplify,
        TARGET | {"sampling_rate": 0.1},
        BAD_TARGET | {"sampling_rate": (0.0, *PROBABILITY)},
    ),
    Case(
        weighted_rounds.best_epsilon,
        {"delta": 1e-5, "num_rounds": 2},
        {"delta": (0.0, *DELTA), "num_rounds": WHOLE},
        curve=weighted_setups.curve("none", "isotropic", weighted_setups.Setup(**SETUP)),
    ),
    Case(_rounds(weighted_rounds.event), SETUP, BAD_SETUP),
    Case(
        _rounds(weighted_rounds.epsilon, sampling="none", noise="isotropic", composition="pld"),
        SETUP | {"num_rounds": 2, "delta": 1e-5},
        BAD_SETUP | {"num_rounds": WHOLE, "delta": (0.0, *DELTA)},
    ),
    Case(
        _rounds(
            weighted_rounds.least_noise_stddev,
            sampling="none",
            noise="isotropic",
            composition="pld",
        ),
        SETUP | {"target_epsilon": 1.0, "num_rounds": 2, "delta": 1e-5, "tolerance": 1e-2},
        BAD_SETUP
        | {
            "target_epsilon": (0.0, *FINITE),
            "num_rounds": WHOLE,
            "delta": (0.0, *DELTA),
            "tolerance": FINITE,
        },
    ),
    Case(
        _graph(view.worst_mu),
        NOISE | {"num_colluders": 1, "sensitivity": 1.0},
        BAD_NOISE | {"num_colluders": (NAN, -1, 3, 0.5), "sensitivity": FINITE},
    ),
    Case(
        _graph(colluders.worst_case),
        NOISE | {"num_colluders": 1, "sensitivity": 1.0, "failure_prob": 0.1},
        BAD_NOISE
        | {"num_colluders": (NAN, -1, 3, 0.5), "sensitivity": FINITE, "failure_prob": DELTA},
    ),
    Case(
        least_noise.best_ratio,
        {"num_honest": 4.0, "straggling": 0.5, "ways": 2.0},
        {"num_honest": COUNT, "straggling": FINITE, "ways": COUNT},
    ),
    Case(
        _graph(view.assess),
        NOISE | {"num_colluders": 1, "sensitivity": 1.0},
        BAD_NOISE | {"num_colluders": (NAN, -1, 3, 0.5), "sensitivity": FINITE},
    ),
    Case(
        _graph(sparse_views.mu_interval),
        NOISE | {"sensitivity": 1.0, "tolerance": 1e-9},
        BAD_NOISE | {"sensitivity": FINITE, "tolerance": FINITE},
    ),
    Case(
        _graph(printed.worst_loss_variance),
        NOISE | {"num_colluders": 1, "sensitivity": 1.0},
        BAD_NOISE | {"num_colluders": (NAN, -1, 3, 0.5), "sensitivity": FINITE},
    ),
    Case(
        _graph(
            printed.disturbance,
            responders=np.ones(3, bool),
            colluders=np.array([False, False, True]),
        ),
        NOISE,
        BAD_NOISE,
    ),
    Case(printed.largest_variance, TARGET, BAD_TARGET),
    Case(printed.condition, TARGET | {"variance": 0.01}, BAD_TARGET | {"variance": FINITE}),
    *(
        Case(
            fun, {"num_honest": 4.0, "straggling": 0.5}, {"num_honest": COUNT, "straggling": FINITE}
        )
        for fun in (printed.quartic, printed.best_ratio, least_noise.best_ratio)
    ),
    Case(
        least_noise.straggler_moments,
        {"num_clients": 4, "straggler_pmf": np.array([0.5, 0.5])},
        {"num_clients": (1, *WHOLE), "straggler_pmf": (NAN, -1.0, 2.0, INF)},
    ),
    Case(
        least_noise.honest_neighbors,
        {"num_neighbors": 2, "failure_prob": 0.0} | PAIRS,
        {"num_neighbors": (4, *WHOLE), "failure_prob": DELTA} | BAD_PAIRS,
    ),
    Case(
        least_noise.pair_calibration,
        PAIRS
        | TARGET
        | {"straggler_pmf": np.array([0.5, 0.5]), "sensitivity": 1.0, "num_rounds": 2}
        | {"failure_prob": 0.0, "largest_ratio": 1e4},
        BAD_PAIRS
        | BAD_TARGET
        | {"straggler_pmf": (NAN, -1.0, 2.0), "sensitivity": (0.0, *FINITE)}
        | {"num_rounds": WHOLE, "failure_prob": DELTA, "largest_ratio": FINITE},
    ),
    Case(
        least_noise.client_variance,
        PAIRS | {"num_stragglers": 1, "mu": 0.5, "sensitivity": 1.0},
        BAD_PAIRS
        | {
            "num_stragglers": (NAN, -1, 3, 0.5),
            "mu": (0.0, *FINITE),
            "sensitivity": (0.0, *FINITE),
        },
        mechanism="secure_sum",
    ),
    Case(
        least_noise.expected_variance,
        PAIRS | {"straggler_pmf": np.array([0.5, 0.5]), "mu": 0.5, "sensitivity": 1.0},
        BAD_PAIRS
        | {"straggler_pmf": (NAN, -1.0, 2.0), "mu": (0.0, *FINITE), "sensitivity": (0.0, *FINITE)},
        mechanism="pair_noise",
    ),
    Case(
        unequal_clients.average_costs,
        {"probabilities": np.array([0.5, 0.5])},
        {"probabilities": (NAN, -1.0, 2.0)},
        edges=np.array([[0, 1], [1, 2]]),
        stragglers=np.array([[False, False, False], [True, False, False]]),
    ),
    Case(
        unequal_clients.heterogeneous,
        {"probabilities": np.array([0.5, 0.5]), "mu": 1.0, "sensitivity": 1.0, "num_colluders": 0}
        | {"tolerance": 1e-3},
        {"probabilities": (NAN, -1.0, 2.0), "mu": (0.0, *FINITE), "sensitivity": (0.0, *FINITE)}
        | {"num_colluders": (NAN, -1, 3, 0.5), "tolerance": FINITE},
        edges=np.array([[0, 1], [1, 2], [0, 2]]),
        stragglers=np.array([[True, False, False], [False, True, False]]),
    ),
    Case(
        theta.sensitivity,
        {"l2_clip_norm": 1.0, "batch_size": 5},
        {"l2_clip_norm": (0.0, *FINITE), "batch_size": WHOLE},
        unit="example_replace",
    ),
    Case(
        theta.theta,
        {"num_clients": 3, "own_stddev": 1.0, "pair_stddev": 2.0},
        {"num_clients": (1, *WHOLE), "own_stddev": FINITE, "pair_stddev": FINITE},
        edges=np.array([[0, 1], [1, 2]]),
    ),
    Case(
        printed.complete_theta,
        {"num_clients": 3, "own_stddev": 1.0, "pair_stddev": 2.0},
        {"num_clients": WHOLE, "own_stddev": FINITE, "pair_stddev": FINITE},
    ),
    Case(
        printed.theorem_10,
        {"num_clients": 3, "own_stddev": 1.0, "pair_stddev": 2.0},
        {"num_clients": WHOLE, "own_stddev": (0.0, *FINITE), "pair_stddev": (0.0, *FINITE)},
    ),
    Case(
        printed.theorem_11_conditions,
        {"num_clients": 3, "delta": 1e-5},
        {"num_clients": WHOLE, "delta": (0.0, *DELTA)},
    ),
    Case(
        printed.theorem_11,
        {
            "num_clients": 1000,
            "out_degree": 200,
            "own_stddev": 1.0,
            "pair_stddev": 2.0,
            "delta": 1e-5,
        },
        {"num_clients": WHOLE, "out_degree": (5, *WHOLE), "own_stddev": (0.0, *FINITE)}
        | {"pair_stddev": (0.0, *FINITE), "delta": (0.0, *DELTA)},
    ),
    Case(
        printed.claimed_theta,
        {"num_clients": 9, "noise_multiplier": 1.0, "variance_ratio": 2.0, "delta": 1e-5},
        {"num_clients": WHOLE, "noise_multiplier": FINITE, "variance_ratio": FINITE}
        | {"delta": (0.0, *DELTA)},
        out_degree=None,
    ),
    Case(
        colluders.unit_mu,
        {"num_clients": 4, "variance_ratio": 2.0, "num_colluders": 1, "failure_prob": 0.0},
        {"num_clients": WHOLE, "variance_ratio": FINITE, "num_colluders": (NAN, -1, 0.5, INF)}
        | {"failure_prob": (1.0, *DELTA)},
        edges=None,
    ),
    Case(
        adversaries.of_uploads,
        {"round_mu": 0.5},
        {"round_mu": SIGNED},
        reached=np.full((2, 3), adversaries.IN_TIME),
    ),
    Case(
        adversaries.of_sums,
        {"own_mu": 0.5, "num_colluders": 1},
        {"own_mu": SIGNED, "num_colluders": (NAN, -1, 0.5, INF)},
        reached=np.full((2, 3), adversaries.IN_TIME),
    ),
    Case(
        subjects.square_root_rounds,
        {"num_rounds": 3, "num_silos": 4},
        {"num_rounds": WHOLE, "num_silos": WHOLE},
    ),
    Case(
        subjects.least_noise,
        TARGET,
        BAD_TARGET | {"epsilon": (0.0, *FINITE)} | {"delta": (0.0, *DELTA)},
    ),
    Case(
        subjects.group_epsilon,
        {"delta": 1e-5, "size": 2},
        {"delta": DELTA, "size": WHOLE},
        event=ONE_SUBJECT,
    ),
    Case(
        printed.expected_degree,
        {"num_clients": 9, "out_degree": 2},
        {"num_clients": WHOLE, "out_degree": (9, *WHOLE)},
    ),
    Case(
        printed.printed_epsilon,
        {"theta": 0.1, "delta": 1e-5},
        {"theta": FINITE, "delta": (0.0, *DELTA)},
    ),
    Case(printed.printed_theta, TARGET, BAD_TARGET | {"delta": (0.0, *DELTA)}),
    Case(
        conversion.classic_gaussian_noise,
        TARGET | {"epsilon": 0.5},
        {"epsilon": (2.0, *FINITE)} | {"delta": (0.0, *DELTA)},
    ),
    Case(
        printed.own_stddev_for,
        {"theta": 0.1, "num_clients": 3},
        {"theta": (0.0, *FINITE)} | {"num_clients": WHOLE},
    ),
    Case(
        theta.upload_gain,
        {"additive_norm": 1.0, "multiplier_second_moment": 1.5},
        {"additive_norm": FINITE, "multiplier_second_moment": FINITE},
    ),
    Case(
        printed.bounded_noise_delta,
        {"shift": 0.1, "stddev": 1.0, "multiplier": 1.0},
        {"shift": (NAN, INF), "stddev": (0.0, *FINITE), "multiplier": (0.0, *FINITE)},
    ),
]

SPECTRUM = np.array([1.0, 0.5])
BAD_SPECTRUM = (NAN, -1.0, INF)
COVARIANCE = np.diag(SPECTRUM)
BAD_NATS = (0.0, *FINITE)
EXPOSURE = budget.start(2)
INFORMATION = [
    *(
        Case(
            fun,
            {"values": SPECTRUM, "nats": 0.3},
            {"values": BAD_SPECTRUM, "nats": BAD_NATS},
            **KNOWN,
        )
        for fun in (channels.natural, channels.min_power)
    ),
    Case(
        channels.white,
        {"values": SPECTRUM, "nats": 0.3, "floor": 0.1},
        {"values": BAD_SPECTRUM, "nats": BAD_NATS, "floor": FINITE},
        **KNOWN,
    ),
    Case(
        channels.personalized,
        {"covariance": COVARIANCE, "weights": np.ones(2), "nats": 0.3},
        {"covariance": BAD_SPECTRUM, "weights": (0.0, *FINITE), "nats": BAD_NATS},
        **KNOWN,
    ),
    Case(
        channels.range_certified,
        {"low": 0.0, "high": 1.0, "dimension": 4, "nats": 0.3},
        {"low": (NAN, 1.0, -INF), "high": (NAN, 0.0, INF), "dimension": WHOLE, "nats": BAD_NATS},
    ),
    Case(
        channels.clipped_upload,
        {
            "l2_clip_norm": 1.0,
            "num_params": 5,
            "record_dimension": 4,
            "nats": 0.3,
            "num_local_steps": 2,
        }
        | {"learning_rate": 0.1},
        dict.fromkeys(("num_params", "record_dimension", "num_local_steps"), WHOLE)
        | dict.fromkeys(("l2_clip_norm", "nats", "learning_rate"), BAD_NATS),
    ),
    Case(channels.without_noise, {"values": SPECTRUM}, {"values": (NAN, -1.0)}, **KNOWN),
    Case(channels.spectrum, {"values": SPECTRUM}, {"values": BAD_SPECTRUM}),
    Case(channels.checked_covariance, {"covariance": COVARIANCE}, {"covariance": BAD_SPECTRUM}),
    Case(
        results.psnr_of_mse,
        {"mse": 0.1, "data_range": 1.0},
        {"mse": SIGNED, "data_range": (0.0, *FINITE)},
    ),
    Case(
        clipped.private_sgd_nats,
        {"noise_multiplier": 1.0, "batch_size": 5, "record_dimension": 4, "num_params": 9},
        {
            "noise_multiplier": (0.0, *FINITE),
            "batch_size": WHOLE,
            "record_dimension": WHOLE,
            "num_params": WHOLE,
        },
        target="record",
        assume_iid=True,
    ),
    Case(
        clipped.private_sgd_nats_from_epsilon,
        {"epsilon": 0.5, "delta": 1e-5},
        {"epsilon": (0.0, 2.0, *FINITE), "delta": (0.0, *DELTA)},
        calibration="classical",
        batch_size=5,
        record_dimension=4,
        target="record",
        assume_iid=True,
    ),
    Case(
        compression.compressed,
        {"covariance": COVARIANCE, "noise_var": 0.5},
        {"covariance": BAD_SPECTRUM, "noise_var": FINITE},
        keep_mask=np.array([True, False]),
        mask_from_data=False,
        **KNOWN,
    ),
    Case(
        compression.selection_nats,
        {"num_coordinates": 5, "num_kept": 2},
        {"num_coordinates": WHOLE, "num_kept": (NAN, -1, 6, 0.5)},
    ),
    Case(
        compression.large_batch,
        {"values": SPECTRUM, "noise_var": 0.5, "batch_size": 5.0},
        {"values": BAD_SPECTRUM, "noise_var": (0.0, *FINITE), "batch_size": (0.0, *FINITE)},
        assume_iid=True,
        **KNOWN,
    ),
    Case(
        information.printed.printed_eq20,
        {"covariance": COVARIANCE, "weights": np.ones(2), "noise_var": 0.5},
        {"covariance": BAD_SPECTRUM, "weights": (0.0, *FINITE), "noise_var": (0.0, *FINITE)},
    ),
    Case(
        reconstruction.gaussian_entropy,
        {"values": SPECTRUM},
        {"values": BAD_SPECTRUM},
        data_model="gaussian",
        **KNOWN,
    ),
    Case(reconstruction.theorem1, {"entropy": 0.5}, {"entropy": (NAN, INF)}, leakage=LEAKAGE),
    Case(
        reconstruction.projected,
        {"entropies": np.zeros(2)},
        {"entropies": (NAN, INF)},
        leakage=LEAKAGE,
    ),
    *(
        Case(
            fun,
            {"values": SPECTRUM},
            {"values": BAD_SPECTRUM},
            leakage=LEAKAGE,
            data_model="gaussian",
        )
        for fun in (reconstruction.gaussian_projected, reconstruction.distortion_rate)
    ),
    Case(
        reconstruction.linear_error,
        {"values": SPECTRUM, "uses": 2.0},
        {"values": BAD_SPECTRUM, "uses": (0.0, *FINITE)},
        channel=CHANNEL,
        data_model="gaussian",
    ),
    Case(
        sums.secure_sum_leakage,
        {"num_clients": 3, "dimension": 4, "batch_size": 5.0, "constant": 1.0},
        {
            "num_clients": (1, *WHOLE),
            "dimension": WHOLE,
            "batch_size": (0.0, *FINITE),
            "constant": FINITE,
        },
    ),
    Case(
        uploads.estimated_upload,
        {"nats": 0.3, "record_dimension": 4},
        {"nats": BAD_NATS, "record_dimension": WHOLE},
    ),
    Case(
        uploads.count_upload,
        {"round_index": 0},
        {"round_index": (NAN, -1, 0.5)},
        uploads=uploads.Uploads(),
        leakage=LEAKAGE,
        key=jax.random.key(0),
    ),
    Case(budget.start, {"num_records": 2}, {"num_records": WHOLE}),
    Case(
        budget.spend,
        {"record_ids": 1},
        {"record_ids": (NAN, -1, 2, 0.5)},
        exposure=EXPOSURE,
        channel=CHANNEL,
    ),
    Case(budget.expose, {"uses": 1}, {"uses": (NAN, -1, 0.5)}, exposure=EXPOSURE, channel=CHANNEL),
    Case(
        budget.total,
        {"label_nats": 0.1, "group_size": 1, "precision_cap": 99.0},
        {"label_nats": FINITE, "group_size": WHOLE, "precision_cap": (0.0, *FINITE)},
        exposure=budget.spend(EXPOSURE, 1, CHANNEL),
        channel=CHANNEL,
    ),
    Case(
        budget.after_uses,
        {"uses": 2.0, "label_nats": 0.1},
        {"uses": FINITE, "label_nats": FINITE},
        channel=CHANNEL,
    ),
    Case(budget.paper_linear, {"num_steps": 2}, {"num_steps": WHOLE}, channel=CHANNEL),
    Case(
        budget.mixed,
        {"covariance": COVARIANCE, "label_nats": 0.1},
        {"covariance": BAD_SPECTRUM, "label_nats": FINITE},
        noise_covariances=[np.eye(2)],
        uses=[1],
        **KNOWN,
    ),
    Case(
        budget.max_uses,
        {"total_nats": 1.0, "label_nats": 0.1},
        {"total_nats": FINITE, "label_nats": FINITE},
        channel=CHANNEL,
    ),
    Case(
        budget.per_use,
        {"values": SPECTRUM, "total_nats": 1.0, "uses": 2.0},
        {"values": BAD_SPECTRUM, "total_nats": BAD_NATS, "uses": (0.0, *FINITE)},
    ),
    Case(
        budget.paper_rounds,
        {"total_nats": 1.0, "nats": 0.3},
        {"total_nats": BAD_NATS, "nats": BAD_NATS},
    ),
    Case(budget.label_entropy, {"num_classes": 10}, {"num_classes": WHOLE}),
]

# Of events, which hold checked numbers; of names; or parts of the privacy-loss distributions, which
# `pld.api` checks.
NOT_OF_NUMBERS = (
    {
        # Of strategies, which hold checked numbers.
        *(f"correlated.matrices.{name}" for name in ("squared_errors", "toeplitz")),
        "correlated.matrices.inverse_series",
        "correlated.participation.moved",
        *(f"float32_tail.{name}" for name in ("of_event", "releases")),
        "shared_noise.theta.check_mode",
        "shared_noise.colluders.or_fails",
        "shared_noise.exact.checks_graph",
        "shared_noise.exact.check_mask",
        "weighted_sums.setups.check_cell",
    }
    | {
        f"information.{name}"
        for name in (
            "results.check_source",
            "results.proof",
            "results.inherit",
            "results.plain",
            "results.positive_array",
        )
        + ("uploads.uploads_total", "statements.statement")
    }
    # Inner parts of what is listed above: their callers have looked at the numbers.
    | {f"search.{name}" for name in ("bisect", "last_whole", "within")}
    | {f"rounding.{name}" for name in ("at_least", "at_most", "rounded_up", "shown_epsilon")}
    | {
        f"renyi.mixture_moments.{name}"
        for name in ("mixture_curve", "log_ratio", "nodes", "rule_error")
    }
    | {
        f"renyi.poisson_moments.{name}"
        for name in ("log_moments", "num_nodes", "real", "with_chords")
    }
    | {"renyi.without_replacement.sampled_curves", "renyi.poisson_of_curve.divergence"}
    | {"renyi.replaced_unit.curve"}
    | {
        f"renyi.repeat_select.{name}"
        for name in (
            "log_mean",
            "log_stop_of",
            "num_runs",
            "poisson",
            "truncated_negative_binomial",
        )
    }
    | {f"shared_noise.star_mesh.{name}" for name in ("factor", "inverse", "inverse_diagonal")}
    | {f"shared_noise.graph.{name}" for name in ("from_matrix", "pair_graph")}  # tests of their own
    # Words; and what a config or an event is made into, which has looked at its numbers.
    | {"shared_noise.exposure.exposure", "information.spent.of_run"}
    | {f"shared_noise.adversaries.{name}_views" for name in ("chosen", "sum", "uploads")}
    | {f"subjects.printed.{name}" for name in ("errata", "run", "with_noise")}
    | {f"subjects.rounds.{name}" for name in ("counted", "event", "present")}
)
OF_EVENTS = (
    "accountant",
    "events",
    "interop",
    "ledger",
    "mechanisms",
    "monte_carlo",
    "words",
    "pld",
    "dp_accountants",
    "finite_pairs",
    "pure",
    "risk",
)
