"""Keys that count only while another is on: given without it, a warning names them."""

from collections.abc import Iterator, Mapping

from roll.configs.base import Settings, join

Switches = Mapping[str, tuple[str, ...]]
"""Keys by their switch, both as paths below the settings that have them."""

RL: Switches = {
    "use_kl_loss": ("kl_loss_type",),
    "rollout_mock.enable": ("rollout_mock.mode", "rollout_mock.dump_dir"),
}
IS_WEIGHT: Switches = {
    "train_infer_correction.is_weight.enabled": (
        "train_infer_correction.is_weight.weight_type",
        "train_infer_correction.is_weight.upper_bound",
    )
}
RLVR: Switches = {
    "difficulty_mask": ("difficulty_low_threshold", "difficulty_high_threshold"),
    "error_max_len_clip": ("error_max_len_threshold",),
}
REWARD: Switches = {"dynamic_timeout.enable": ("dynamic_timeout.ratio", "dynamic_timeout.min_s")}
AGENTIC: Switches = {"env_monitor.enable": ("env_monitor.hung_timeout",)}
ROLE: Switches = {
    "use_dynamic_batching_in_train": ("max_tokens_per_microbatch_in_train", "sequence_length_round_in_train"),
    "use_dynamic_batching_in_infer": ("max_tokens_per_microbatch_in_infer", "sequence_length_round_in_infer"),
}


def switched_off(settings: Settings, switches: Switches, at: str = "") -> Iterator[str]:
    """Warns of keys that do nothing since their switch is off. `at`: the YAML path of the settings."""
    for switch, keys in switches.items():
        changed = [join(at, key) for key in keys if settings.is_changed(key)]
        if changed and not settings.value(switch):
            verb = "does" if len(changed) == 1 else "do"
            yield f"{' and '.join(changed)} {verb} nothing while {join(at, switch)} is off."
