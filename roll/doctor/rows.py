"""The first rows of an RLVR run through template, tokenizer and reward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from roll.configs.sections.data import DataArgs
from roll.datasets.encoding import load_tasks
from roll.datasets.loader import DataSource, Row
from roll.datasets.sources import all_rows
from roll.doctor.machine import Finding
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.pipeline.rlvr.row_operators import data_domains
from roll.rewards.base import RewardInput
from roll.rewards.worker import RewardWorker
from roll.run.policy_tokenizer import policy_tokenizer
from roll.run.saving.model_files import read_vision
from roll.types.rollout import Task
from roll.utils.text import show
from roll.utils.thinking import thinking_end

NUM_ROWS = 8
_MOST_SHOWN = 200


def row_findings(config: RLVRConfig) -> Iterator[Finding]:
    """Findings about the rows of each data_args that the run reads, and once about the reward of each of their
    domains."""
    reported: set[str] = set()
    for key, args, tasks in first_tasks(config, NUM_ROWS):
        yield from _prompts(key, args, tasks, config.prompt_length)
        for task in tasks:
            if task.domain not in reported:
                reported.add(task.domain)
                yield from reward_findings(config, task)


def first_tasks(config: RLVRConfig, number: int) -> Iterator[tuple[str, DataArgs, Sequence[Task]]]:
    """Tasks of the first rows of each file, by the data_args that the run reads. Long prompts lose their beginning."""
    role, worker = next(iter(config.learning_roles.items()), ("actor_infer", config.actor_infer))
    tokenizer = policy_tokenizer(role, worker.model_args)

    def first(sources: Sequence[DataSource]) -> Iterator[Row]:
        return (row for source in sources for row in islice(all_rows([source]), number))

    for key, args in config.data_args.items():
        loaded = load_tasks(
            args.model_copy(update={"truncation": "left"}) if args.truncation == "error" else args,
            key,
            data_domains(config),
            tokenizer,
            config.prompt_length,
            config.global_template,
            config.tag_to_template,
            choose=first,
            vision=read_vision(config.actor_train.model_args, args),
        )
        yield key, args, loaded.tasks


def _prompts(key: str, args: DataArgs, tasks: Sequence[Task], most: int) -> Iterator[Finding]:
    if not tasks:
        yield Finding("hint", f"{key}: all of the first {NUM_ROWS} rows are left out", key)
        return
    lengths = [len(task.prompt_ids) for task in tasks]
    text = f"{key}: the first {len(tasks)} prompts have {min(lengths)} to {max(lengths)} tokens of prompt_length {most}"
    if max(lengths) >= most and args.truncation != "drop":
        fix = "Raise it, or set truncation (left, right, middle, drop)"
        yield Finding("hint", f"{text}: some may be cut", "prompt_length", fix)
    else:
        yield Finding("ok", text)
    yield Finding(
        "ok", f"its first prompt, after the template {args.template}", observed=show(tasks[0].prompt_text, _MOST_SHOWN)
    )


def answered(task: Task, response: str) -> RewardInput:
    """A response to a task, behind the end of thinking that the prompt opens."""
    text = thinking_end(task.prompt_text) + response
    return RewardInput(
        prompt_text=task.prompt_text,
        response_text=text,
        raw_text=text,
        ground_truth=task.payload.get("ground_truth"),
        domain=task.domain,
        payload=task.payload,
        question=task.question,
        pictures=task.pictures,
    )


def reward_findings(config: RLVRConfig, task: Task) -> Iterator[Finding]:
    """Score the reference answer (behind thinking that the prompt opens) and an empty answer with the reward. Most want
    a form around the answer, so a score of 0 says little, and a failure much."""
    settings, at = config.rewards[task.domain], f"rewards.{task.domain}"
    if settings.is_model or settings.is_judge:
        yield Finding("ok", f"{at}: scored by a model: not checked here", at)
        return
    truth = task.payload.get("ground_truth")
    answers = ["", *([str(truth)] if truth not in (None, "") else [])]
    worker = RewardWorker(task.domain, settings)
    for answer, outcome in zip(answers, worker.score([answered(task, each) for each in answers]), strict=True):
        what = f"{at}: {show(answer, 60) if answer else 'an empty answer'} to the first row"
        if outcome is None or outcome.failure is not None:
            why = "nothing" if outcome is None else outcome.failure
            yield Finding("problem", f"{what} fails: {why}", at, "Correct the reward, or the rows that it reads")
        else:
            yield Finding("ok", f"{what} gets {outcome.score:g}")
