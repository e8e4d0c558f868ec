"""Inside an emulated machine: installs findleaks and capstone from the wheels beside it, runs a program until it prints "ready", runs
findleaks on the live process, and prints the output of both and the available packages as three lines of JSON.
usage: foreign_inside.py WORDS -- COMMAND"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

here, folder = Path.cwd(), "/tmp/findleaks"
(pip,) = Path("/usr/share/python-wheels").glob("pip-*.whl")
wheels = here.glob("*.whl")
installing = [sys.executable, f"{pip}/pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--target", folder, *wheels]
subprocess.run(installing, check=True, stdout=sys.stderr)
split = sys.argv.index("--")
words, command = sys.argv[1:split], sys.argv[split + 1 :]
program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
said = []
while not said or said[-1] != "ready\n":
    line = program.stdout.readline()
    if not line:
        sys.exit(f"{command} ended")
    said.append(line)


def asleep():
    stats = [stat.read_text() for stat in Path(f"/proc/{program.pid}/task").glob("*/stat")]
    return not any(stat.rpartition(")")[2].split()[0] in "RD" for stat in stats)


while not asleep():
    time.sleep(0.1)
environment = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
asked = [sys.executable, "-m", "findleaks", *words, "--pid", str(program.pid)]
done = subprocess.run(asked, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
print(json.dumps("".join(said)))
print(json.dumps(done.stdout))
ENGINE = "from findleaks.engine import load; from findleaks.target.arch import AARCH64; print(load.load(AARCH64).name)"
engine = subprocess.run([sys.executable, "-c", ENGINE], env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
print(json.dumps({"machine": os.uname().machine, "compiler": shutil.which("cc") or shutil.which("gcc"), "engine": engine}))
print("ready", flush=True)
program.wait()
