"""`model_args.fused_kernel_options`: what a role cannot do with it, before anything starts."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from roll.configs.problems import Problem
from roll.configs.strategies.features import Feature
from roll.configs.strategies.spec import Choice, Package
from roll.configs.strategies.table import feature_problem
from roll.utils.imports import is_installed

KERNELS: Mapping[str, Package] = {
    "cut_cross_entropy": Package("cut_cross_entropy", command="pip install cut-cross-entropy"),
}
_WRONG = (
    "its kernel multiplies the gradient of all tokens by that of the first one where tokens have weights of their own "
    "(liger-kernel 0.8.5; linkedin/Liger-Kernel#968)"
)


def fused_head_problems(choice: Choice) -> Iterator[Problem]:
    """Finds what a role cannot do with its kernel, whatever the machine."""
    options, key = choice.worker.model_args.fused_kernel_options, _key(choice)
    backend = options.impl_backend
    if options.model_fields_set and choice.role.head != "lm":
        at = key.rpartition(".")[0]
        yield Problem(f"{at}: {choice.role.name} computes no log-probs, and has no use for it. Remove it.", (at,))
    elif backend == "liger":
        yield Problem(f"{key}: liger: {_WRONG}. Use {' or '.join(KERNELS)} on GPUs, or torch.", (key,))
    elif backend != "torch" and (problem := feature_problem(choice, Feature.FUSED_HEAD, backend)):
        yield problem


def fused_head_machine_problems(choice: Choice) -> Iterator[Problem]:
    """What this machine lacks for it, where the run is this machine's."""
    backend, key = choice.worker.model_args.fused_kernel_options.impl_backend, _key(choice)
    package = KERNELS.get(backend)
    if package is None:
        return
    if not is_installed(package.module):
        text = f"{backend} needs the package {package.module}, which is not installed. Install it: {package.install}"
        yield Problem(f"{key}: {text}", (key,), "machine")
    if choice.num_nodes == 1 and not any(Path("/dev").glob("nvidia[0-9]*")):
        yield Problem(f"{key}: {backend} runs on GPUs only, and this machine has none. Use torch.", (key,), "machine")


def _key(choice: Choice) -> str:
    return f"{choice.role.name}.model_args.fused_kernel_options.impl_backend"
