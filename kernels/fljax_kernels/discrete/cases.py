"""Named laws, shared by tests and bench."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Case:
    """A law of `laws`, its parameter, and how many are drawn."""

    name: str
    law: str
    parameter: float
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return self.name


CASES = (
    Case("narrow_gaussian", "discrete_gaussian", 0.4, (500,)),
    Case("gaussian", "discrete_gaussian", 2.5, (3, 200)),
    Case("wide_gaussian", "discrete_gaussian", 300.0, (400,)),
    Case("rounded_gaussian", "rounded_gaussian", 2.5, (3, 200)),
    Case("narrow_skellam", "skellam", 0.3, (500,)),
    Case("skellam", "skellam", 6.0, (4, 5, 30)),
    Case("wide_skellam", "skellam", 9000.0, (400,)),
    Case("no_draw", "discrete_gaussian", 1.0, (0,)),
)
