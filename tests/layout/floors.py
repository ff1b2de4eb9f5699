"""The rooms of roll/ and the floor of each: imports go to lower floors only. docs/architecture.md prints this table."""

from dataclasses import dataclass

ENGINES = frozenset({"deepspeed", "vllm", "sglang", "megatron", "accelerate", "peft"})
_HEAVY = ENGINES | {"torch", "ray", "transformers"}


@dataclass(frozen=True)
class Room:
    """holds, does_not: what the page says of it. forbidden: libraries that nothing in it may import."""

    floor: int
    holds: str
    does_not: str = ""
    forbidden: frozenset[str] = frozenset()


ROOMS = {
    "roll.errors": Room(0, "classes of errors", "import anything", _HEAVY | {"numpy", "pydantic"}),
    "roll.utils": Room(
        1,
        "files, texts, times, the sandbox, comparison of answers",
        "know tensors, settings or Ray",
        _HEAVY | {"numpy", "pydantic", "hydra", "omegaconf"},
    ),
    "roll.platforms": Room(
        2, "device types: CUDA, ROCm, Ascend, CPU", "know settings or models", ENGINES | {"transformers"}
    ),
    "roll.configs": Room(3, "settings, their checks, the plan and its memory", "look at hardware", _HEAVY | {"numpy"}),
    "roll.types": Room(4, "the data classes of a step, frozen and checked", "know models", ENGINES | {"transformers"}),
    "roll.algorithms": Room(
        5, "advantages, losses, KL: the mathematics", "know processes", ENGINES | {"transformers", "torch.distributed"}
    ),
    "roll.datasets": Room(
        5, "files, rows, chat templates, loss masks", "know processes", ENGINES | {"torch.distributed"}
    ),
    "roll.models": Room(
        6, "models: loading, LoRA, packing, Megatron's families", "use Ray", ENGINES - {"megatron", "peft"}
    ),
    "roll.distributed.weights": Room(
        7, "buckets of weights and how they are sent", "know engines", ENGINES | {"transformers"}
    ),
    "roll.distributed.strategy": Room(8, "the strategies, a folder for each engine", "know rewards"),
    "roll.distributed.executor": Room(9, "workers and clusters; the only package with Ray", "know rewards or episodes"),
    "roll.distributed.scheduler": Room(
        10, "when each group is sampled", "use Ray or torch", ENGINES | {"torch", "transformers"}
    ),
    "roll.run": Room(11, "the code that all kinds of run share: the loop, the start, saving, tracking", "", ENGINES),
    "roll.rl": Room(12, "the step of reinforcement learning and its parts", "know rewards or episodes", ENGINES),
    "roll.pipeline.rows": Room(12, "the code that SFT, DPO, reward models and distillation share", "sample", ENGINES),
    "roll.rewards": Room(13, "rewards: rules, code, judges, and how they run", "know any kind of run", ENGINES),
    "roll.envs": Room(13, "environments and tools", "know any kind of run", ENGINES),
    "roll.pipeline.rlvr": Room(14, "RLVR: rewards by domain", "know another kind of run", ENGINES),
    "roll.pipeline.agentic": Room(
        14, "agentic runs: episodes, managers, the endpoint", "know another kind of run", ENGINES
    ),
    "roll.pipeline.sft": Room(14, "supervised fine-tuning", "know another kind of run", ENGINES),
    "roll.pipeline.dpo": Room(14, "preference optimisation", "know another kind of run", ENGINES),
    "roll.pipeline.rm": Room(14, "reward models", "know another kind of run", ENGINES),
    "roll.pipeline.distill": Room(14, "distillation on rows", "know another kind of run", ENGINES),
    "roll.importers": Room(
        15, "converters of YAMLs of verl, Trinity-RFT and older ROLL", "start anything", _HEAVY | {"numpy"}
    ),
    "roll.report": Room(15, "`roll report`: an HTML page from the files of a run", "start anything", _HEAVY),
    "roll.simulate": Room(
        15, "the simulator: a run in virtual time, without GPUs", "use Ray", ENGINES | {"ray", "transformers"}
    ),
    "roll.doctor": Room(15, "`roll doctor`: checks of this machine", "start anything"),
    "roll.commands": Room(16, "the subcommands of `roll`", "import torch or Ray before a command needs them"),
    "roll.studio": Room(17, "`roll studio`: runs in a browser", "read anything of a run but its files", _HEAVY),
    "roll.api": Room(17, "`import roll`", "differ from a run by YAML", _HEAVY),
    "roll.__main__": Room(18, "`python -m roll`"),
}


def page_table() -> list[str]:
    """The rows of the table on docs/architecture.md, where a floor is a layer and a room a package."""
    lines = ["| layer | package | holds | does not |", "|---|---|---|---|"]
    for name, room in ROOMS.items():
        path = name.removeprefix("roll.").replace(".", "/")
        lines.append(f"| {room.floor} | `{path}` | {room.holds} | {room.does_not} |")
    return lines
