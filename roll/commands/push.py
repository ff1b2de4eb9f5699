"""`roll push`: the model of a checkpoint goes to the Hugging Face hub."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from roll.commands.options import push_parser
from roll.errors import ConfigError
from roll.run.saving.checkpoint import saved_model
from roll.run.saving.hub import message_of, push

_WEIGHTS = ("*.safetensors", "*.bin")


def run(argv: Sequence[str]) -> Iterator[str]:
    """Raises ConfigError for what cannot be sent, RollError for what the hub says."""
    options = push_parser().parse_args(argv)
    folder = Path(saved_model(options.model, "MODEL"))
    if not folder.is_dir():
        raise ConfigError(f"MODEL {options.model}: there is no such directory.")
    if not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
        raise ConfigError(f"MODEL {options.model}: {folder} holds no weights ({' or '.join(_WEIGHTS)}).")
    message = options.message or message_of(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    yield f"{folder}, {size / 1e9:.3g} GB, goes to {options.repo}"
    yield f"It is there: {push(folder, options.repo, message, options.private, options.revision)}"
