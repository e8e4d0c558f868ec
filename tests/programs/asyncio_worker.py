"""A task whose local variable keeps jobs that nothing takes. Prints "ready" when the task sleeps."""

import asyncio
import functools


class Job:
    def __init__(self, number):
        self.number = number
        self.payload = bytes(2000) + number.to_bytes(4, "little")


class Worker:
    def __init__(self):
        self.pending = []


async def main():
    worker = Worker()
    for number in range(8000):
        worker.pending.append(Job(number))
    asyncio.get_running_loop().call_later(0.1, functools.partial(print, "ready", flush=True))
    await asyncio.sleep(3600)


asyncio.run(main())
