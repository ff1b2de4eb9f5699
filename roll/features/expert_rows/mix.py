"""The expert's rows of a run, step by step: where they stand, and how an update learns them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from roll.configs.plan.batch_plan import BatchPlan
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.teachers import ExpertRowsConfig
from roll.datasets.chosen_rows import Places, row_choice
from roll.datasets.conversations import Columns, load_conversations
from roll.datasets.mixing import RowSource
from roll.distributed.executor.jobs import TrainJob
from roll.distributed.executor.roles import share
from roll.rl.parts import ActorJob, StepContext, StepPart
from roll.rl.settings import mixed_loss
from roll.run.policy_tokenizer import policy_tokenizer
from roll.run.saving.resume import data_place
from roll.types.batch import Rows, RowSet
from roll.types.packing import rows_by_rank


class Mix(StepPart):
    """Draws the rows of every update in which the policy learns. How many there are does not depend on ranks, and none
    is drawn in a step where they have no weight."""

    state_key = "mix"

    def __init__(
        self, config: AlgorithmConfig, plan: BatchPlan, sources: Mapping[str, RowSource] = MappingProxyType({})
    ):
        """`sources` are read by `prepare`, unless they are there."""
        self.sources = sources
        self._config, self._num_ranks = config, plan.actor_train.dp_size
        self._counts = config.mix.rows_per_update(plan.actor_train.samples_per_update)

    def prepare(self, config: AlgorithmConfig, plan: BatchPlan) -> None:
        """Raises ConfigError for what is wrong with the rows."""
        sources, tokenizer = {}, policy_tokenizer("actor_train", config.actor_train.model_args)
        for name, keys in config.mix.drawn.items():
            at, columns = f"mix.rows.{name}.data_args", columns_of(keys)
            places = Places({at: keys.data_args}, at)
            choose = row_choice(places, at, columns.texts, tokenizer)
            reads = columns, tokenizer, config.trained_length, config.shared_template
            rows = load_conversations(keys.data_args, at, *reads, choose)
            sources[name] = RowSource(rows, config.seed, keys.data_args.shuffle, at)
        self.sources = sources

    def actor_job(self, at: StepContext, job: ActorJob) -> ActorJob:
        return self.add_expert_rows(job.job, at.step) or job

    def add_expert_rows(self, job: TrainJob, step: int) -> ActorJob | None:
        """The rows that the updates of the job have beside those of the step, the first of which is 0; None: none."""
        weight = self._config.mix.weight_at(step + 1)
        if not self.sources or not weight:
            return None
        parts = [source.next_rows(self._counts[name]) for _ in range(job.num_updates) for name, source in self._each]
        rows = Rows.concatenate(parts)
        metrics = {
            "actor/expert_weight": weight,
            "actor/expert_rows": float(len(rows)),
            "actor/expert_tokens": float(rows.response_lengths.sum()),
            **{f"actor/expert_epochs/{name}": source.epochs for name, source in self._each},
        }
        loss = mixed_loss(self._config, job.loss, weight)
        return ActorJob(replace(job, loss=loss), self._shared(rows, job.num_updates), metrics)

    def state(self) -> dict[str, Any]:
        return {name: source.state_dict() for name, source in self._each}

    def resume(self, saved: Any, path: Path) -> None:
        self.load_state(saved or {}, path)

    def load_state(self, state: Mapping[str, Mapping[str, Any]], path: Path) -> None:
        """Goes on where the state of the checkpoint was taken; rows that it does not know begin."""
        for name, source in self._each:
            if name in state:
                data_place(source, state[name], path)

    @property
    def _each(self) -> list[tuple[str, RowSource]]:
        return list(self.sources.items())

    def _shared(self, rows: Rows, num_updates: int) -> RowSet:
        """Each update's rows on all ranks; copies of the shortest row, with nothing to learn, make them even."""
        per_update = len(rows) // num_updates
        missing = -per_update % self._num_ranks
        padding = rows.select(np.full(num_updates * missing, np.argmin(rows.lengths)))
        padding = replace(padding, response_mask=np.zeros(padding.num_tokens, bool))
        everything = Rows.concatenate([rows, padding])
        policy_rows = np.arange(len(rows)).reshape(num_updates, -1)
        more = len(rows) + np.arange(len(padding)).reshape(num_updates, -1)
        order = np.concatenate([policy_rows, more], axis=1).ravel()
        return RowSet(
            everything.lengths,
            share(everything, rows_by_rank(everything.lengths, order, num_updates, self._num_ranks)),
        )


def columns_of(keys: ExpertRowsConfig) -> Columns:
    """The columns of an expert's rows, as the keys of `mix.rows` name them."""
    names = (keys.prompt_key, keys.query_key, keys.response_key, keys.system_key, keys.tools_key)
    return Columns(*names, keys.train_on)
