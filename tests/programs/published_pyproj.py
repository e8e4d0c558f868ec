"""pyproj up to 3.4.0 leaks the objects that proj_identify() lists: one PJ per call, and all memory that is reachable from it.

https://github.com/pyproj4/pyproj/pull/1178, fixed in 3.4.1: "BUG: Fix CRS.to_authority memory leak (pull #1178)".
The loop is that of the pull request, in a thread, as in a server. When the thread ends, so does its connection to
PROJ's database; otherwise the connection's caches would contain old pointers.
"""

import sys
import threading
import time

from pyproj import CRS


def serve() -> None:
    for _ in range(int(sys.argv[1])):
        CRS.from_epsg(3857).to_epsg()


worker = threading.Thread(target=serve)
worker.start()
worker.join()
print("ready", flush=True)
time.sleep(3600)
