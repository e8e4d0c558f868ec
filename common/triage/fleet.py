"""Cores examined by the workers of a dask.distributed scheduler, on many machines.

A core is a task. Of a worker that ends in the middle, the scheduler gives the tasks to others; one
whose workers ended again and again it gives up, and that is the core's row. On the worker the core
is read in a process of its own (alone.py), which ends with it.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from importlib import import_module
from typing import Any, Optional

from findleaks.errors import FindleaksError
from findleaks.triage.examine import Source, failed
from findleaks.triage.pool import PR_SET_PDEATHSIG, WAIT
from findleaks.triage.row import Row, unpacked

CONNECT = 20.0  # seconds for the scheduler to answer
_ALONE = "from findleaks.triage.alone import main; main()"


def examined_by(
    address: str, sources: Sequence[Source], memory: Optional[int], timeout: float, sysroot: str, waiting: Callable[[], None]
) -> Generator[tuple[Source, Row], None, None]:
    """Each source with its row, once, as they are done. The workers open the files by the same
    names. `waiting` is called at least every WAIT seconds. Closing the generator cancels what is
    left. FindleaksError where there is no scheduler, or no dask.distributed."""
    try:
        distributed: Any = import_module("distributed")
    except ImportError as error:
        raise FindleaksError(
            f"--scheduler needs dask.distributed ({error}): pip install 'findleaks[fleet]', here and on the workers"
        ) from None
    # The rows say what went wrong; and Ctrl-C may come in the middle of a call of these.
    # Loggers below these, such as distributed.client, have levels of their own.
    for logger in [name for name in logging.root.manager.loggerDict if name.partition(".")[0] in ("distributed", "tornado", "asyncio")]:
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    try:
        client = distributed.Client(address, timeout=CONNECT, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise FindleaksError(f"--scheduler {address}: no scheduler answers ({why[:200]}): start one with `dask scheduler`") from None
    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
    run = uuid.uuid4().hex  # else the scheduler would answer with what an earlier run found
    tasks: dict[str, tuple[Source, Any]] = {}
    try:
        for number, source in enumerate(sources):
            asked = _asked(source, memory, timeout, sysroot)
            task = client.submit(examine_apart, asked, key=f"findleaks-{run}-{number}", pure=False)
            tasks[task.key] = source, task
            task.add_done_callback(ended.put)
        while tasks:
            waiting()
            try:
                task = ended.get(timeout=WAIT)
            except queue.Empty:
                continue
            if task.key in tasks:
                source, kept = tasks.pop(task.key)
                yield source, _row(source, kept)
    finally:
        client.cancel([task for _, task in tasks.values()])
        client.close()


def _asked(source: Source, memory: Optional[int], timeout: float, sysroot: str) -> dict[str, Any]:
    there = source._replace(path=os.path.abspath(source.path))
    return {"source": list(there), "memory": memory, "timeout": timeout, "sysroot": os.path.abspath(sysroot) if sysroot else ""}


def _row(source: Source, task: Any) -> Row:
    """The row of a task that is done. Where its worker ended before the row was fetched, the
    scheduler has it made again, and this waits for it."""
    try:
        return unpacked(task.result())
    except (KeyError, TypeError, ValueError):
        return failed(source, "the worker gave no row: has it another version of findleaks?")
    except Exception as error:  # what the task raised on the worker, or KilledWorker
        if type(error).__name__ == "KilledWorker":
            return failed(source, "the workers that read it were ended, one after the other")
        return failed(source, f"the worker failed: {type(error).__name__}: {error}")


def examine_apart(asked: Mapping[str, Any]) -> dict[str, Any]:
    """On a worker: the packed row of a core, read in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _ALONE], input=json.dumps(asked).encode("ascii"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    if not done.stdout:
        return failed(Source(*asked["source"]), f"the process that read it ended with status {done.returncode}").packed()
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def end_with_parent() -> None:
    """Have the kernel end this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == 1:
        os._exit(1)  # it has ended already
