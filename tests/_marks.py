"""The marks "slow", "optimized" and "release" of tests: each says why, and may name the parameters
that it is for, or those that it is not for.
"""

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
    ids, but = mark.kwargs.get("ids"), mark.kwargs.get("but", ())
    if ids is None and not but:
        return mark.kwargs["reason"]
    mine = item.callspec.id
    return mark.kwargs["reason"] if mine not in but and (ids is None or mine in ids) else None
