# A queue that nobody empties: a variable of the first coroutine and of two others refer to it.
import asyncio


class Job:
    def __init__(self, number):
        self.text = f"job {number} " * 20


async def produce(jobs):
    for number in range(40_000):
        jobs.put_nowait(Job(number))
    print("ready", flush=True)
    await asyncio.sleep(3600)


async def consume(jobs):
    await asyncio.sleep(3600)
    await jobs.get()


async def main():
    backlog = asyncio.Queue()
    consumer = asyncio.create_task(consume(backlog))
    await produce(backlog)
    await consumer


asyncio.run(main())
