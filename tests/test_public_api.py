"""A change of the public API is seen: its signatures stand in a committed file."""

import difflib

import pytest

from tests import public_api


def test_the_public_api_is_what_the_committed_file_says():
    committed = public_api.PATH.read_text().splitlines()
    changed = [line for line in difflib.ndiff(committed, public_api.lines()) if line[0] in "+-"]
    assert not changed, "python -m tests.public_api; say it in CHANGELOG.md:\n" + "\n".join(changed)


@pytest.mark.parametrize(
    "name", ["fljax.clipped_grad", "fljax.PrivacyEvent", "fljax_kernels.clip_and_sum"]
)
def test_what_the_readme_shows_is_in_the_file(name):
    assert any(line.startswith(f"{name}(") for line in public_api.PATH.read_text().splitlines())


def test_a_signature_is_told_without_its_types():
    def fun(a: int, b: float = 0.5, *rest: int, c: str, d: None = None, **others: int) -> int:
        return a

    assert public_api.signature(fun) == "(a, b=0.5, *rest, c, d=None, **others)"
    assert public_api.signature(lambda a, *, b=3: a) == "(a, *, b=3)"
