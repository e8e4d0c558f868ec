"""Entry point of `python -m findleaks`."""

import sys

from findleaks.cli import main

sys.exit(main())
