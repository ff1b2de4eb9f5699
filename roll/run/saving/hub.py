"""Models of checkpoints on the Hugging Face hub."""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue

from roll.configs.sections.run import RunConfig
from roll.errors import ConfigError, RollError, describe
from roll.run.interrupts import Interrupts
from roll.run.saving.checkpoint import HF_MODEL

# What stands against sending models to the Hugging Face hub.

KEY = "checkpoint_config.hub_model_id"


def why_not() -> str:
    """Return why this machine cannot send anything to the hub; empty if it can."""
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, so nothing can be uploaded: unset it."
    return "" if get_token() else "there is no token for the hub. `hf auth login` asks for one, or set HF_TOKEN."


logger = logging.getLogger(__name__)

_STEP = re.compile(r"step_0*(\d+)")
_LAST_PUSH_S = 1800.0  # beyond it a store that never answers would hold up the end of the run


@contextmanager
def hub_pushes(config: RunConfig, repo: str, interrupts: Interrupts) -> Iterator[HubPushes]:
    """Open the sender of models. A run that ends well waits for the last one."""
    pushes, is_well = HubPushes(repo, config.exp_name, config.checkpoint_config.hub_private_repo), False
    try:
        yield pushes
        is_well = not interrupts.requested
    finally:
        pushes.close(waits=is_well)


class HubPushes:
    """Sends the models of checkpoints beside the run, one after the other; of those that wait, the newest alone. What
    the hub refuses is a warning.

    Files are linked aside, since the checkpoint may be removed while they are on their way.
    """

    def __init__(self, repo: str, run: str, private: bool):
        self._repo, self._run, self._private = repo, run, private
        self._waiting: Queue[tuple[Path, str] | None] = Queue()
        self._thread = threading.Thread(target=self._work, name="hub", daemon=True)
        self._thread.start()

    def send(self, checkpoint: Path) -> None:
        """Returns at once."""
        model, copy = checkpoint / HF_MODEL, checkpoint.with_name(f".{checkpoint.name}.push-{os.getpid()}")
        try:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(model, copy, copy_function=_link)
        except OSError as error:
            logger.warning("%s: %s cannot be sent: %s", KEY, model, describe(error))
        else:
            self._waiting.put((copy, _message(checkpoint.name, self._run)))

    def close(self, waits: bool) -> None:
        """`waits`: until the last model is there, for half an hour at most. What is on its way otherwise leaves nothing
        on the hub."""
        self._waiting.put(None)
        if waits:
            if self._thread.is_alive():
                logger.info("%s: waiting until the last model is uploaded (Ctrl-C gives up)", KEY)
            self._thread.join(_LAST_PUSH_S)
            if self._thread.is_alive():
                logger.warning("%s: gave up uploading the last model after %.0f s", KEY, _LAST_PUSH_S)

    def _work(self) -> None:
        for copy, message in self._newest():
            try:
                logger.info("%s is on the hub: %s", message, push(copy, self._repo, message, self._private))
            except Exception as error:  # whatever it is, the run goes on
                logger.warning("%s: %s was not uploaded: %s", KEY, message, error)
            finally:
                shutil.rmtree(copy, ignore_errors=True)

    def _newest(self) -> Iterator[tuple[Path, str]]:
        while (entry := self._waiting.get()) is not None:
            try:
                while (later := self._waiting.get_nowait()) is not None:
                    shutil.rmtree(entry[0], ignore_errors=True)
                    logger.warning("%s: %s is skipped, since the hub is slower than the run", KEY, entry[1])
                    entry = later
                self._waiting.put(None)
            except Empty:
                pass
            yield entry


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without
        shutil.copyfile(source, target)


def push(folder: Path, repo: str, message: str, private: bool = False, revision: str | None = None) -> str:
    """Sends all files of a directory in one commit, whose address is given back. Raises ConfigError for a name that is
    none, without a token and where the hub is out of bounds, RollError where the hub refuses or cannot be reached."""
    from httpx import TransportError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if why := why_not():
        raise ConfigError(f"{repo}: {why}")
    api = HfApi()
    try:
        name = api.create_repo(repo, private=private or None, exist_ok=True).repo_id
        if revision is not None:
            api.create_branch(name, branch=revision, exist_ok=True)
        return str(
            api.upload_folder(repo_id=name, folder_path=folder, commit_message=message, revision=revision).commit_url
        )
    except HFValidationError as error:
        raise ConfigError(f"{repo}: {error}") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        why = "the token may not write there: `hf auth whoami` says whose it is" if status in (401, 403) else ""
        raise RollError(f"{repo}: the hub refused ({status}): {why or describe(error)}.") from error
    except OSError as error:
        raise RollError(f"{repo}: {folder} cannot be read: {describe(error)}.") from error
    except TransportError as error:
        raise RollError(f"{repo}: {api.endpoint} cannot be reached: {describe(error)}.") from error
    except (RuntimeError, ValueError) as error:  # of large files: what their store says, or its client
        why = describe(error) + (f" ({describe(error.__cause__)})" if error.__cause__ is not None else "")
        raise RollError(f"{repo}: a large file was not taken: {why}.") from error


def message_of(folder: Path) -> str:
    """Return the commit message of a model. Example: Step 50 of my_run, of my_run/checkpoints/step_000050/hf_model;
    Step 50, where checkpoints have a folder elsewhere; Model, of one that is in no checkpoint."""
    step = folder.absolute().parent
    return _message(step.name, step.parents[1].name if step.parent.name == "checkpoints" else "")


def _message(directory: str, run: str) -> str:
    match = _STEP.fullmatch(directory)
    return "Model" if match is None else f"Step {match[1]}" + (f" of {run}" if run else "")
