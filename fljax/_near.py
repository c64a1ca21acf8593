"""What was meant by a name that is none; without JAX, so that a wrong command is answered at
once.
"""

import difflib
from collections.abc import Iterable
from typing import Any


def did_you_mean(value: Any, choices: Iterable[Any]) -> str:
    """A question that names the one of `choices` which is most like the name `value`; "" where none
    is.
    """
    if not isinstance(value, str):
        return ""
    names, meant = {name.lower(): name for name in choices if isinstance(name, str)}, value.lower()
    # The beginning or a part of a long name is far from it by letters.
    near = sorted(
        (name for name in names if len(meant.strip("-")) > 2 and meant.strip("-") in name), key=len
    )
    near = near or difflib.get_close_matches(meant, names, n=1)
    return f" Did you mean {names[near[0]]!r}?" if near else ""
