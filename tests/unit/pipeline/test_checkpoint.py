import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from roll.errors import ConfigError
from roll.pipeline.checkpoint import CheckpointStore
from roll.pipeline.driver_state import write_state
from roll.pipeline.manifest import read_manifest


def save(store: CheckpointStore, step: int, content: str = "weights") -> Path:
    with store.writing(step) as directory:
        (directory / "actor_train").mkdir()
        (directory / "actor_train" / "model.bin").write_text(content)
        write_state(directory, {"step": step})
    return store.directory / f"step_{step:06d}"


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
        "from roll.pipeline.checkpoint import CheckpointStore\n"
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
    assert store.resolve(True) == kept
    assert names(store) == ["step_000001"], "resolve cleaned what the killed save left"


@pytest.mark.parametrize(
    "damage", ["truncate", "delete", "no manifest", "garbled manifest", "manifest of another shape"]
)
def test_a_damaged_checkpoint_is_passed_over_and_named_when_asked_for(tmp_path, damage):
    store = CheckpointStore(tmp_path / "checkpoints")
    good, bad = save(store, 1), save(store, 2)
    match damage:
        case "truncate":
            (bad / "actor_train" / "model.bin").write_text("wei")
        case "delete":
            (bad / "actor_train" / "model.bin").unlink()
        case "no manifest":
            (bad / "manifest.json").unlink()
        case "garbled manifest":
            (bad / "manifest.json").write_text("{")
        case _:
            (bad / "manifest.json").write_text("[1]")
    assert store.latest() == good
    with pytest.raises(ConfigError, match=r"resume_from_checkpoint: .*step_000002.* Nearest that works: .*step_000001"):
        store.resolve(str(bad))


def test_resolve_true_false_and_path(tmp_path, caplog):
    store = CheckpointStore(tmp_path / "checkpoints")
    assert store.resolve(True) is None
    first, second = save(store, 1), save(store, 2)
    assert store.resolve(True) == second
    assert store.resolve(str(first)) == first
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


def test_all_are_kept_when_max_to_keep_is_0(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")
    for step in range(5):
        save(store, step)
    assert len(names(store)) == 5


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
    assert store.resolve(True) == path


def test_an_empty_checkpoint_is_not_published(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")
    with pytest.raises(ValueError, match="nothing was written"), store.writing(1):
        pass
    assert names(store) == []
