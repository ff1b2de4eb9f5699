"""The functions of `import roll`: a run from Python, of the same keys as a YAML."""

import os
from typing import Any

from roll.api.composing import Arguments, Config, compose
from roll.api.planned import Plan, plan_of
from roll.api.rewards import Reward
from roll.api.rows import Data
from roll.api.running import TrainingRun
from roll.api.saved import SavedRun
from roll.errors import ConfigError

Model = str | os.PathLike[str]


def train(
    model: Model,
    data: Data | None = None,
    reward: Reward | None = None,
    *,
    env: Any = None,
    eval_data: Data | None = None,
    **keys: Any,
) -> SavedRun:
    """Trains a model with reinforcement learning, and returns what the run left on disk.

    `model`: a folder, or a name of the Hugging Face hub. `data`: a path, a list of rows ({"prompt": ...,
    "ground_truth": ...}), or a datasets.Dataset. `reward`: a function that takes a sample and returns a number; a name
    such as "math_rule"; a list of these, which are added; or a mapping from the tags of the rows to them. `eval_data`:
    rows of the validation. `env`: instead of data and reward, a class of an environment, for an agentic run; the key
    `custom_envs` does as well. `keys` are those of a YAML (docs/config_reference.md); dotted ones stand in a dict.

    Raises ConfigError with all mistakes before anything starts, other kinds of RollError where the run fails, and
    KeyboardInterrupt after Ctrl-C, once the step is finished and saved.

    Example:
        def right(sample):
            return float(str(sample.ground_truth) in sample.response_text)

        run = roll.train("Qwen/Qwen2.5-0.5B-Instruct", "train.jsonl", right, max_steps=100)
        run.metrics.column("rollout/reward_mean")
    """
    kind = str(keys.get("pipeline") or _kind(None, env, keys))
    needed = {"data": data, "reward": reward} if kind == "rlvr" else {}
    if missing := [name for name, value in needed.items() if value is None and not _says(name, keys)]:
        names = " and ".join(missing)
        hint = " agent is a key of an entry of custom_envs (docs/agents.md)." if "agent" in keys else ""
        raise ConfigError(f"roll.train needs {names}: rows to learn from and a reward, or env, or custom_envs.{hint}")
    return _run(kind, model=model, data=data, reward=reward, eval_data=eval_data, env=env, keys=keys)


def sft(model: Model, data: Data, *, eval_data: Data | None = None, **keys: Any) -> SavedRun:
    """Fine-tunes a model on answers (docs/sft.md). Arguments as in `roll.train`."""
    return _run("sft", model=model, data=data, eval_data=eval_data, keys=keys)


def dpo(model: Model, data: Data, *, eval_data: Data | None = None, **keys: Any) -> SavedRun:
    """Trains a model on pairs of answers, one of them preferred (docs/dpo.md). Arguments as in `roll.train`."""
    return _run("dpo", model=model, data=data, eval_data=eval_data, keys=keys)


def reward_model(model: Model, data: Data, *, eval_data: Data | None = None, **keys: Any) -> SavedRun:
    """Trains a reward model on pairs of answers (docs/reward_models.md). Arguments as in `roll.train`."""
    return _run("rm", model=model, data=data, eval_data=eval_data, keys=keys)


def distill(model: Model, data: Data, teacher: Model, *, eval_data: Data | None = None, **keys: Any) -> SavedRun:
    """Trains a model to answer as its teacher does (docs/distillation.md). Arguments as in `roll.train`."""
    return _run("distill", model=model, data=data, teacher=teacher, eval_data=eval_data, keys=keys)


def start(
    config: Config | None = None,
    *,
    model: Model | None = None,
    data: Data | None = None,
    reward: Reward | None = None,
    env: Any = None,
    eval_data: Data | None = None,
    teacher: Model | None = None,
    **keys: Any,
) -> TrainingRun:
    """A run to iterate over. `config`: the path of a YAML, or a mapping of its keys; the other arguments are those of
    `roll.train`, given by name, and win over it, as `keys` do. Without a YAML that says it, `pipeline="sft"` is
    fine-tuning.

    Raises ConfigError with all mistakes. Engines start with the first step.

    Example:
        for step in roll.start("my_run.yaml", max_steps=20):
            print(step.number, step.metrics["rollout/reward_mean"], step.samples[0]["response_text"])
    """
    kind = _kind(config, env, keys)
    return TrainingRun(compose(Arguments(kind, config, model, data, eval_data, reward, env, teacher, keys)))


def plan(
    config: Config | None = None,
    *,
    model: Model | None = None,
    data: Data | None = None,
    reward: Reward | None = None,
    env: Any = None,
    eval_data: Data | None = None,
    teacher: Model | None = None,
    **keys: Any,
) -> Plan:
    """Return what a run would do; arguments as for `roll.start`. Starts nothing, and raises nothing for a configuration
    with mistakes.

    Example: print(roll.plan("my_run.yaml", num_gpus_per_node=8))
    """
    kind = _kind(config, env, keys)
    return plan_of(Arguments(kind, config, model, data, eval_data, reward, env, teacher, keys))


def evaluate(
    config: Config | None = None,
    *,
    model: Model | None = None,
    data: Data | None = None,
    reward: Reward | None = None,
    env: Any = None,
    checkpoint: Model | bool | None = None,
    **keys: Any,
) -> dict[str, float]:
    """Metrics of a model on the validation and evaluation sets of a YAML, or of a mapping of its keys: `roll eval`.
    Nothing is trained. `checkpoint`: a directory step_000050, True for the newest of the run. Default: the model.
    `data`: rows of the validation, in place of the YAML's. The other arguments are those of `roll.start`.

    Example: roll.eval("my_run.yaml", checkpoint=True)["val/reward_mean"]
    """
    bench_keys = {"mode": "bench", "resume_from_checkpoint": False if checkpoint is None else checkpoint}
    if twice := [key for key in bench_keys if key in keys]:
        raise ConfigError(f"{' and '.join(twice)}: roll.eval sets it. Leave it out; checkpoint names the weights.")
    kind, both = _kind(config, env, keys), {**keys, **bench_keys}
    run = TrainingRun(compose(Arguments(kind, config, model, None, data, reward, env, keys=both)))
    for _ in run:
        pass
    return {name: value for name, value in run.metrics[-1].items() if name != "step"} if run.metrics else {}


def _run(kind: str, *, keys: dict[str, Any], **arguments: Any) -> SavedRun:
    return TrainingRun(compose(Arguments(kind, keys=keys, **arguments))).finish()


def _kind(config: Config | None, env: Any, keys: dict[str, Any]) -> str | None:
    """The kind of a run without a YAML; None if a YAML or the key `pipeline` names it."""
    if config is not None or keys.get("pipeline"):
        return None
    plays = env is not None or any(value and key.startswith("custom_envs") for key, value in keys.items())
    return "agentic" if plays else "rlvr"


def _says(argument: str, keys: dict[str, Any]) -> bool:
    """True if keys take the place of an argument."""
    section = "actor_train" if argument == "data" else "reward"
    return any(key.startswith(section) for key in keys)
