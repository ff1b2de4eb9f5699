"""`use_torch_compile` before anything starts."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from roll.configs.problems import Problem
from roll.configs.strategies.features import Feature
from roll.configs.strategies.spec import Choice
from roll.configs.strategies.table import feature_problem

_COMPILERS = ("g++", "clang++", "c++")


def compile_problems(choice: Choice) -> Iterator[Problem]:
    """Finds a role whose strategy does not compile, whatever the machine."""
    if choice.worker.use_torch_compile and (problem := feature_problem(choice, Feature.TORCH_COMPILE, "true")):
        yield problem


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
