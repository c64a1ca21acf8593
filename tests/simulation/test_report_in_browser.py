"""Pages as a browser lays them out: on a phone and on a desk, light and dark, on paper."""

import functools
import json
import pathlib
import re
import shutil
import subprocess

import numpy as np
import pytest

from fljax.simulation.report import attack_figures, figures, run_page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get: chromium)")

# What the page in the frame measures of itself: its width, the least text, the least contrast.
MEASURE = """
const inside = frame.contentDocument, found = {};
found.width = inside.documentElement.scrollWidth;
const scale = s => s.ownerSVGElement ? s.ownerSVGElement.getScreenCTM().a : 1;
const style = e => frame.contentWindow.getComputedStyle(e);
const texts = [...inside.querySelectorAll("svg text, p, td, th, li, span, b, h1, h2, summary")];
found.text = Math.min(...texts.map(e => parseFloat(style(e).fontSize) * scale(e)));
const rgb = c => c.match(/[\\d.]+/g).map(Number);
const light = c => rgb(c).slice(0, 3).map(v => v / 255)
  .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = e => { for (; e; e = e.parentElement) {
  const c = style(e).backgroundColor; if (rgb(c)[3] !== 0) return c; } return "rgb(255,255,255)"; };
const contrast = e => { const ink = e.ownerSVGElement ? style(e).fill : style(e).color;
  const [a, b] = [light(ink), light(behind(e))].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05); };
found.contrast = Math.min(...texts.filter(e => e.textContent.trim()).map(contrast));
found.dark = light(style(inside.body).backgroundColor) < 0.2;
found.requests = frame.contentWindow.performance.getEntriesByType("resource").length;
document.title = JSON.stringify(found);
"""


@functools.cache
def page():
    """One of everything that a page has."""
    records = [
        {
            "round": n,
            "epsilon": n / 10,
            "train_loss": 2 / n,
            "baseline_train_loss": 1 / n,
            "test_loss": 2 / n,
            "test_accuracy": 1 - 1 / n,
            "baseline_test_accuracy": 1 - 0.5 / n,
            "baseline_test_loss": 1 / n,
        }
        for n in range(1, 31)
    ]
    rng = np.random.default_rng(0)
    y, table = rng.integers(0, 10, 300), rng.permutation(300).reshape(60, 5)
    at = np.linspace(0, 1, 50)
    pictures = {
        "accuracy": figures.accuracy(records),
        "loss": figures.loss(records),
        "epsilon": figures.epsilon(records, 4.0),
        "utility": figures.utility(records),
        "labels": figures.labels(table, y, 10),
        "rates": attack_figures.rates(at, 1 - at, at, (1 - at) ** 2, (0.02, 0.02)),
        "predictions": figures.predictions(rng.random((12, 8, 8, 1)), y[:12], y[1:13]),
    }
    rows = "".join(f"<tr><td>{'a_long_name_' * 5}</td><td>{n}</td></tr>" for n in range(3))
    body = "".join(run_page.section(name, picture, "A note.") for name, picture in pictures.items())
    cards = "".join(run_page.card("4.000", "epsilon spent of 4", "main") for _ in range(6))
    table = f'<table class="numbers">{run_page.head("name", "value")}{rows}</table>'
    body = f'<div class="cards">{cards}</div><div class="grid">{body}</div>'
    return run_page.page("a run " + "x" * 80, "below", body + run_page.section("table", table))


def measured(tmp_path, width, *flags):
    """What the page measures of itself in a frame of this width."""
    (tmp_path / "page.html").write_text(page())
    wrapper = tmp_path / "frame.html"
    wrapper.write_text(
        f'<iframe id="frame" src="page.html" width="{width}" height="900"></iframe>'
        f"<script>frame.onload = () => {{ {MEASURE} }}</script>"
    )
    command = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--allow-file-access-from-files",
        "--virtual-time-budget=3000",
        f"--user-data-dir={tmp_path / 'profile'}",
        *flags,
        "--dump-dom",
        wrapper.as_uri(),
    ]
    out = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    title = re.search("<title>(.*?)</title>", out)
    assert title is not None, out[:500]
    return json.loads(title[1])


@pytest.mark.slow(reason="draws one more page", ids=["dark-390", "light-1200"])
@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_page_fits_and_can_be_read(tmp_path, width, dark):
    found = measured(tmp_path, width, *(["--force-dark-mode"] if dark else []))
    assert found["width"] <= width and found["dark"] == dark
    assert found["text"] >= 11
    assert found["contrast"] >= 4.5  # WCAG 2.2, level AA
    assert found["requests"] == 0
    assert pathlib.Path(tmp_path / "page.html").stat().st_size < 2_000_000
