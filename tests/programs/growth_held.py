"""A dictionary that grows among others. Reads numbers from standard input, a line each: adds as many sessions, and makes as many strings
that do not stay. Prints how many entries there are."""

import sys


class Session:
    def __init__(self, user: int) -> None:
        self.cart: list[str] = []
        self.note = f"session {user}, of a length that is no one else's"


sessions: dict[int, Session] = {}
names = [f"a name with the number {n}" for n in range(3000)]
print("ready", flush=True)
for line in sys.stdin:
    for number in range(int(line)):
        sessions[len(sessions)] = Session(number)
        str(number)
    print(f"sessions {len(sessions)}\nready", flush=True)
