"""Let the workers of a dask.distributed scheduler examine cores on many machines.

Each core is a task. If a worker ends during a task, the scheduler gives the task to another worker.
After several such failures it gives up, and the row of the core reports this. A worker reads each
core in a separate process (alone.py), which ends with the worker."""

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
from findleaks.triage.examine import Source, make_failure
from findleaks.triage.pool import PR_SET_PDEATHSIG, WAIT
from findleaks.triage.row import Row, unpack_row

CONNECT = 20.0  # seconds to wait for the scheduler
_ALONE = "from findleaks.triage.alone import main; main()"


def examined_by(
    address: str, sources: Sequence[Source], memory: Optional[int], timeout: float, sysroot: str, waiting: Callable[[], None]
) -> Generator[tuple[Source, Row], None, None]:
    """Yield each source once, with its row, when it has been examined.

    The workers open the files by the same names. `waiting` is called at least every WAIT seconds.
    Closing the generator cancels the remaining tasks. Raises FindleaksError if there is no
    scheduler, or if dask.distributed is not installed."""
    try:
        distributed: Any = import_module("distributed")
    except ImportError as error:
        raise FindleaksError(
            f"--scheduler needs dask.distributed ({error}): pip install 'findleaks[fleet]', here and on the workers"
        ) from None
    # Logging is disabled, because the rows report failures, and Ctrl-C may interrupt a call of a
    # logger. Loggers below these, such as distributed.client, have their own levels.
    for logger in [name for name in logging.root.manager.loggerDict if name.partition(".")[0] in ("distributed", "tornado", "asyncio")]:
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    try:
        client = distributed.Client(address, timeout=CONNECT, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise FindleaksError(f"--scheduler {address}: no scheduler answers ({why[:200]}): start one with `dask scheduler`") from None
    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
    # With a fixed key, the scheduler would return the result of an earlier run.
    run = uuid.uuid4().hex
    tasks: dict[str, tuple[Source, Any]] = {}
    try:
        for number, source in enumerate(sources):
            asked = _request_row(source, memory, timeout, sysroot)
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


def _request_row(source: Source, memory: Optional[int], timeout: float, sysroot: str) -> dict[str, Any]:
    there = source._replace(path=os.path.abspath(source.path))
    return {"source": list(there), "memory": memory, "timeout": timeout, "sysroot": os.path.abspath(sysroot) if sysroot else ""}


def _row(source: Source, task: Any) -> Row:
    """Return the row of a finished task. If the worker ended before the row was fetched, the
    scheduler repeats the task, and this function waits for it."""
    try:
        return unpack_row(task.result())
    except (KeyError, TypeError, ValueError):
        return make_failure(source, "the worker returned no row; check that it has the same version of findleaks")
    except Exception as error:  # the exception that the task raised on the worker, or KilledWorker
        if type(error).__name__ == "KilledWorker":
            return make_failure(source, "every worker that read it was killed")
        return make_failure(source, f"the worker failed: {type(error).__name__}: {error}")


def examine_apart(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Read a core in a separate process, and return its packed row. This function runs on a
    worker."""
    done = subprocess.run(
        [sys.executable, "-c", _ALONE], input=json.dumps(asked).encode("ascii"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    if not done.stdout:
        return make_failure(Source(*asked["source"]), f"the process that read it ended with status {done.returncode}").pack()
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def end_with_parent() -> None:
    """Let the kernel end this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == 1:
        os._exit(1)  # the parent has already ended
