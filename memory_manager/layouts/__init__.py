"""Between the layouts that models compute in and the one that pages are stored in (paper, section 4.1.2)."""

from memory_manager.layouts.conversion import PageConverter
from memory_manager.layouts.moves import ConversionPath, Direction, PageMove
from memory_manager.layouts.page import PageLayout
from memory_manager.layouts.stacks import BlockStacks

__all__ = ["BlockStacks", "ConversionPath", "Direction", "PageConverter", "PageLayout", "PageMove"]
