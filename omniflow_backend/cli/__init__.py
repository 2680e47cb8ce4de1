"""The ``omniflow`` command."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from omniflow_backend.cli import chat, demo, doctor, graph, serve, trace
from omniflow_backend.errors import OmniFlowError


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code. Errors made for people are printed without a traceback."""
    parser = argparse.ArgumentParser(
        prog="omniflow", description="Multimodal inference as a workflow, on NVIDIA Triton."
    )
    parser.add_argument(
        "--log-level",
        default=os.environ.get("OMNIFLOW_LOG_LEVEL", "WARNING"),
        help="of every process (OMNIFLOW_LOG_LEVEL; default: %(default)s)",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (serve, chat, graph, trace, doctor, demo):
        command.add_parser(commands)
    parsed = parser.parse_args(arguments)
    level = parsed.log_level.upper()
    if level not in logging.getLevelNamesMapping():
        parser.error(f"--log-level: {parsed.log_level!r} is none of DEBUG, INFO, WARNING, ERROR")
    os.environ["OMNIFLOW_LOG_LEVEL"] = level
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        return int(parsed.run(parsed))
    except OmniFlowError as error:
        print(f"omniflow: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
