"""A growing dictionary. For each number on standard input, adds this number of sessions, and makes the same number of strings
that are dropped. Prints the number of entries."""

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
