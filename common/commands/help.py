"""The help of a command. The output of --help fits on a screen: it describes what the command does,
and the most common options. --help-all adds the details and the other options."""

from __future__ import annotations

import argparse
import os
from typing import Any, Optional

from findleaks.report.columns import UNCUT, terminal_columns

_WORDS = """
    --format --heuristics --suppressions --frames --no-lines --type --hints --debug-types
    --no-debug-types --pools --residency --exe --sysroot --allocator --sort --not-under --module
    --enter --leave --folded --no-native --memory --scheduler --timeout --coredumpctl --baseline
"""
RARE = frozenset(_WORDS.split())
"""Options that --help names without a description."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Prints the value of an option only once, as Python 3.13 does: `-o, --output FILE`."""

    def __init__(self, prog: str) -> None:
        columns = terminal_columns(os.environ.get("COLUMNS", ""))
        super().__init__(prog, max_help_position=26, width=(80 if columns == UNCUT else min(columns, 100)) - 2)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        return f"{', '.join(action.option_strings)} {self._format_args(action, self._get_default_metavar_for_optional(action))}"


class HelpRequested(Exception):
    """Raised by --help and --help-all to end parsing. The help is printed afterwards, because
    argparse changes the positional arguments while it parses. `whole`: whether to describe all
    options."""

    def __init__(self, whole: bool) -> None:
        self.whole = whole


class _HelpAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: Optional[str] = None) -> None:
        raise HelpRequested(whole=True)


def add_help_all(parser: argparse.ArgumentParser) -> None:
    """Add --help-all."""
    parser.add_argument("--help-all", action=_HelpAll, nargs=0, default=argparse.SUPPRESS, help="describe all options, and exit")


def short_help(parser: argparse.ArgumentParser) -> str:
    """Return the short help: the first paragraph of the description, the most common options, the
    names of the other options, and the example."""
    import textwrap  # every command imports this module, but few print help

    formatter = parser._get_formatter()
    formatter.add_usage(_usage(parser, formatter), (), ())
    formatter.add_text((parser.description or "").partition("\n\n")[0])
    others: list[str] = []
    for group in parser._action_groups:
        shown = [action for action in group._group_actions if argparse.SUPPRESS not in (action.help, action.default)]
        others += [action.option_strings[-1] for action in shown if not RARE.isdisjoint(action.option_strings)]
        formatter.start_section(group.title)
        formatter.add_arguments(action for action in shown if RARE.isdisjoint(action.option_strings))
        formatter.end_section()
    further = f"also describes {', '.join(others)}" if others else "describes more"
    formatter.add_text(textwrap.fill(f"`{parser.prog} --help-all` {further}.", formatter._width, break_on_hyphens=False))
    formatter.add_text(parser.epilog)
    return formatter.format_help()


def _usage(parser: argparse.ArgumentParser, formatter: argparse.HelpFormatter) -> str:
    """Return a usage line without the names of options: "findleaks refs [options] ADDR [core]"."""
    positional = [action for action in parser._actions if not action.option_strings and action.help != argparse.SUPPRESS]
    return " ".join([parser.prog, "[options]", *(formatter._format_args(action, action.dest) for action in positional)])
