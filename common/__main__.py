"""Entry point of `python -m findleaks`."""

from findleaks.cli import run

run()
