"""More rounds for a run: at the noise that it has drawn so far, and only within its budget."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from fljax.accounting import words
from fljax.simulation import budget
from fljax.simulation.config import Config


def pinned(config: Config, plan: budget.Plan) -> Config:
    """`config` with what was calibrated or chosen for its number of rounds, as numbers."""
    privacy = dataclasses.replace(
        config.privacy, target_delta=plan.delta, accountant=plan.accountant
    )
    return dataclasses.replace(config, scheme_config=plan.scheme_config, privacy=privacy)


def identity(config: Config, plan: budget.Plan) -> Config:
    """What a run keeps for good: all of its config but how many rounds it is to have."""
    return dataclasses.replace(
        pinned(config, plan), run=dataclasses.replace(config.run, num_rounds=1)
    )


def as_it_stands(config: Config, sections: Mapping[str, Any]) -> Config:
    """The config of a call that asks for more rounds, with what earlier ones have pinned.

    Args:
      config: of the call, which may still say how many rounds the run began with.
      sections: of the run's folder.
    """
    kept = {"accountant": sections["privacy"]["accountant"]}
    privacy = dataclasses.replace(
        config.privacy, **(kept if config.privacy.accountant == "auto" else {})
    )
    run = dataclasses.replace(config.run, num_rounds=sections["run"]["num_rounds"])
    return dataclasses.replace(config, privacy=privacy, run=run)


def to(config: Config, plan: budget.Plan, num_rounds: int) -> Config:
    """The config of the same run with `num_rounds` rounds in all.

    Raises:
      ValueError: it has as many already.
    """
    if not num_rounds > plan.num_rounds:
        raise ValueError(
            f"Expected num_rounds > {plan.num_rounds}, the rounds in all that the run has, got "
            f"{num_rounds}."
        )
    run = dataclasses.replace(config.run, num_rounds=num_rounds)
    return dataclasses.replace(pinned(config, plan), run=run)


def check_budget(before: budget.Plan, after: budget.Plan, num_rounds: int) -> None:
    """Raises ValueError unless the budget allows all the rounds that are asked for."""
    if after.num_rounds < num_rounds:
        assert after.target_epsilon is not None  # else all are allowed
        left = after.num_rounds - before.num_rounds
        raise ValueError(
            f"Expected num_rounds <= {after.num_rounds}, as "
            f"target_epsilon={words.at_most(after.target_epsilon)} "
            f"allows at this noise ({left} more), got {num_rounds}. Another run may begin with the "
            "model of this one, by init=RUN; its claim is then of both."
        )
