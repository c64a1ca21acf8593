"""The marks "slow" and "optimized" of tests: each says why, and may name parameters."""

import pytest


def reason(item, name):
    """Why a test carries the mark; None without it, also where it is on other parameters only.

    Raises:
      pytest.UsageError: the mark gives no reason.
    """
    mark = item.get_closest_marker(name)
    if mark is None:
        return None
    if not mark.kwargs.get("reason"):
        raise pytest.UsageError(f"{item.nodeid}: the mark {name!r} gives no reason=...")
    ids = mark.kwargs.get("ids")
    return mark.kwargs["reason"] if ids is None or item.callspec.id in ids else None
