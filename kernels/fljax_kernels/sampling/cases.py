"""Named samplers, shared by tests and bench."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Case:
    """Poisson sampling of `num` units with probability `prob` into `capacity` places."""

    name: str
    num: int
    prob: float
    capacity: int

    def __str__(self) -> str:
        return self.name


CASES = (
    Case("clients", 100, 0.1, 40),
    Case("sparse", 1000, 0.02, 60),
    Case("million", 1_000_000, 1e-3, 1300),
    Case("everyone", 17, 1.0, 17),
    Case("no_one", 17, 0.0, 5),
    Case("one_unit", 1, 0.5, 1),
    Case("no_unit", 0, 0.5, 0),
    Case("no_room", 50, 0.5, 0),
    Case("too_little_room", 50, 0.5, 10),
)
