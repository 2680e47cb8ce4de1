"""The activation channel: how an orchestrator runs activations in the processes of its roles."""

from omniflow_backend.triton.channel.client import ChannelPeer, RoleChannel
from omniflow_backend.triton.channel.server import ActivationServer, ActivationSink, RunningActivation
from omniflow_backend.triton.channel.wire import PROTOCOL_VERSION, Start

__all__ = [
    "PROTOCOL_VERSION",
    "ActivationServer",
    "ActivationSink",
    "ChannelPeer",
    "RoleChannel",
    "RunningActivation",
    "Start",
]
