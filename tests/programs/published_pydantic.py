"""Validate a model with a field of type Iterable, as often as the argument says. Each time, pydantic 2.7.0 keeps two iterators and a
list. Prints "ready" and waits."""

import gc
import sys
import time
from collections.abc import Iterable

from pydantic import BaseModel


class Trace(BaseModel):
    elements: Iterable[int]


def validate(number):
    Trace(elements=[number, number + 1, number + 2])


for number in range(int(sys.argv[1])):
    validate(number)
gc.collect()
print("ready", flush=True)
time.sleep(3600)
