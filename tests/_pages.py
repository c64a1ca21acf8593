"""The pages that users read: README and the documentation site."""

import pathlib

ROOT = pathlib.Path(__file__).parents[1]
README = ROOT / "README.md"
SITE = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [README, *SITE]


def name(path: pathlib.Path) -> str:
    """From the root: "docs/guarantees.md"."""
    return path.relative_to(ROOT).as_posix()
