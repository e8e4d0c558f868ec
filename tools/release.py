"""The checklist of a release, as a program: `python tools/release.py [--quick] [FOLDER]`.

It checks the tree, builds the archives twice in FOLDER (by default dist), checks, compares and
installs them, writes the bill of materials, and prints the commands that are left for a person. Each
step prints `ok` or what is wrong; all steps run; the exit status is 1 if one failed. `--quick`: only the
steps that build nothing. `make wheels` installs the programs that the build needs."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
GENERATORS = ("generate_schema", "generate_api_docs", "generate_shell_files")
SCHEMA = "common/results/findleaks-1.schema.json"
PYTHONS = tuple(f"3.{minor}" for minor in range(9, 15))
LEAKED = {"definite": 71104, "indirect": 25536}
"""Bytes that the sample core's program leaked, as cores/README.md says, by kind."""


def main() -> int:
    made = argparse.ArgumentParser(description="Check a release, and build it.")
    made.add_argument("--quick", action="store_true", help="only the steps that build nothing")
    made.add_argument("folder", nargs="?", default=str(ROOT / "dist"), help="where the archives are written; emptied first")
    args = made.parse_args()
    filled_in = [changelog_is_ready, contact_is_filled_in, links_are_filled_in]
    steps = [version_is_new, *filled_in, tree_is_clean, generated_files_are_current, schema_is_compatible]
    failed = [step.__name__ for step in steps if not report(step.__name__, list(step()))]
    if not args.quick:
        folder = Path(args.folder).resolve()
        failed += [name for name, problems in build_steps(folder) if not report(name, problems)]
    if not failed:
        print(f"\nNow, by hand:\n  git tag -s v{version()} -m 'findleaks {version()}'\n  git push origin v{version()}")
        print(f"  twine upload {args.folder}/*.tar.gz {args.folder}/*.whl {args.folder}/other-machines/*.whl")
    return 1 if failed else 0


def report(name: str, problems: list[str]) -> bool:
    """Print the result of a step, and return whether it did not fail."""
    print(f"{'failed' if problems else 'ok':8}{name.replace('_', ' ')}")
    print("".join(f"        {problem}\n" for problem in problems), end="", flush=True)
    return not problems


def version(root: Path = ROOT) -> str:
    """The version that common/__init__.py states."""
    (found,) = re.findall(r'^__version__ = "([^"]+)"', (root / "common/__init__.py").read_text(encoding="utf-8"), re.M)
    return str(found)


def version_is_new(root: Path = ROOT) -> Iterator[str]:
    number = version(root)
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", number):
        yield f"{number} is not of the form 1.2.3, 1.2.3rc1"
    if f"v{number}" in git(root, "tag").split():
        yield f"the tag v{number} exists: increase __version__ in common/__init__.py"


def changelog_is_ready(root: Path = ROOT) -> Iterator[str]:
    """The newest section is that of this version, with a date, and nothing is left under Unreleased."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (.*)\n((?:(?!^## ).*\n?)*)", text, re.M)
    number = version(root)
    if sections and sections[0][0] == "Unreleased":
        if sections[0][1].strip():
            yield f"CHANGELOG.md: lines are under Unreleased: rename the section to `{number} – YYYY-MM-DD`"
        sections = sections[1:]
    if not sections or not re.fullmatch(re.escape(number) + r" [–-] \d{4}-\d\d-\d\d", sections[0][0]):
        yield f"CHANGELOG.md: there is no section `{number} – YYYY-MM-DD` at the top"


def contact_is_filled_in(root: Path = ROOT) -> Iterator[str]:
    for line in (root / "SECURITY.md").read_text(encoding="utf-8").splitlines():
        if "to be filled in" in line:
            yield f"SECURITY.md: {line.split('|')[1].strip()} is not filled in"


def links_are_filled_in(root: Path = ROOT) -> Iterator[str]:
    if "\n[project.urls]\n" not in (root / "pyproject.toml").read_text(encoding="utf-8"):
        yield "pyproject.toml: there is no [project.urls]: a package index would show no way to the repository"


def tree_is_clean(root: Path = ROOT) -> Iterator[str]:
    changed = git(root, "status", "--porcelain").splitlines()
    if changed:
        yield f"{len(changed)} files are not committed: {', '.join(line[3:] for line in changed[:5])}"


def generated_files_are_current(root: Path = ROOT) -> Iterator[str]:
    """The generators write what is there already."""
    before = git(root, "status", "--porcelain")
    for name in GENERATORS:
        done = subprocess.run([sys.executable, str(root / "tools" / f"{name}.py")], cwd=root, capture_output=True, text=True)
        if done.returncode:
            yield f"tools/{name}.py: {done.stderr.strip().splitlines()[-1]}"
    if git(root, "status", "--porcelain") != before:
        yield "tools/generate_*.py changed files: commit them"


def schema_is_compatible(root: Path = ROOT) -> Iterator[str]:
    """The JSON schema keeps the promises of docs/stability.md since the last release."""
    last = next(iter(git(root, "tag", "--list", "v*", "--sort=-v:refname").split()), None)
    if last:
        old = json.loads(git(root, "show", f"{last}:{SCHEMA}"))
        yield from broken_promises(old, json.loads((root / SCHEMA).read_text(encoding="utf-8")))


def broken_promises(old: dict[str, Any], new: dict[str, Any], at: str = "") -> Iterator[str]:
    """Yield what a reader of the schema `old` may miss in output that `new` describes."""
    for key in sorted(old.get("required", [])):
        if key not in new.get("required", []):
            yield f"{at}{key} is not always present any more"
    kinds = [{one} if isinstance(one, str) else set(one or ()) for one in (old.get("type"), new.get("type"))]
    if kinds[0] and kinds[1] - kinds[0]:
        yield f"{at or 'the document '}may be {', '.join(sorted(kinds[1] - kinds[0]))} now"
    if old.get("$ref") != new.get("$ref") and "$ref" in old:
        yield f"{at}refers to {new.get('$ref')}, not to {old['$ref']}"
    for part in ("properties", "$defs"):
        for name, value in old.get(part, {}).items():
            if name not in new.get(part, {}):
                yield f"{at}{name} is gone"
            elif isinstance(value, dict):
                yield from broken_promises(value, new[part][name], f"{at}{name}: ")
    if isinstance(old.get("items"), dict):
        yield from broken_promises(old["items"], new.get("items", {}), f"{at}items: ")


def build_steps(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Build, and check what was built. tools/build_wheels.py runs twine, check-wheel-contents and
    auditwheel."""
    shutil.rmtree(folder, ignore_errors=True)
    last = git(ROOT, "log", "-1", "--format=%ct").strip()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", last)}
    with tempfile.TemporaryDirectory() as place:
        again = Path(place) / "again"
        for target, name in ((folder, "archives are built and sound"), (again, "archives are built again")):
            words = [sys.executable, str(ROOT / "tools/build_wheels.py"), str(target)]
            done = subprocess.run(words, env=environment, capture_output=True, text=True)
            yield name, [done.stderr.strip() or done.stdout.strip()] if done.returncode else []
        hashes = [{file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in archives(one)} for one in (folder, again)]
        yield "both builds are identical", [name for name in hashes[0] if hashes[0][name] != hashes[1].get(name)]
        (wheel,) = folder.rglob("*manylinux*x86_64.whl")
        for python in PYTHONS:
            program = shutil.which(f"python{python}")
            if program and subprocess.run([program, "-c", "import venv"], capture_output=True).returncode == 0:
                problems = list(install(program, wheel, Path(place) / python))
            else:
                problems = [f"no python{python} with venv on PATH: install one"]
            yield f"the wheel works in a clean Python {python}", problems
    bill = folder.parent / f"findleaks-{version()}.cdx.json"
    words = [sys.executable, str(ROOT / "tools/write_sbom.py"), str(bill), *map(str, archives(folder))]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    yield f"the bill of materials is written: {bill}", [done.stderr] if done.returncode else []


def archives(folder: Path) -> list[Path]:
    """The archives of a release: those in `folder`, and the wheels for other machines in a folder of it."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def install(python: str, wheel: Path, folder: Path) -> Iterator[str]:
    """Install the wheel and its libraries in a new virtual environment, and find the leaks of the
    sample core there."""
    for words in ([python, "-m", "venv", folder], [folder / "bin/pip", "install", "-q", wheel]):
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            yield done.stderr.strip() or done.stdout.strip()
            return
    words = [folder / "bin/findleaks", "find", "--json", ROOT / "cores/sample.core.gz"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder)
    totals = json.loads(done.stdout)["totals"] if done.returncode == 0 else {}
    if {kind: totals.get(kind, {}).get("bytes") for kind in LEAKED} != LEAKED:
        yield done.stderr.strip() or f"wrong totals: {totals}"
    done = subprocess.run([folder / "bin/findleaks", "-V"], capture_output=True, text=True, cwd=folder)
    if done.stdout != f"findleaks {version()}\n":
        yield f"findleaks -V prints {done.stdout.strip()!r}: the C engine is not in use"


def git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
