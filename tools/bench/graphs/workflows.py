"""Every benchmark graph as an attribute, so that a Triton model can name it: ``bench.graphs.workflows:chat``."""

from __future__ import annotations

from bench.graphs.builder import Graph
from bench.graphs.shapes import SHAPES

from omniflow_backend import Workflow


def __getattr__(name: str) -> Workflow:
    if name not in SHAPES:
        raise AttributeError(name)
    return SHAPES[name](Graph(name))
