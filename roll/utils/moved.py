"""Old dotted names of modules, which YAMLs and users' code may still have: each gives the module in its new place.

They work for one release and say the new name once. Take this file, and the line in roll/__init__.py, away with it.
"""

import logging
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType

FOLDERS = {
    "roll.distributed.scheduler.simulate": "roll.simulate",
    "roll.pipeline.agentic.env": "roll.envs",
    "roll.pipeline.agentic.env_manager": "roll.pipeline.agentic",
    "roll.pipeline.agentic.tools": "roll.envs.tools",
    "roll.pipeline.experience": "roll.rl.experience",
    "roll.pipeline.operators": "roll.run.operators",
    "roll.pipeline.records": "roll.run.records",
    "roll.pipeline.rlvr.judge": "roll.rewards.judge",
    "roll.pipeline.rlvr.rewards": "roll.rewards",
    "roll.pipeline.saving": "roll.run.saving",
    "roll.pipeline.shaping": "roll.rl.shaping",
    "roll.pipeline.tracking": "roll.run.tracking",
}
"""A module in one of these folders is in the other now, if it has no line of its own below."""

MODULES = {
    "roll.algorithms.baselines": "roll.algorithms.advantage",
    "roll.algorithms.covariance": "roll.algorithms.objectives",
    "roll.algorithms.divergence": "roll.algorithms.distillation",
    "roll.algorithms.explain": "roll.commands.explain",
    "roll.algorithms.gates": "roll.algorithms.objectives",
    "roll.algorithms.returns": "roll.algorithms.credit",
    "roll.models.convert": "roll.commands.convert",
    "roll.pipeline.agentic.action": "roll.envs.base",
    "roll.pipeline.agentic.check_env": "roll.commands.check_env",
    "roll.pipeline.agentic.env.bandit": "roll.envs.toys.bandit",
    "roll.pipeline.agentic.env.calculator": "roll.envs.toys.calculator",
    "roll.pipeline.agentic.env.countdown": "roll.envs.toys.countdown",
    "roll.pipeline.agentic.env.gem_env": "roll.envs.gymnasium",
    "roll.pipeline.agentic.env.guess_number": "roll.envs.toys.guess_number",
    "roll.pipeline.agentic.env.gymnasium_env": "roll.envs.gymnasium",
    "roll.pipeline.agentic.env.math_questions": "roll.envs.questions",
    "roll.pipeline.agentic.env.qa": "roll.envs.questions",
    "roll.pipeline.agentic.env.retrieval": "roll.envs.tools.search",
    "roll.pipeline.agentic.env.tool_env": "roll.envs.tools.base",
    "roll.pipeline.agentic.env_config": "roll.envs.config",
    "roll.pipeline.agentic.env_manager.chat": "roll.pipeline.agentic.sample_forms",
    "roll.pipeline.agentic.group_filters": "roll.pipeline.agentic.settings",
    "roll.pipeline.agentic.replay": "roll.run.records.replay",
    "roll.pipeline.agentic.templates": "roll.envs.config",
    "roll.pipeline.agentic.tools.table": "roll.envs.table",
    "roll.pipeline.base_pipeline": "roll.rl.pipeline",
    "roll.pipeline.operators.chain": "roll.run.operators.row",
    "roll.pipeline.operators.contamination": "roll.run.operators.texts",
    "roll.pipeline.operators.deduplicate": "roll.run.operators.texts",
    "roll.pipeline.rlvr.judge.build": "roll.rewards.judge.api",
    "roll.pipeline.rlvr.judge.prompts": "roll.rewards.judge.judge",
    "roll.pipeline.rlvr.judge.verdict": "roll.rewards.judge.judge",
    "roll.pipeline.rlvr.reward_config": "roll.rewards.config",
    "roll.pipeline.rlvr.reward_worker": "roll.rewards.worker",
    "roll.pipeline.rlvr.rewards.exact_match": "roll.rewards.texts",
    "roll.pipeline.rlvr.rewards.no_reward": "roll.rewards.texts",
    "roll.pipeline.rlvr.rewards.parts": "roll.rewards.chain",
    "roll.pipeline.run": "roll.run.loop",
    "roll.pipeline.shaping.groups": "roll.rl.shaping.builtins",
    "roll.pipeline.spec": "roll.run.spec",
}


def new_name(name: str) -> str | None:
    """The module that an old name stands for now; None where the name is no old one.

    Example: new_name("roll.pipeline.rlvr.rewards.math_rule") == "roll.rewards.math_rule"
    """
    if name in MODULES or name in FOLDERS:
        return MODULES.get(name) or FOLDERS[name]
    folder, _, module = name.rpartition(".")
    return f"{FOLDERS[folder]}.{module}" if folder in FOLDERS else None


class MovedModules(MetaPathFinder, Loader):
    """Finds a module under its old name: the same module object as under the new one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        name = new_name(fullname)
        if name is None or find_spec(name) is None:  # a name of ROLL's own, say
            return None
        return ModuleSpec(fullname, self, is_package=fullname in FOLDERS)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        name = new_name(spec.name)
        assert name is not None
        module = import_module(name)
        spec.loader_state = module.__spec__  # Python puts the old name's in its place
        if spec.name not in FOLDERS:
            logging.getLogger(__name__).warning(
                "%s is %s now. The old name goes with the next release.", spec.name, name
            )
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state

    def get_code(self, fullname: str) -> CodeType | None:
        """The code behind `python -m OLD_NAME`."""
        name = new_name(fullname)
        spec = None if name is None else find_spec(name)
        return None if spec is None or spec.loader is None else getattr(spec.loader, "get_code")(spec.name)  # noqa: B009


def install() -> None:
    """Makes old names importable in this process."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, MovedModules())
