"""GGUF files as models. transformers reads a file once, in a process of its own, and its weights, settings and
tokenizer are kept as a Hugging Face folder in the user's cache, which every trainer and engine loads."""

import hashlib
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp

from roll.errors import ConfigError, describe

logger = logging.getLogger(__name__)
CACHE = "~/.cache/roll/gguf"
_ENDING = ".gguf"
_NEEDS = "gguf"  # the package that transformers reads such files with


def gguf_folder(name: str) -> str:
    """Return the Hugging Face folder of a GGUF file; any other name as it is. It is written at the first use: bf16,
    quantised weights as plain numbers. Raises ConfigError."""
    if not name.endswith(_ENDING) or Path(name).is_dir():
        return name
    file = Path(name).expanduser().resolve()
    try:
        status = file.stat()
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}.") from error
    version = hashlib.sha256(f"{file} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:12]
    folder = Path(CACHE).expanduser() / f"{file.stem}-{version}"
    if not folder.exists():
        # A warning, so that a plan, which shows no more, is not silent for the half minute that it takes.
        logger.warning("reading %s, once: the model is kept in %s", name, folder)
        _convert(file, folder)
    return str(folder)


def _convert(file: Path, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        command = [sys.executable, "-m", "roll.run.start.gguf", str(file), str(partial)]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TQDM_DISABLE": "1"})
        if done.returncode != 0:
            last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
            raise ConfigError(f"{file} cannot be read as a model: {last}")
        try:
            partial.rename(folder)
        except OSError:
            if not folder.exists():  # else another process was faster
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    plain = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, quantization_config=plain, dtype=torch.bfloat16
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


if __name__ == "__main__":
    try:
        _write(*map(Path, sys.argv[1:]))
    except Exception as error:
        hint = f" Install it: pip install {_NEEDS}" if isinstance(error, ImportError) else ""
        sys.exit(f"{describe(error)}{hint}")
