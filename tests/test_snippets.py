"""Python in pages that shows no output runs too: whole programs as they are, fragments after what
their page says that the reader has. (tests/test_readme.py runs those that show what they print.)
"""

import re

import jax
import pytest

from tests import _pages

LOSS = """
import jax, jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from fljax.simulation import mesh
from fljax_kernels import loop_friendly, per_example_grads
loss = lambda params, example: (example["x"] @ params - example["y"]) ** 2
batch = {"x": jax.random.normal(jax.random.key(0), (8, 3)), "y": jnp.ones(8)}
params, mask, l2_clip_norm = jnp.zeros(3), jnp.ones(8, bool), 1.0
"""
# Page, and the beginning of a fragment: what stands before it, and after.
FRAGMENTS = {
    ("explain/accounting.md", "from_dp_event("): (
        "import dp_accounting\nfrom fljax.accounting import from_dp_event\n"
        "event = dp_accounting.GaussianDpEvent(1.0)",
        "",
    ),
    ("explain/accounting.md", "with accounting.x64():"): (
        "import jax, numpy as np\nfrom fljax import accounting\nfrom fljax.accounting import rdp\n"
        "noises = np.array([1.0, 2.0])",
        "assert curves.shape == (2, len(rdp.DEFAULT_ORDERS))",
    ),
    ("explain/accounting.md", "from fljax.accounting import risk"): (
        "import fljax\nfrom fljax.accounting import events\n"
        "event_of_noise = lambda noise: fljax.PrivacyEvent(\n"
        "    mechanism=events.Gaussian(noise),\n"
        "    privacy_unit='client', neighboring_relation='ADD_OR_REMOVE_ONE').repeat(10)\n"
        "run = event_of_noise(10.0)",
        "assert 0 < risk.advantage(run) < 1\n"
        "assert risk.tpr_at_fpr(event_of_noise(noise), 0.01) <= 0.1",
    ),
    ("explain/accounting.md", "from fljax.accounting.dp_accountants"): (
        "import dp_accounting\n"
        "step = dp_accounting.GaussianDpEvent(1.0)\n"
        "event = dp_accounting.PoissonSampledDpEvent(0.01, step)",
        "assert 1 < epsilon < 5",
    ),
    ("explain/client_state.md", "cohort = data.cohort("): (
        "import jax, jax.numpy as jnp\nfrom fljax import data, models\n"
        "from fljax.schemes import dp_scaffold\n"
        "rows = {'x': jnp.ones((4, 3)), 'y': jnp.zeros(4, jnp.int32)}\n"
        "clients = data.ClientData(rows, jnp.arange(4).reshape(2, 2))\n"
        "shape = {'example_shape': (3,), 'num_classes': 2}\n"
        "model = models.create('softmax', **shape, key=jax.random.key(0))\n"
        "config = dp_scaffold.Config(sampling_prob=1.0, noise_multiplier=1.0, local_batch_size=2)\n"
        "loss = models.softmax_cross_entropy(model.apply)\n"
        "algorithm = dp_scaffold.make(config, loss, num_units=2)\n"
        "round, key = jax.jit(algorithm.round), jax.random.key(1)\n"
        "ids, state = jnp.arange(2), algorithm.init(model.params)\n"
        "new = algorithm.client_state.init(model.params)\n"
        "rows_of = lambda ids: jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), new)\n"
        "kept = []\nput_back = lambda ids, rows: kept.append(rows)",
        "assert jax.tree.structure(kept[0]) == jax.tree.structure(new)",
    ),
    ("explain/pair_noise.md", "agreement.save("): (
        "from fljax.upload import key_agreement\n"
        "agreement, words = key_agreement.KeyAgreement(3), 'only client 3 knows'",
        "assert agreement.client == 3",
    ),
    ("explain/per_example.md", "G = per_example_grads("): (LOSS, "assert norms.shape == (8,)"),
    ("explain/per_example.md", "mesh.as_devices(2)"): (
        LOSS,
        "assert jnp.linalg.norm(clipped_sum(params, batch)) <= 8.001",
    ),
    ("explain/per_example.md", "train = loop_friendly("): (
        LOSS + "private_step = lambda params, batch: (params - 0.1, None)",
        "train(params, {'x': jnp.ones((2, 8, 3)), 'y': jnp.ones((2, 8))})",
    ),
    ("explain/devices.md", "from fljax.data import store"): (
        "import numpy as np\neverybody = [(np.ones((2, 4)), np.zeros(2, np.int32))] * 3\n"
        "held_out_images, held_out_labels = everybody[0]",
        "assert store.open_store('mine/train').num_clients == 3",
    ),
}
# Programs that a test of their own runs, and looks at what they did.
ELSEWHERE = {
    ("explain/accounting.md", "import dataclasses, math"),  # tests/accounting/test_mechanisms.py
    ("explain/bidirectional.md", "import jax"),  # tests/schemes/test_bidirectional.py
    ("explain/runs.md", "import jax"),  # tests/simulation/test_simulate.py
}
SILENT = [
    (_pages.name(page).removeprefix("docs/"), code)
    for page in _pages.PAGES
    for code, shown in re.findall(
        r"```python\n((?:(?!```).)*)```(\n\n```text\n)?", page.read_text(), flags=re.DOTALL
    )
    if not shown
]


def place(page, code):
    """Of a fragment, by how it begins; else of a program, by its first line."""
    begun = [where for where in FRAGMENTS if where[0] == page and code.startswith(where[1])]
    return begun[0] if begun else (page, code.splitlines()[0])


def test_what_is_said_here_of_snippets_is_on_the_pages():
    found = {place(page, code) for page, code in SILENT}
    assert set(FRAGMENTS) | ELSEWHERE <= found
    assert all(re.match("import|from", line) for _, line in found - set(FRAGMENTS))


IDS = [": ".join(place(page, code)) for page, code in SILENT]


@pytest.mark.slow(
    reason="compiles a round, or draws for 1,000 clients",
    ids=[name for name in IDS if re.match(r"explain/(client_state|pair_noise.md: import)", name)],
)
@pytest.mark.parametrize(("page", "code"), SILENT, ids=IDS)
def test_a_snippet_without_output_runs(page, code, tmp_path, monkeypatch, capsys):
    where = place(page, code)
    if where in ELSEWHERE:
        pytest.skip("a test of its own runs it")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    before, after = FRAGMENTS.get(where, ("", ""))
    with jax.numpy_dtype_promotion("standard"):
        exec(compile(f"{before}\n{code}\n{after}", page, "exec"), {})
