"""Addresses on which the processes of a run listen for each other: loopback on one node, otherwise one interface of
each node."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from roll.utils.network import LOOPBACK, address_of, interface_of

_GLOO, _NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"


@dataclass(frozen=True)
class NodeNetwork:
    """`address`: where others reach the node's workers. `variables`: what makes gloo and NCCL listen there."""

    address: str
    variables: Mapping[str, str]


def loopback_network() -> NodeNetwork:
    return NodeNetwork(LOOPBACK, _variables(interface_of(LOOPBACK)))


def node_network(ray_address: str, network_interface: str | None) -> NodeNetwork:
    """Asked on the node itself. Without `network_interface` it is the interface of Ray's address, except where
    variables of the node, set before Ray was started there, name others. ResourceError if there is no such
    interface."""
    if network_interface is not None:
        return NodeNetwork(address_of(network_interface), _variables(network_interface))
    ours = _variables(interface_of(ray_address))
    return NodeNetwork(ray_address, {name: os.environ.get(name, value) for name, value in ours.items()})


def _variables(interface: str) -> dict[str, str]:
    return {_GLOO: interface, _NCCL: f"={interface}"}  # for NCCL a bare name is the beginning of one
