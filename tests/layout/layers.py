"""The packages of roll/ and their layers: imports go to lower layers only. docs/architecture.md prints this table."""

from dataclasses import dataclass

ENGINES = frozenset({"deepspeed", "vllm", "sglang", "megatron", "accelerate", "peft"})
_HEAVY = ENGINES | {"torch", "ray", "transformers"}


@dataclass(frozen=True)
class Package:
    """holds, does_not: columns of that table. forbidden: libraries that nothing in the package may import."""

    layer: int
    holds: str
    does_not: str = ""
    forbidden: frozenset[str] = frozenset()


PACKAGES = {
    "roll.errors": Package(0, "classes of errors", "import anything", _HEAVY | {"numpy", "pydantic"}),
    "roll.utils": Package(
        1,
        "files, texts, times, the sandbox, comparison of answers",
        "know tensors, settings or Ray",
        _HEAVY | {"numpy", "pydantic", "hydra", "omegaconf"},
    ),
    "roll.platforms": Package(
        2, "device types: CUDA, ROCm, Ascend, CPU", "know settings or models", ENGINES | {"transformers"}
    ),
    "roll.configs": Package(
        3, "settings, their checks, the plan and its memory", "look at hardware", _HEAVY | {"numpy"}
    ),
    "roll.types": Package(
        4, "the data classes of a step, frozen and checked", "know models", ENGINES | {"transformers"}
    ),
    "roll.algorithms": Package(
        5, "advantages, losses, KL: the mathematics", "know processes", ENGINES | {"transformers", "torch.distributed"}
    ),
    "roll.datasets": Package(
        5, "files, rows, chat templates, loss masks", "know processes", ENGINES | {"torch.distributed"}
    ),
    "roll.models": Package(
        6, "models: loading, packing, Megatron's families", "use Ray", ENGINES - {"megatron", "peft"}
    ),
    **dict.fromkeys(
        (f"roll.features.{room}" for room in ("exact", "experts", "lora", "mtp", "prefix_sharing", "teachers")),
        Package(7, "a feature of models: its checks, its part of the model", "use Ray", ENGINES - {"megatron", "peft"}),
    ),
    "roll.distributed.weights": Package(
        7, "buckets of weights and how they are sent", "know engines", ENGINES | {"transformers"}
    ),
    "roll.distributed.strategy": Package(8, "the strategies, a folder for each engine", "know rewards"),
    "roll.distributed.executor": Package(
        9, "workers and clusters; the only package with Ray", "know rewards or episodes"
    ),
    "roll.distributed.scheduler": Package(
        10, "when each group is sampled", "use Ray or torch", ENGINES | {"torch", "transformers"}
    ),
    "roll.run": Package(11, "the code that all kinds of run share: the loop, the start, saving, tracking", "", ENGINES),
    "roll.rl": Package(12, "the step of reinforcement learning and its parts", "know rewards or episodes", ENGINES),
    "roll.pipeline.rows": Package(
        12, "the code that SFT, DPO, reward models and distillation share", "sample", ENGINES
    ),
    "roll.features": Package(13, "a room for each feature; those of models are lower", "know any kind of run", ENGINES),
    "roll.rewards": Package(13, "rewards: rules, code, judges, and how they run", "know any kind of run", ENGINES),
    "roll.envs": Package(13, "environments and tools", "know any kind of run", ENGINES),
    "roll.pipeline.rlvr": Package(14, "RLVR: rewards by domain", "know another kind of run", ENGINES),
    "roll.pipeline.agentic": Package(
        14, "agentic runs: episodes, managers, the endpoint", "know another kind of run", ENGINES
    ),
    "roll.pipeline.sft": Package(14, "supervised fine-tuning", "know another kind of run", ENGINES),
    "roll.pipeline.dpo": Package(14, "preference optimisation", "know another kind of run", ENGINES),
    "roll.pipeline.rm": Package(14, "reward models", "know another kind of run", ENGINES),
    "roll.pipeline.distill": Package(14, "distillation on rows", "know another kind of run", ENGINES),
    "roll.importers": Package(
        15, "converters of YAMLs of verl, Trinity-RFT and older ROLL", "start anything", _HEAVY | {"numpy"}
    ),
    "roll.report": Package(15, "`roll report`: an HTML page from the files of a run", "start anything", _HEAVY),
    "roll.simulate": Package(
        15,
        "a run in virtual time, and the forecast of a plan",
        "use Ray",
        ENGINES | {"ray", "transformers"},
    ),
    "roll.doctor": Package(16, "`roll doctor`: checks of this machine, and of a run's files", "start anything"),
    "roll.commands": Package(16, "the subcommands of `roll`", "import torch or Ray before a command needs them"),
    "roll.reproduce": Package(
        17, "`roll reproduce`: recipes of real models, and the bands of their curves", "train by itself", _HEAVY
    ),
    "roll.studio": Package(17, "`roll studio`: runs in a browser", "read anything of a run but its files", _HEAVY),
    "roll.api": Package(17, "`import roll`", "differ from a run by YAML", _HEAVY),
    "roll.__main__": Package(18, "`python -m roll`"),
}


def page_table() -> list[str]:
    """The rows of the table on docs/architecture.md."""
    lines = ["| layer | package | holds | does not |", "|---|---|---|---|"]
    for name, package in PACKAGES.items():
        path = name.removeprefix("roll.").replace(".", "/")
        lines.append(f"| {package.layer} | `{path}` | {package.holds} | {package.does_not} |")
    return lines
