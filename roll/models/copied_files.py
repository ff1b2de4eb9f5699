"""Files and MTP heads that a saved model copies unchanged from its start, beside config.json and weights.

transformers would write them anew from what it understood: it drops keys, refuses a generation_config.json whose values
contradict each other (`do_sample: false` beside a temperature, as Llama-2 ships it), and writes a tokenizer of its own
making.
"""

import logging
import re
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import AutoConfig

from roll.configs.sections.model import ModelArgs
from roll.models.weight_files import tensor_files

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


# MTP heads (multi-token prediction), which a model's files may hold. transformers leaves them out when it loads a
# model; where they are not trained, they go with it as they are.

logger = logging.getLogger(__name__)
_NAMED = re.compile(r"^(model\.)?(language_model\.)?mtp(_layers)?\.")
_LAYER = re.compile(r"^model\.(?:language_model\.)?layers\.(\d+)\.")


def is_of_prediction_head(name: str, num_layers: int) -> bool:
    """True for a tensor of an MTP head in a model's files. Heads have special names, or are layers behind the last.

    Example: mtp.fc.weight; model.layers.61.eh_proj.weight of a model with layers 0 to 60.
    """
    layer = _LAYER.match(name)
    return _NAMED.match(name) is not None or (layer is not None and int(layer.group(1)) >= num_layers)


def shared_tensors(num_layers: int, ties_head: bool) -> dict[str, str]:
    """Names under which files may hold the embedding and the head of a model once more, as parts of the head behind its
    last layer, and their names in the model."""
    at, embedding = f"model.layers.{num_layers}", "model.embed_tokens.weight"
    return {
        f"{at}.embed_tokens.weight": embedding,
        f"{at}.shared_head.head.weight": embedding if ties_head else "lm_head.weight",
    }


def shared_copies(model: str) -> dict[str, str]:
    """Names of `shared_tensors` under which the files of `model` repeat a tensor of its own, with that one's name:
    where the model is trained, they are the trained one's."""
    text, files = AutoConfig.from_pretrained(model, trust_remote_code=False).get_text_config(), tensor_files(model)
    pairs = shared_tensors(getattr(text, "num_hidden_layers", 0), bool(getattr(text, "tie_word_embeddings", False)))
    there = {name: original for name, original in pairs.items() if name in files and original in files}
    return {
        name: original for name, original in there.items() if torch.equal(_read(files, name), _read(files, original))
    }


def _read(files: Mapping[str, str], name: str) -> torch.Tensor:
    with safe_open(files[name], framework="pt") as file:
        return file.get_tensor(name)


def mtp_heads(model: str, but: Collection[str] = ()) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the prediction heads' tensors in the safetensors of a model directory or hub id, by name, without those in
    `but`. Its own config.json counts the layers: settings of a run may ask for fewer."""
    text = AutoConfig.from_pretrained(model, trust_remote_code=False).get_text_config()
    num_layers = getattr(text, "num_hidden_layers", sys.maxsize)
    files = {
        name: file
        for name, file in tensor_files(model).items()
        if is_of_prediction_head(name, num_layers) and name not in but
    }
    if files:
        logger.info("%s: %d tensors of multi-token prediction heads are saved as they were", model, len(files))
    for path in sorted(set(files.values())):
        with safe_open(path, framework="pt") as file:
            for name in (name for name, place in files.items() if place == path):
                yield name, file.get_tensor(name)
