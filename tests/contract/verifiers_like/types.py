"""Says where a rollout finds its model."""

from dataclasses import dataclass


@dataclass
class ClientConfig:
    api_key_var: str
    api_base_url: str
