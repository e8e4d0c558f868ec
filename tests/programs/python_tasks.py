"""Tasks of asyncio that wait. Prints for each one its number and its chain of frames (file, line, function), the innermost first."""

import asyncio
import json
import signal
import types


class Service:
    def __init__(self):
        self.queue, self.never, self.lock = asyncio.Queue(), asyncio.get_running_loop().create_future(), asyncio.Lock()

    async def fetch(self):
        return await self.queue.get()

    async def handle(self, depth):
        if depth:
            return await self.handle(depth - 1)
        return await self.fetch()

    async def wait(self):
        async with self.lock:
            await self.never

    async def read(self):
        async for one in self.lines():
            print(one)

    async def lines(self):
        await self.never
        yield 1

    @types.coroutine
    def generate(self):
        yield from self.never

    async def old(self):
        await self.generate()

    def __await__(self):
        return self.never.__await__()

    async def own(self):
        await self


def chain_of(task):
    found, one = [], task.get_coro()
    while one is not None:
        code = getattr(one, "cr_code", None) or getattr(one, "gi_code", None) or getattr(one, "ag_code", None)
        frame = getattr(one, "cr_frame", None) or getattr(one, "gi_frame", None) or getattr(one, "ag_frame", None)
        if code is None or frame is None:
            break
        found.append((code.co_filename, frame.f_lineno, code.co_name))
        one = getattr(one, "cr_await", None) or getattr(one, "gi_yieldfrom", None) or getattr(one, "ag_await", None)
        if type(one).__name__ == "async_generator_asend":
            (one,) = (each for each in GENERATORS if each.ag_await is not None)
    return found[::-1]


GENERATORS = []


async def main():
    service = Service()
    lines = service.lines
    service.lines = lambda: GENERATORS.append(lines()) or GENERATORS[-1]
    coroutines = [service.handle(depth) for depth in (0, 1, 7, 7, 7)]
    coroutines += [service.wait(), service.wait(), service.read(), service.old(), service.own(), asyncio.sleep(100000)]
    tasks = [asyncio.create_task(one) for one in coroutines]
    tasks.append(asyncio.create_task(asyncio.wait_for(asyncio.gather(*tasks[:2]), 100000)))
    ended = asyncio.create_task(asyncio.sleep(0))
    await ended
    for _ in range(5):
        await asyncio.sleep(0)
    found = [(int(task.get_name().rpartition("-")[2]), chain_of(task)) for task in tasks]
    print(json.dumps(found), flush=True)
    print("ready", flush=True)
    while True:
        signal.pause()


asyncio.run(main())
