"""Pictures of a plan: SVG and Mermaid, with every join and its anchor marked (contract section 9)."""

from omniflow_backend.planning.picture.mermaid import to_mermaid
from omniflow_backend.planning.picture.svg import to_svg

__all__ = ["to_mermaid", "to_svg"]
