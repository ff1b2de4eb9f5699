import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash

from roll.errors import ConfigError
from roll.run.saving.checkpoint import CheckpointStore, DriverState, write_state
from roll.run.saving.manifest import read_manifest


def save(store: CheckpointStore, step: int, content: str = "weights") -> Path:
    with store.writing(step) as directory:
        (directory / "actor_train").mkdir()
        (directory / "actor_train" / "model.bin").write_text(content)
        write_state(directory, DriverState(steps_done=step, run={"cursor": step}))
    return store.directory / f"step_{step:06d}"


def resumed(store: CheckpointStore, chosen: bool | str = True) -> Path:
    found = store.resolve(chosen)
    assert found is not None
    assert found.state.run == {"cursor": found.state.steps_done}
    return found.path


def names(store: CheckpointStore) -> list[str]:
    return sorted(path.name for path in store.directory.iterdir())


def test_a_published_checkpoint_has_a_manifest_of_its_files(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")
    path = save(store, 50)
    assert path == tmp_path / "checkpoints" / "step_000050"
    manifest = read_manifest(path)
    assert manifest.step == 50
    assert manifest.files == {
        "actor_train/model.bin": 7,
        "driver_state.json": (path / "driver_state.json").stat().st_size,
    }
    assert manifest.digests["actor_train/model.bin"] == xxhash.xxh3_128_hexdigest(b"weights")
    assert manifest.digests.keys() == manifest.files.keys()
    assert store.latest() == path
    assert names(store) == ["step_000050"]


def test_a_block_that_raises_publishes_nothing_and_leaves_nothing(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")
    kept = save(store, 1)
    with pytest.raises(RuntimeError, match="disk"), store.writing(2) as directory:
        (directory / "half").write_text("x")
        raise RuntimeError("disk")
    assert names(store) == ["step_000001"]
    assert store.latest() == kept


def test_a_save_killed_in_the_middle_is_never_taken_and_is_cleaned_up(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")
    kept = save(store, 1)
    script = (
        "import sys, time\n"
        "from roll.run.saving.checkpoint import CheckpointStore\n"
        "with CheckpointStore(sys.argv[1] + '/checkpoints').writing(2) as directory:\n"
        "    (directory / 'model.bin').write_text('half')\n"
        "    sys.stdout.write('written\\n'); sys.stdout.flush()\n"
        "    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"

    store.clean()
    assert f".step_000002.partial-{process.pid}" in names(store), "the partial of a process at work is left alone"
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=10)
    process.stdout.close()

    assert store.latest() == kept
    assert resumed(store) == kept
    assert names(store) == ["step_000001"], "resolve cleaned what the killed save left"


def edit_manifest(checkpoint: Path, **fields: object) -> None:
    path = checkpoint / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def flip_a_bit(path: Path, place: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


MODEL, MANIFEST, STATE = "actor_train/model.bin", "manifest.json", "driver_state.json"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "bit of a model": (lambda c: flip_a_bit(c / MODEL, 3), "model.bin has changed since it was written"),
    "bit of the state": (lambda c: flip_a_bit(c / STATE, 20), "driver_state.json has changed since it was written"),
    "order in the manifest": (lambda c: edit_manifest(c, order=9), "does not agree with its manifest_digest"),
    "file cut short": (lambda c: (c / MODEL).write_text("wei"), "model.bin has 3 bytes, but its manifest says 7"),
    "file unreadable": (
        lambda c: ((c / MODEL).unlink(), (c / MODEL).symlink_to("x" * 256)),
        "model.bin cannot be read .File name too long.",
    ),
    "file gone": (lambda c: (c / MODEL).unlink(), "model.bin is missing"),
    "no manifest": (lambda c: (c / MANIFEST).unlink(), "has no manifest.json"),
    "manifest cut short": (lambda c: (c / MANIFEST).write_text("{"), "manifest.json cannot be read"),
    "order a word": (lambda c: edit_manifest(c, order="new"), "order: Input should be a valid integer"),
    "file without digest": (lambda c: edit_manifest(c, digests={MODEL: "0"}), "do not name the same files"),
}  # fmt: skip


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(tmp_path, damage, caplog):
    store = CheckpointStore(tmp_path / "checkpoints")
    older, good, bad = save(store, 1), save(store, 2), save(store, 3)
    harm, said = DAMAGES[damage]
    harm(bad)
    assert resumed(store) == good
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any(re.search(f"{bad}.*{said}", warning) for warning in warnings), warnings
    with pytest.raises(ConfigError) as caught:
        store.resolve(str(bad))
    assert re.search(f"resume_from_checkpoint: {bad}.*{said}", str(caught.value))
    assert f"Nearest that works: {good}." in str(caught.value)
    assert resumed(store, str(older)) == older


def test_where_all_are_damaged_a_run_does_not_silently_start_anew(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")
    flip_a_bit(save(store, 1) / MODEL)
    with pytest.raises(ConfigError, match=r"no checkpoint in .* is complete and undamaged \(step_000001; see above\)"):
        store.resolve(True)


def test_without_verification_sizes_only_are_looked_at(tmp_path, caplog):
    caplog.set_level("INFO")
    bad = save(CheckpointStore(tmp_path / "checkpoints"), 1)
    flip_a_bit(bad / MODEL)
    store = CheckpointStore(tmp_path / "checkpoints", verify=False)
    assert resumed(store) == bad
    assert "sizes checked, not the digests (verify_checkpoint: false)" in caplog.text
    (bad / MODEL).write_text("wei")
    with pytest.raises(ConfigError, match="has 3 bytes"):
        store.resolve(str(bad))


def test_resolve_true_false_and_path(tmp_path, caplog):
    store = CheckpointStore(tmp_path / "checkpoints")
    assert store.resolve(True) is None
    first, second = save(store, 1), save(store, 2)
    assert resumed(store) == second
    assert resumed(store, str(first)) == first
    assert "continues that run" not in caplog.text
    assert store.resolve(False) is None
    assert "continues that run" in caplog.text


@pytest.mark.parametrize("given", ["", "checkpoints"])
def test_a_directory_above_the_checkpoints_is_refused_with_the_newest_one_below(tmp_path, given):
    newest = save(CheckpointStore(tmp_path / "checkpoints"), 7)
    with pytest.raises(ConfigError) as caught:
        CheckpointStore(tmp_path / "other").resolve(str(tmp_path / given))
    assert f"Nearest that works: {newest}" in str(caught.value)


def test_only_the_newest_are_kept_and_the_old_one_stays_until_the_new_one_is_complete(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints", max_to_keep=2)
    for step in (1, 2):
        save(store, step)
    with store.writing(3) as directory:
        (directory / "model.bin").write_text("x")
        assert {"step_000001", "step_000002"} <= set(names(store))
    assert names(store) == ["step_000002", "step_000003"]


def test_a_new_run_in_an_old_directory_keeps_its_own_checkpoints(tmp_path):
    """By step number the old run's step 500 would be newest, and the new run's step 10 would be removed at once."""
    old = CheckpointStore(tmp_path / "checkpoints")
    save(old, 400)
    save(old, 500)
    new = CheckpointStore(tmp_path / "checkpoints", max_to_keep=2)
    save(new, 10)
    assert names(new) == ["step_000010", "step_000500"]
    assert new.latest() == tmp_path / "checkpoints" / "step_000010"


def test_saving_a_step_again_replaces_it(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")
    save(store, 1, "old")
    path = save(store, 1, "newer")
    assert (path / "actor_train" / "model.bin").read_text() == "newer"
    assert names(store) == ["step_000001"]


def test_a_replacement_interrupted_between_its_renames_is_taken_back(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")
    path = save(store, 1)
    path.rename(path.with_name(f".step_000001.replaced-{os.getpid()}"))
    assert store.latest() is None
    assert resumed(store) == path
