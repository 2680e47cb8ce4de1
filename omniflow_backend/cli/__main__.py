"""``python -m omniflow_backend.cli`` is the ``omniflow`` command."""

import sys

from omniflow_backend.cli import main

sys.exit(main())
