"""Checkpoints: the same bits back, or an error that names the checkpoint."""

import contextlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax_kernels
from fljax.simulation.record.checkpoint import KEPT, CheckpointError, Checkpoints, Saved


def state(seed):
    a, b, c = jax.random.split(jax.random.key(seed), 3)
    params = {
        "w": jax.random.normal(a, (64, 10)),
        "b": jax.random.normal(b, (10,)).astype(jnp.bfloat16),
    }
    return {"params": params, "key": c, "round": jnp.int32(seed), "nan": jnp.float32(jnp.nan)}


def bits(tree):
    leaves = [
        jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        for x in tree
    ]
    return [(np.asarray(x).dtype, np.asarray(x).tobytes()) for x in leaves]


def same(left, right):
    return bits(jax.tree.leaves(left)) == bits(jax.tree.leaves(right))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("run")
    with contextlib.closing(Checkpoints(run_dir, "config-a")) as checkpoints:
        for step in range(KEPT + 2):
            checkpoints.save(step, Saved(state(step), {"epsilon": 0.1 * step}, 7 * step))
    return run_dir


def restore(run_dir, digest="config-a", like=None):
    with contextlib.closing(Checkpoints(run_dir, digest)) as checkpoints:
        return checkpoints.restore(state(0) if like is None else like)


def test_the_newest_comes_back_bit_for_bit(written):
    saved = restore(written)
    assert same(saved.state, state(KEPT + 1))
    # Bound to a device it would take another program than the one that a run begins with.
    assert not any(leaf.committed for leaf in jax.tree.leaves(saved.state))
    assert (saved.ledger, saved.metrics_length) == ({"epsilon": 0.1 * (KEPT + 1)}, 7 * (KEPT + 1))


def test_only_the_newest_are_kept(written):
    with contextlib.closing(Checkpoints(written, "config-a")) as checkpoints:
        assert checkpoints.steps() == [2, 3, 4]


def test_another_version_of_the_library_does_not_go_on_with_it(written, monkeypatch):
    monkeypatch.setattr(fljax_kernels, "__version__", "99.0.0")
    with pytest.raises(CheckpointError, match=r"of fljax 99\.0\.0 with jax .*, got one of fljax 0"):
        restore(written)


def test_an_empty_folder_has_none(tmp_path):
    assert restore(tmp_path) is None


def test_saving_the_newest_step_again_changes_nothing(written):
    with contextlib.closing(Checkpoints(written, "config-a")) as checkpoints:
        checkpoints.save(KEPT + 1, Saved(state(99), {}, 0))
    assert same(restore(written).state, state(KEPT + 1))


def test_another_config_is_refused(written):
    with pytest.raises(CheckpointError, match=r"checkpoints/4 .*another config"):
        restore(written, digest="config-b")


def test_another_shape_or_tree_is_refused(written):
    wider = state(0) | {"params": {"w": jnp.zeros((64, 11)), "b": jnp.zeros((10,), jnp.bfloat16)}}
    with pytest.raises(CheckpointError, match="checkpoints/4"):
        restore(written, like=wider)
    with pytest.raises(CheckpointError, match="checkpoints/4"):
        restore(written, like=state(0) | {"more": jnp.zeros(3)})


def test_a_foreign_folder_is_refused(tmp_path):
    (tmp_path / "checkpoints" / "7").mkdir(parents=True)
    (tmp_path / "checkpoints" / "7" / "weights.bin").write_bytes(b"foreign")
    with pytest.raises(CheckpointError, match="checkpoints/7"):
        restore(tmp_path)


def test_a_write_that_was_cut_off_is_ignored_and_removed(written, tmp_path):
    shutil.copytree(written, tmp_path / "run")
    torn = tmp_path / "run" / "checkpoints" / "5.orbax-checkpoint-tmp"
    shutil.copytree(tmp_path / "run" / "checkpoints" / "4", torn)
    (torn / "commit_success.txt").unlink()
    assert same(restore(tmp_path / "run").state, state(KEPT + 1))
    assert not torn.exists()


@pytest.mark.parametrize("damage", ["truncated", "removed", "one bit flipped"])
def test_damage_to_any_file_is_found_or_harmless(written, tmp_path, damage):
    found = set()
    files = [
        f.relative_to(written) for f in (written / "checkpoints" / "4").rglob("*") if f.is_file()
    ]
    for number, name in enumerate(files):
        run_dir = tmp_path / str(number)
        shutil.copytree(written, run_dir)
        path, content = run_dir / name, bytearray((written / name).read_bytes())
        if damage == "removed":
            path.unlink()
        elif damage == "truncated":
            path.write_bytes(content[: len(content) // 2])
        elif content:
            content[len(content) // 2] ^= 0x10
            path.write_bytes(content)
        try:
            saved = restore(run_dir)
        except CheckpointError:
            found.add(name.name)
        else:
            assert same(saved.state, state(KEPT + 1)) and saved.ledger == {
                "epsilon": 0.1 * (KEPT + 1)
            }
    assert len(found) >= 3  # the plain data, the arrays' manifest, the arrays
