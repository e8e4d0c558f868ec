"""Babel up to 2.11.0 keeps every date pattern that it has parsed in a dictionary of the module, and never removes one.

https://github.com/python-babel/babel/issues/962, fixed in 2.12.0 by a cache of 1,024 patterns (pull request #967).
Each pattern names another request, as formats do that users write, or that messages are put into.
"""

import gc
import json
import sys
import time
from datetime import datetime

from babel import dates

day = datetime(2007, 4, 1, 13, 27, 53)
for number in range(int(sys.argv[1])):
    dates.format_datetime(day, f"yyyy-MM-dd 'request {number}'", locale="en")
gc.collect()

patterns = [one for one in gc.get_objects() if type(one) is dates.DateTimePattern]
print(json.dumps({"objects": len(patterns), "one": hex(id(patterns[-1]))}))
del patterns
print("ready", flush=True)
time.sleep(3600)
