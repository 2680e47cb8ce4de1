"""What every Python stub of ours needs before anything else; in one place."""

from __future__ import annotations

import locale
import logging
import os
import sys
from pathlib import Path

from omniflow_backend.deployment import RUNTIME_DIRECTORY

PYTHON_PATH = "OMNIFLOW_PYTHON_PATH"
LOG_LEVEL = "OMNIFLOW_LOG_LEVEL"


def prepare_stub_process() -> None:
    """Undo what Triton's embedded interpreter leaves out: it ignores the locale and every ``PYTHON*`` variable.

    Without the locale ``open()`` decodes ASCII, and tokenizers fail to load. ``OMNIFLOW_PYTHON_PATH`` lists where the
    launcher finds modules.
    """
    locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    known = set(sys.path)
    for entry in os.environ.get(PYTHON_PATH, "").split(os.pathsep):
        if entry and entry not in known:
            sys.path.append(entry)
            known.add(entry)
    logging.basicConfig(
        level=os.environ.get(LOG_LEVEL, "WARNING").upper(),
        format="%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s",
        stream=sys.stderr,
    )


def runtime_directory() -> Path:
    """The deployment's runtime directory. Raises ``RuntimeError`` outside of a deployment."""
    directory = os.environ.get(RUNTIME_DIRECTORY)
    if not directory:
        raise RuntimeError(
            f"{RUNTIME_DIRECTORY} is not set: start the server with `omniflow serve`, or set it to a private directory"
        )
    return Path(directory)
