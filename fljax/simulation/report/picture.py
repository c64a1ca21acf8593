"""A figure of matplotlib as SVG for a page: named for who cannot see it, legible at any width, with
colours that a dark page replaces, and the numbers behind its lines as a table.
"""

import html
import io
import re
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

# Light colours of charts, and what stands for each on a dark page; contrast 3:1 at least to it.
DARK = {
    "#1f5fbf": "#7db0ff",
    "#8a8f98": "#a4abb6",
    "#c2410c": "#ff9b6b",
    "#7c3aed": "#b99aff",
    "#15803d": "#5fd38a",
    "#0e7490": "#58c6dc",
    "#b91c1c": "#ff9c9c",
    "#4b5563": "#c3cad5",
    "#c9ced6": "#566070",
    "#eceff3": "#2b3340",
    "#e3e6eb": "#3a4453",
    "#ffffff": "#1b2129",
}
_PX_PER_PT = 1.12  # text of 10 pt is then 11.2 px tall
_MOST_ROWS = 100


def css() -> str:
    """The rules by which a dark page replaces colours of charts."""
    rules = "; ".join(f"--c{light[1:]}: {dark}" for light, dark in DARK.items())
    return f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {rules} }} }}"


def _names(axes: Any) -> str:
    """What a pair of axes shows."""
    upright, along = axes.get_ylabel(), axes.get_xlabel()
    return f"{upright} against {along}" if upright and along else upright or along


def _lines(axes: Any) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """(label, x, y) of each line of data that the legend names; a rule has other coordinates."""
    return [
        (str(line.get_label()), np.asarray(line.get_xdata()), np.asarray(line.get_ydata()))
        for line in axes.get_lines()
        if not str(line.get_label()).startswith("_") and line.get_transform() == axes.transData
    ]


def _number(value: float) -> str:
    return f"{value:.4g}"


def described(figure: Figure) -> tuple[str, str]:
    """(title, description): what the axes are, and from where to where each line goes."""
    titles = [name for axes in figure.axes if (name := _names(axes))]
    parts = [
        f"{label}: {_number(float(y[0]))} at {_number(float(x[0]))} to {_number(float(y[-1]))} "
        f"at {_number(float(x[-1]))}."
        for axes in figure.axes
        for label, x, y in _lines(axes)
        if len(y)
    ]
    return "; ".join(dict.fromkeys(titles)) or "pictures", " ".join(parts)


def _lay_out(figure: Figure) -> None:
    """As `savefig` does, which would draw the whole figure once more for it."""
    engine, dpi = figure.get_layout_engine(), figure.dpi
    if engine is None:
        return
    FigureCanvasSVG(figure)  # text is measured as it will be drawn
    engine.execute(figure)
    # None is no engine where the user's own settings have none.
    with matplotlib.rc_context(
        {"figure.autolayout": False, "figure.constrained_layout.use": False}
    ):
        figure.set_layout_engine(None)
    figure.dpi = dpi  # measuring has set that of SVG, which is not that of the images in it


def svg(figure: Figure) -> str:
    """The figure as an image with a title and a description, never smaller than can be read."""
    buffer = io.StringIO()
    engine = figure.get_layout_engine()
    _lay_out(figure)
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    if engine is not None:
        figure.set_layout_engine(engine)  # for whoever draws it again
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    least = round(72 * figure.get_size_inches()[0] * _PX_PER_PT)
    title, description = (html.escape(part) for part in described(figure))
    head, rest = text.split(">", 1)
    named = f'{head} role="img" aria-label="{title}" style="min-width: {least}px">'
    rest = re.sub(r"<title>.*?</title>", "", rest, count=1, flags=re.DOTALL)
    text = f"{named}\n<title>{title}</title><desc>{description}</desc>{rest}"

    def replaced(found: re.Match[str]) -> str:
        color = found[0].lower()
        return f"var(--c{color[1:]}, {color})" if color in DARK else found[0]

    return re.sub(
        r'style="[^"]*"',
        lambda style: re.sub(r"#[0-9a-fA-F]{6}\b", replaced, style[0]),
        text,
    )


def with_numbers(figure: Figure) -> str:
    """As `svg`, and below it a table of the numbers of its lines, to unfold; at most 100 rows."""
    tables = "".join(_table(axes) for axes in figure.axes)
    if not tables:
        return svg(figure)
    return f"{svg(figure)}<details><summary>Numbers</summary>{tables}</details>"


def _table(axes: Any) -> str:
    lines = _lines(axes)
    if not lines:
        return ""
    at = np.unique(np.concatenate([x for _, x, _ in lines]))
    if len(at) > _MOST_ROWS:  # spread over all, first and last included
        at = at[np.unique(np.linspace(0, len(at) - 1, _MOST_ROWS).round().astype(int))]
    columns = [dict(zip(x.tolist(), y.tolist(), strict=True)) for _, x, y in lines]
    names = [axes.get_xlabel(), *(label for label, _, _ in lines)]
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in names)
    rows = "".join(
        f'<tr><th scope="row">{_number(place)}</th>'
        + "".join(
            f"<td>{_number(column[place]) if place in column else ''}</td>" for column in columns
        )
        + "</tr>"
        for place in at.tolist()
    )
    caption = html.escape(_names(axes))
    return f'<table class="numbers"><caption>{caption}</caption><tr>{head}</tr>{rows}</table>'
