"""A checkpoint that is corrupt is never restored, and never passed over silently."""

import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from examples.shared.checkpoints import CHECKSUMS, Checkpoints
from tests.examples import toy_task
from tests.examples.toy_task import assert_same_bits, saved_state


def state(step):
    """Numbers that fill a file of their own, and some that do not."""
    rng = np.random.default_rng(step)
    return {
        "large": jnp.asarray(rng.normal(size=(300, 300)), jnp.float32),
        "small": jnp.asarray(rng.normal(size=3), jnp.float32),
    }


def opened(folder):
    return Checkpoints(folder, "accuracy", keep=2)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    checkpoints = opened(folder)
    for step in (1, 2):
        checkpoints.save(step, state(step), {"accuracy": float(step)})
    checkpoints.close()
    return folder


@pytest.fixture
def folder(base, tmp_path):
    return shutil.copytree(base, tmp_path / "run")


def step_folder(folder, step):
    return folder / "checkpoints" / str(step)


def largest(path):
    files = [p for p in path.rglob("*") if p.is_file()]
    return max(files, key=lambda p: p.stat().st_size)


def flip(path):
    """Changes a bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def halve(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty_all(path):
    for file in path.rglob("*"):
        if file.is_file():
            file.write_bytes(b"")


def restore(folder, like=None):
    checkpoints = opened(folder)
    try:
        return checkpoints.restore(state(0) if like is None else like)
    finally:
        checkpoints.close()


def test_without_damage_the_newest_is_restored(folder):
    restored, step = restore(folder)
    assert step == 2
    assert_same_bits(restored, state(2))
    with pytest.raises(AssertionError):
        assert_same_bits(restored, state(1))
    assert not (folder / "corrupt-checkpoints").exists()


DAMAGES = {
    "data-flip": lambda path: flip(largest(path)),
    "data-removed": lambda path: largest(path).unlink(),
    "metadata-half": lambda path: halve(path / "default" / "_METADATA"),
    "checksums-empty": lambda path: (path / CHECKSUMS).write_text(""),
    "checksums-none": lambda path: (path / CHECKSUMS).write_text("{}"),
    "all-empty": empty_all,
    "folder-empty": lambda path: (shutil.rmtree(path), path.mkdir()),
    "folder-is-file": lambda path: (shutil.rmtree(path), path.touch()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_corrupt_checkpoint_gives_way_to_the_one_before(folder, damage):
    DAMAGES[damage](step_folder(folder, 2))
    checkpoints = opened(folder)
    with pytest.warns(UserWarning, match="cannot be restored") as caught:
        restored, step = checkpoints.restore(state(0))
    (message,) = [str(w.message) for w in caught if "restored" in str(w.message)]
    assert "Step 2: " in message
    assert "resumes from step 1" in message
    assert str(folder / "checkpoints") in message
    checkpoints.close()
    assert step == 1
    assert_same_bits(restored, state(1))
    assert (folder / "corrupt-checkpoints" / "2-0").exists()
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"1"}


def test_orbax_alone_does_not_notice_a_changed_bit(folder):
    # If this fails, orbax does now, and the checksums may go.
    flip(largest(step_folder(folder, 2)))
    (step_folder(folder, 2) / CHECKSUMS).unlink()
    restored, step = restore(folder)
    assert step == 2
    with pytest.raises(AssertionError):
        assert_same_bits(restored, state(2))


def test_where_all_are_corrupt_it_is_an_error_and_all_stay(folder):
    flip(largest(step_folder(folder, 2)))
    halve(largest(step_folder(folder, 1)))
    with pytest.raises(ValueError, match="no checkpoint can be restored") as error:
        restore(folder)
    assert "Step 2: " in str(error.value)
    assert "Step 1: " in str(error.value)
    assert "remove the run's folder to start again" in str(error.value)
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"1", "2"}
    other = {"another": jnp.zeros(3)}  # an intact one of another program
    with pytest.raises(ValueError, match="another version of the program"):
        restore(folder, like=other)


def test_a_run_resumes_from_the_one_before_to_the_same_bits(tmp_path):
    whole, corrupt = tmp_path / "whole", tmp_path / "corrupt"
    toy_task.train(whole, "sgd")
    shutil.copytree(whole, corrupt)
    (corrupt / "summary.txt").unlink()  # or the run would be complete
    empty_all(step_folder(corrupt, 20))
    seen = []
    with pytest.warns(UserWarning, match="resumes from step 15"):
        toy_task.train(corrupt, "sgd", on_batch=seen.append)
    assert seen[0] == 15
    assert_same_bits(saved_state(corrupt, 20), saved_state(whole, 20))
