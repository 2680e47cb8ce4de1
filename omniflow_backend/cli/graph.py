"""``omniflow graph``: the workflow as a picture or in words."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from omniflow_backend.cli.workflows import find_workflow


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("graph", help="draw a workflow, or explain it in words")
    parser.add_argument("workflow", help="a shipped workflow, FILE.py[:NAME] or package.module:NAME")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--svg", action="store_true", help="as SVG")
    form.add_argument("--mermaid", action="store_true", help="as Mermaid text")
    parser.add_argument("--output", "-o", type=Path, help="write to this file instead of standard output")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from omniflow_backend.planning.explain import explain
    from omniflow_backend.planning.picture import to_mermaid, to_svg

    plan = find_workflow(arguments.workflow).workflow.compile()
    text = to_svg(plan) if arguments.svg else to_mermaid(plan) if arguments.mermaid else explain(plan)
    if arguments.output is None:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
    else:
        arguments.output.write_text(text)
        print(arguments.output.resolve())
    return 0
