"""`findleaks doctor` checks what this machine allows findleaks to do, and how to change it.

Nothing is changed, no process is stopped, and no server is contacted. Debuggers are started without
start-up files and without a program."""

from __future__ import annotations

import os
import platform

from findleaks import __version__
from findleaks.doctor.core_dumps import check_core_dumps
from findleaks.doctor.debuggers import check_debuggers
from findleaks.doctor.installation import check_installation
from findleaks.doctor.live_processes import check_live_processes
from findleaks.doctor.network import check_network
from findleaks.results.environment import Environment
from findleaks.target.ptrace import status


def examine_environment() -> Environment:
    """Run all checks. This takes about a second, because each debugger is started once."""
    checks = [*check_installation(), *check_debuggers(), *check_live_processes(status(os.getpid())), *check_core_dumps(), *check_network()]
    return Environment(__version__, platform.python_version(), os.path.dirname(os.path.dirname(os.path.realpath(__file__))), checks)
