"""The directory of checkpoints: published whole or not at all, the oldest removed, found again on resume."""

import json
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from roll.errors import ConfigError, StorageError
from roll.run.saving.manifest import check_digests, flush_to_disk, read_manifest, reason, write_manifest
from roll.utils.files import expanded, read_object
from roll.utils.secrets import redact

logger = logging.getLogger(__name__)

HF_MODEL = "hf_model"  # in a checkpoint: the model that learns, as transformers loads it
_STEP = re.compile(r"step_(\d+)")
_UNFINISHED = re.compile(r"\.(step_\d+)\.(partial|replaced)-(\d+)")


# The driver's own part of a checkpoint, as JSON.

_STATE = "driver_state.json"


class DriverState(BaseModel):
    """`run` is what a pipeline saves: data cursor, coefficients, statistics. `config` is the configuration it was
    saved under, with secrets as ***."""

    model_config = ConfigDict(frozen=True, strict=True)

    steps_done: int = Field(ge=0)
    run: dict[str, Any]
    config: dict[str, Any] = {}


def write_state(directory: Path, state: DriverState) -> Path:
    """Writes the state as JSON. Numpy numbers and arrays become numbers and lists, `config` is redacted, and anything
    else that JSON cannot hold raises TypeError. Nothing is ever pickled."""
    value = {**vars(state), "config": redact(state.config)}
    path = directory / _STATE
    path.write_text(json.dumps(value, indent=1, default=_from_numpy))
    return path


def read_state(directory: Path) -> DriverState:
    """Read the state that write_state wrote, in JSON's types. Raises ConfigError if it is missing or damaged."""
    try:
        return DriverState.model_validate(read_object(directory / _STATE))
    except FileNotFoundError:
        raise ConfigError(f"{directory} has no {_STATE}: it holds no driver state to resume from") from None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{directory / _STATE} cannot be read, so the checkpoint is damaged: {reason(error)}"
        ) from error


def _from_numpy(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"a checkpoint's state must fit into JSON: got {type(value).__name__} {value!r:.80}")


# Checkpoints, one to a directory.


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint to resume from."""

    path: Path
    state: DriverState


class CheckpointStore:
    """`<output_dir>/checkpoints/step_000050/` and so on. The driver owns it; workers write files below.

    A checkpoint is written aside in `.step_000050.partial-<pid>`, its files and then a manifest are flushed to disk,
    and the directory is renamed. So `step_*` is complete, and a run killed at any moment leaves the previous one in
    force. A directory whose files do not have the sizes of its manifest is not taken either, nor is one to resume from
    whose files do not have its digests.

    "Newest" is by order of publication, not by step number: a run that starts again in the directory of a longer one
    keeps its own checkpoints and lets go of the old ones.

    Example:
        with store.writing(50) as directory:
            actor_train.save_checkpoint(directory / "actor_train")
            write_state(directory, DriverState(steps_done=50, run={"kl_coef": 0.1}))
    """

    def __init__(self, directory: Path | str, max_to_keep: int = 0, verify: bool = True):
        """max_to_keep: 0 keeps all. verify: a checkpoint to resume from is read whole and held against its digests."""
        self.directory = Path(directory).absolute()
        self.max_to_keep = max_to_keep
        self.verify = verify

    @contextmanager
    def writing(self, step: int) -> Iterator[Path]:
        """A directory to fill, one that every writer sees. Published when the block ends, dropped when it raises."""
        self.clean()
        final = self.directory / f"step_{step:06d}"
        partial = self.directory / f".{final.name}.partial-{os.getpid()}"
        try:
            partial.mkdir(parents=True)
            yield partial
            newest = self.latest()
            write_manifest(partial, step, read_manifest(newest).order + 1 if newest else 1)
            _publish(partial, final)
        except BaseException as error:
            shutil.rmtree(partial, ignore_errors=True)
            if isinstance(error, OSError):
                raise StorageError(f"the checkpoint of step {step} cannot be written to {final}: {error}") from error
            raise
        logger.info("checkpoint of step %d saved: %s", step, final)
        self._remove_oldest()

    def latest(self) -> Path | None:
        """The newest complete checkpoint. One that is not complete is skipped with a warning."""
        return next(iter(self.newest_first()), None)

    def resolve(self, resume_from_checkpoint: bool | str, cleans: bool = True) -> Checkpoint | None:
        """The checkpoint to resume from: True the newest that is undamaged, if there is any, a path that one, False
        none. `cleans`: of what killed runs left; not where the run that writes here may be elsewhere. Raises
        ConfigError when the path is no complete checkpoint or damaged, and when all there are are damaged."""
        if cleans:
            self.clean()
        if isinstance(resume_from_checkpoint, str):
            return self._at(expanded(resume_from_checkpoint).absolute())
        if resume_from_checkpoint:
            return self._newest_undamaged()
        newest = self.latest()
        if newest is not None:
            logger.warning(
                "%s holds checkpoints of an earlier run (newest: %s). This run starts over and replaces "
                "them as it saves; resume_from_checkpoint: true continues that run, another output_dir keeps it",
                self.directory,
                newest.name,
            )
        return None

    def _newest_undamaged(self) -> Checkpoint | None:
        checkpoint = next(self._undamaged(), None)
        if checkpoint is not None:
            logger.info("resuming from %s", checkpoint.path)
        elif damaged := [path.name for path in self._entries() if _STEP.fullmatch(path.name)]:
            raise ConfigError(
                f"resume_from_checkpoint: no checkpoint in {self.directory} is complete and undamaged "
                f"({', '.join(damaged)}; see above). Restore the files, move the directory away, or start anew: "
                "resume_from_checkpoint: false"
            )
        else:
            logger.info("no checkpoint in %s: starting anew", self.directory)
        return checkpoint

    def _undamaged(self) -> Iterator[Checkpoint]:
        """Newest first; what is passed over is named."""
        for path in self.newest_first():
            try:
                yield self._checked(path)
            except ConfigError as error:
                for problem in error.problems:
                    logger.warning("passing over a damaged checkpoint: %s", problem)

    def _at(self, path: Path) -> Checkpoint:
        try:
            return self._checked(path)
        except ConfigError as error:
            bases = (path, path / "checkpoints", path.parent)
            stores = (CheckpointStore(base, verify=self.verify) for base in bases)
            newest = next((checkpoint.path for store in stores for checkpoint in store._undamaged()), None)
            hint = (
                f"Nearest that works: {newest}"
                if newest
                else "Set resume_from_checkpoint: true, false, or a directory step_*"
            )
            raise ConfigError(f"resume_from_checkpoint: {error}. {hint}.") from error

    def _checked(self, path: Path) -> Checkpoint:
        manifest = read_manifest(path)
        if not self.verify:
            logger.info("%s: sizes checked, not the digests (verify_checkpoint: false)", path.name)
        else:
            started = time.perf_counter()
            check_digests(path, manifest)
            logger.info(
                "%s verified: %d files, %.1f MB, in %.1f s",
                path.name,
                len(manifest.files),
                sum(manifest.files.values()) / 1e6,
                time.perf_counter() - started,
            )
        return Checkpoint(path, read_state(path))

    def clean(self) -> None:
        """Removes what killed runs left half done, and takes back a replacement interrupted between its two renames."""
        for path in self._entries():
            match = _UNFINISHED.fullmatch(path.name)
            if match is None:
                continue
            final = self.directory / match[1]
            if match[2] == "replaced" and not final.exists():
                path.rename(final)
            elif not _is_other_live_process(int(match[3])):
                logger.info("removing what an interrupted save left: %s", path)
                shutil.rmtree(path, ignore_errors=True)

    def _entries(self) -> list[Path]:
        try:
            return sorted(self.directory.iterdir()) if self.directory.is_dir() else []
        except OSError as error:
            raise ConfigError(f"the checkpoints in {self.directory} cannot be listed: {error.strerror}") from error

    def newest_first(self) -> list[Path]:
        complete = []
        for path in self._entries():
            if _STEP.fullmatch(path.name):
                try:
                    complete.append((read_manifest(path).order, path))
                except ConfigError as error:
                    logger.warning("ignoring a checkpoint that is not complete: %s", error)
        return [path for _, path in sorted(complete, reverse=True)]

    def _remove_oldest(self) -> None:
        for path in self.newest_first()[self.max_to_keep :] if self.max_to_keep > 0 else []:
            # renamed first: a removal that is interrupted must not leave a half-empty step_*
            doomed = path.with_name(f".{path.name}.partial-{os.getpid()}")
            path.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)
            logger.info("checkpoint %s removed (max_ckpt_to_keep: %d)", path.name, self.max_to_keep)


def _publish(partial: Path, final: Path) -> None:
    replaced = final.with_name(f".{final.name}.replaced-{os.getpid()}")
    if final.exists():
        final.rename(replaced)  # clean() takes this back if we die before the next line
    partial.rename(final)
    flush_to_disk(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _is_other_live_process(pid: int) -> bool:
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


# The Hugging Face model that a place on disk holds: a directory of weights, a checkpoint, or a run.

_CHECKPOINTS = "checkpoints"


def saved_model(place: str, named: str) -> str:
    """The model's own directory, of `place`: one of weights, a checkpoint (step_000050), or the output_dir of a run,
    whose newest whole checkpoint counts; what is no path is a name of the hub, and stays. `named` is how the place was
    given, for messages. Raises ConfigError for a directory without a model."""
    directory = expanded(place)
    if not directory.is_dir():
        if not place or place.startswith((".", "/", "~")) or place.count("/") > 1 or directory.exists():
            raise ConfigError(f"{named} {place}: there is no such directory.")
        return place
    if (directory / "config.json").is_file():
        return str(directory)
    if (directory / HF_MODEL / "config.json").is_file():
        return str(directory / HF_MODEL)
    if not (directory / _CHECKPOINTS).is_dir():
        raise ConfigError(f"{named} {place}: {_nothing_in(directory)}")
    checkpoint = CheckpointStore(directory / _CHECKPOINTS, verify=False).resolve(True, cleans=False)
    if checkpoint is None:
        raise ConfigError(f"{named} {place}: the run has saved no checkpoint yet (save_steps says when it does).")
    if not (checkpoint.path / HF_MODEL / "config.json").is_file():
        raise ConfigError(f"{named} {place}: its newest checkpoint, {checkpoint.path}, holds no {HF_MODEL}.")
    return str(checkpoint.path / HF_MODEL)


def _nothing_in(directory: Path) -> str:
    runs = sorted(str(path.parent) for path in directory.glob(f"*/{_CHECKPOINTS}"))
    if runs:
        return f"it holds runs, or the stages of one. Name one of them: {', '.join(runs)}."
    return (
        "it holds no model. Name a directory with config.json and weights, a checkpoint (checkpoints/step_000050), or "
        "the output_dir of a run."
    )
