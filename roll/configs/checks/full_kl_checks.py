"""What a KL over the whole vocabulary needs, and who cannot have it."""

from collections.abc import Iterator

from roll.configs.checks.head_checks import whole_head_problems
from roll.configs.plan.derive import compares_vocabulary
from roll.configs.problems import Problem
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.strategies.spec import Choice

_ESTIMATORS = "k1, k2, k3 or abs"


def full_kl_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    """Everything that cannot work, whatever the machine."""
    if "add_token_level_kl" in config.kl_terms and config.kl_penalty == "full":
        yield Problem(
            "kl_penalty: full: the KL in the reward is of old log-probs, which are those of the sampled tokens alone. "
            f"Choose {_ESTIMATORS}, or have whole distributions compared in the loss: use_kl_loss with kl_loss_type: "
            "full.",
            ("kl_penalty", "add_token_level_kl", "kl_loss_type"),
        )
    if not compares_vocabulary(config):
        return
    if config.policy_is_reference:
        yield Problem(
            "kl_loss_type: full takes hidden states and the head of a reference of its own; with "
            "actor_train.model_args.lora_target the reference is the policy without its adapters, which tells "
            f"log-probs alone. Choose {_ESTIMATORS}, or train all weights.",
            ("kl_loss_type", "actor_train.model_args.lora_target"),
        )
    elif config.reference is not None:
        reference, policy = Choice(config.roles["reference"], config.reference), ("actor_train", config.actor_train)
        yield from whole_head_problems("kl_loss_type", "full", reference, policy, f"kl_loss_type: {_ESTIMATORS}")
