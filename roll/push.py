"""`roll push`: the model of a checkpoint goes to the Hugging Face hub."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from roll.errors import ConfigError, RollError, describe
from roll.pipeline.saving.saved_model import saved_model

USAGE = """roll push MODEL OWNER/NAME [--private] [--revision BRANCH] [--message TEXT]

MODEL is a directory with config.json and weights, a checkpoint of a run (.../checkpoints/step_000050), or the
output_dir of a run: then its newest checkpoint goes. The repository is made if there is none, a branch too. The token
is that of `hf auth login`, or HF_TOKEN; HF_ENDPOINT names another hub. docs/serving.md."""
_STEP = re.compile(r"step_0*(\d+)")
_WEIGHTS = ("*.safetensors", "*.bin")


def run(argv: Sequence[str]) -> Iterator[str]:
    """Raises ConfigError for what cannot be sent, RollError for what the hub says."""
    options = _parser().parse_args(argv)
    folder = Path(saved_model(options.model, "MODEL"))
    if not folder.is_dir():
        raise ConfigError(f"MODEL {options.model}: there is no such directory.")
    if not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
        raise ConfigError(f"MODEL {options.model}: {folder} holds no weights ({' or '.join(_WEIGHTS)}).")
    message = options.message or _message(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    yield f"{folder}, {size / 1e9:.3g} GB, goes to {options.repo}"
    yield f"It is there: {push(folder, options.repo, message, options.private, options.revision)}"


def push(folder: Path, repo: str, message: str, private: bool = False, revision: str | None = None) -> str:
    """Sends all files in one commit and gives its address. Raises ConfigError for a name that is none and without a
    token, RollError where the hub refuses or cannot be reached."""
    from httpx import TransportError
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    if get_token() is None:
        raise ConfigError("there is no token for the hub: `hf auth login` asks for one, or set HF_TOKEN.")
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
    except OfflineModeIsEnabled as error:
        raise ConfigError("HF_HUB_OFFLINE is set, and the hub is elsewhere: unset it.") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        why = "the token may not write there: `hf auth whoami` says whose it is" if status in (401, 403) else ""
        raise RollError(f"{repo}: the hub refused ({status}): {why or describe(error)}.") from error
    except OSError as error:
        raise RollError(f"{repo}: {folder} cannot be read: {describe(error)}.") from error
    except TransportError as error:
        raise RollError(f"{repo}: {api.endpoint} cannot be reached: {describe(error)}.") from error


def _message(folder: Path) -> str:
    """Example: Step 50 of my_run."""
    found = _STEP.fullmatch(folder.parent.name)
    return "Model" if found is None else f"Step {found[1]} of {folder.absolute().parents[2].name}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="roll push", usage=USAGE, allow_abbrev=False)
    parser.add_argument("model", metavar="MODEL", help="a directory, a checkpoint or a run's output_dir")
    parser.add_argument("repo", metavar="OWNER/NAME", help="the repository of the hub")
    parser.add_argument("--private", action="store_true", help="if it has to be made, for its owner alone")
    parser.add_argument("--revision", metavar="BRANCH", help="of the repository; default: main")
    parser.add_argument("--message", help="of the commit; default: the step and the run")
    return parser
