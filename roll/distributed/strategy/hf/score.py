"""`hf_infer` for scoring: a plain Hugging Face model on every rank. The ranks know nothing of each other."""

from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.strategy.base import RankContext, State
from roll.distributed.strategy.host_copies import HostCopies, tensors_of
from roll.distributed.strategy.model_score import ModelScoreStrategy
from roll.models.loading import load_model
from roll.platforms.table import platform_of


class HfScoreStrategy(ModelScoreStrategy):
    """Log-probs of the reference or of old weights, values of a critic, numbers of a reward model."""

    def __init__(self, role: WorkerConfig, context: RankContext):
        super().__init__(role, context)
        self.platform = platform_of(context.device)
        self._copies = HostCopies(frozen=True)

    def setup(self) -> None:
        self.platform.set_device(self.context.device)
        self._model = load_model(self.role.model_args, self.context.head)
        self._model.module.requires_grad_(False).eval().to(self.context.device)
        self._prepare()

    def offload_states(self, states: frozenset[State]) -> None:
        if State.WEIGHTS in states and self.context.device.type != "cpu":
            self._copies.take(tensors_of(self.model.module))
            self.platform.empty_cache()

    def load_states(self, states: frozenset[State]) -> None:
        if State.WEIGHTS in states:
            self._copies.bring_back(tensors_of(self.model.module))

    def shutdown(self) -> None:
        self._model = None
        self.platform.empty_cache()
