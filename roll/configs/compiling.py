"""`use_torch_compile` before anything starts."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from roll.configs.problems import Problem
from roll.configs.strategies.spec import Choice

_COMPILERS = ("g++", "clang++", "c++")


def compile_problems(choice: Choice, compiles: bool, who_can: str) -> Iterator[Problem]:
    """Whatever the machine. `who_can`: strategies that compile."""
    key = f"{choice.role.name}.use_torch_compile"
    if choice.worker.use_torch_compile and not compiles:
        text = f"{key}: {choice.worker.strategy_name} compiles nothing. Strategies that do: {who_can}."
        yield Problem(f"{text} Or remove it.", (key, choice.name_key))


def compile_machine_problems(choice: Choice) -> Iterator[Problem]:
    """What torch.compile lacks here, where the run is this machine's."""
    key = f"{choice.role.name}.use_torch_compile"
    if not choice.worker.use_torch_compile or choice.num_nodes > 1 or any(Path("/dev").glob("nvidia[0-9]*")):
        return
    if not shutil.which(os.environ.get("CXX", "")) and not any(map(shutil.which, _COMPILERS)):
        yield Problem(
            f"{key}: torch.compile writes C++ for a CPU, and there is no compiler ({', '.join(_COMPILERS)}, or CXX). "
            "Install one (apt install g++), or set it to false.",
            (key,),
            "machine",
        )
