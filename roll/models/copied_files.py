"""Files that a saved model copies unchanged from the model it started from, beside config.json and weights.

transformers would write them anew from what it understood: it drops keys, refuses a generation_config.json whose values
contradict each other (`do_sample: false` beside a temperature, as Llama-2 ships it), and writes a tokenizer of its own
making.
"""

import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from roll.configs.sections.model import ModelArgs

GENERATION_CONFIG = "generation_config.json"
_TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "tekken.json",
    "chat_template*",
    "*.jinja",
    "additional_chat_templates/*",
    "tokenization_*.py",
)
_MODEL_FILES = (
    GENERATION_CONFIG,
    "*processor*.json",
    "modeling_*.py",
    "configuration_*.py",
    "*processing_*.py",
    "LICENSE*",
    "NOTICE*",
)


def copy_start_files(args: ModelArgs, directory: Path) -> None:
    """Copies them into the directory of a saved model. Raises OSError where they cannot be read or written."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / GENERATION_CONFIG).unlink(missing_ok=True)  # what transformers made of it
    for source, file in start_files(args):
        target = directory / file.relative_to(source)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, target)


def start_files(args: ModelArgs) -> Iterator[tuple[Path, Path]]:
    """(folder, file in it) of each: of `tokenizer_path`, if that is given, the tokenizer's."""
    for name, patterns in ((args.model_name_or_path, _MODEL_FILES), (args.tokenizer_name, _TOKENIZER_FILES)):
        folder = _folder(str(name))
        files = {file for pattern in patterns for file in folder.glob(pattern) if file.is_file()}
        yield from ((folder, file) for file in sorted(files))


@cache
def _folder(name: str) -> Path:
    """The directory of a model; of a hub id that of its cache, with these files and no weights."""
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, allow_patterns=[*_MODEL_FILES, *_TOKENIZER_FILES]))
