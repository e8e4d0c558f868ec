"""In each kind of installation, `import gdb` and `import lldb` load the debuggers' modules, and findleaks can be loaded into a debugger.

The dependencies of findleaks are importable there, without a change of the debugger's sys.path.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import layouts
import pytest
from layouts import Layout, run
from variants import mark_matrix_except

from findleaks import launcher

LAYOUTS = ("wheel", "editable", "bare")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return layouts.checkout(tmp_path_factory.mktemp("a checkout"))


@pytest.fixture(scope="module", params=mark_matrix_except(LAYOUTS, "wheel"))
def layout(request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "bare":
        return layouts.bare(source)
    kind = request.param
    wheel = layouts.build(source, folder / "dist", kind, CC="/bin/false")  # the C engine has no effect on where modules are found
    wheels = layouts.dependencies(folder / "wheels")
    return layouts.install_with_dependencies(kind, wheel, folder / "venv", source / "common" if kind == "editable" else None, wheels)


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """Return an environment with a home folder for start-up files, and without settings that make findleaks importable."""
    return {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}


def gdb(*words: object, **options: object) -> tuple[str, str]:
    done = run("gdb", "-batch", *words, **options)
    return done.stdout, done.stderr


def lldb(*words: object, **options: object) -> tuple[str, str]:
    done = run(launcher.lldb_program(), "--batch", *words, **options)
    return done.stdout, done.stderr


def test_findleaks_installs_no_gdb_or_lldb_module(layout: Layout, source: Path, tmp_path: Path) -> None:
    """Other packages may provide them: Debian's python3-lldb installs `lldb` for the system's Python."""
    code = "import findleaks.gdb, findleaks.lldb, findleaks.cli, importlib.util as u; print(findleaks.__file__)"
    done = layout.imports(code + "; print(u.find_spec('gdb'), u.find_spec('lldb'))", cwd=tmp_path)
    package, others = done.stdout.splitlines()
    assert (package, done.stderr) == (str(layout.package / "__init__.py"), "")
    assert str(layout.package) not in others
    assert str(source) not in others


def test_nothing_of_the_checkout_is_on_the_path(layout: Layout, source: Path, tmp_path: Path) -> None:
    done = layout.imports("import findleaks.cli, json, sys; print(json.dumps(sys.path))", cwd=tmp_path)
    entries = [Path(entry).resolve() for entry in json.loads(done.stdout) if entry]
    assert entries
    assert not [entry for entry in entries if entry == source or source in entry.parents]


def test_command_line(layout: Layout, tmp_path: Path) -> None:
    done = run(*layout.cli, "--version", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("findleaks ")


@pytest.mark.parametrize("front", ["gdb", "lldb"])
def test_import_of_our_folder_as_the_debugger_module_fails(front: str, source: Path) -> None:
    done = run(layouts.BASE, "-c", f"import {front}", cwd=source)
    assert done.returncode == 1
    assert f"ImportError: this is findleaks' folder {front}/" in done.stderr


IN_GDB = (
    "python import sys; before = list(sys.path), set(globals())",
    "python import gdb, json, findleaks.gdb",
    "python print(json.dumps([gdb.VERSION, gdb.__file__, findleaks.__file__, findleaks.gdb.__file__]))",
    "python print(json.dumps([before[0] == sys.path, sorted(set(globals()) - before[1] - {'before', 'json', 'findleaks', 'gdb'})]))",
)


def test_gdb(layout: Layout, source: Path, home: dict[str, str]) -> None:
    """GDB imports its own module also if it is started in the checkout."""
    first, *then = (word for line in IN_GDB for word in ("-ex", line))
    out, err = gdb("-nx", first, then[0], "-ex", f"source {layout.loader('gdb')}", *then[1:], "-ex", "help leaks", cwd=source, env=home)
    lines = out.splitlines()
    version, module, package, front = json.loads(lines[0])
    assert (err, version in run("gdb", "--version").stdout) == ("", True)
    assert source not in Path(module).parents
    assert (Path(package).parent, Path(front).parent) == (layout.package, layout.loader("gdb").parent)
    assert json.loads(lines[1]) == [True, []]
    assert any("find" in line and "leak" in line for line in lines[2:])


IN_LLDB = (
    "script import json, sys, lldb, findleaks.lldb",
    "script print('>' + json.dumps([lldb.__file__, findleaks.__file__, findleaks.lldb.__file__, sys.path]))",
)


def test_lldb(layout: Layout, source: Path, home: dict[str, str]) -> None:
    load = f"command script import {shlex.quote(str(layout.loader('lldb')))}"
    out, err = lldb("--no-lldbinit", "-o", load, "-o", IN_LLDB[0], "-o", IN_LLDB[1], "-o", "help leaks", cwd=source, env=home)
    module, package, front, path = json.loads(next(line[1:] for line in out.splitlines() if line.startswith(">")))
    assert err == ""
    assert source not in Path(module).parents
    assert (Path(package).parent, Path(front).parent) == (layout.package, layout.loader("lldb").parent)
    assert not [entry for entry in path if source in [Path(entry), *Path(entry).parents] or "venv" in entry]
    assert any("find" in line and "leak" in line for line in out.splitlines()[2:])


def init_lines(layout: Layout) -> dict[str, str]:
    """Return the lines that `findleaks init` prints for each start-up file."""
    done = run(*layout.cli, "init")
    assert (done.returncode, done.stderr) == (0, "")
    parts = done.stdout.split("\n\n")
    return {name: next(part for part in parts if f"~/{name}" in part) for name in (".gdbinit", ".lldbinit")}


def test_from_the_start_up_files(layout: Layout, tmp_path: Path, home: dict[str, str]) -> None:
    for name, lines in init_lines(layout).items():
        (tmp_path / name).write_text(lines + "\n")
    out, err = gdb("-ex", "help leaks", cwd=tmp_path, env=home)
    assert err == ""
    assert "whatis" in out
    out, err = lldb("-o", "help leaks", cwd=tmp_path, env=home)
    assert err == ""
    assert "whatis" in out


def test_start_of_a_debugger_with_findleaks(layout: Layout, tmp_path: Path, home: dict[str, str]) -> None:
    """The user's own arguments are passed on, and the exit status is the debugger's."""
    done = run(*layout.cli, "gdb", "-nx", "-batch", "-ex", "help leaks", "-ex", "quit 7", cwd=tmp_path, env=home)
    assert ("whatis" in done.stdout, done.stderr, done.returncode) == (True, "", 7)
    done = run(*layout.cli, "lldb", "--no-lldbinit", "-o", "help leaks", "-o", "quit 7", cwd=tmp_path, env=home)
    assert ("whatis" in done.stdout, done.stderr, done.returncode) == (True, "", 7)


# This runs before findleaks is loaded. The debuggers of this machine may have these libraries. Tests that need them to be missing hide them
# here, except for those on PYTHONPATH. The Python of a virtual environment has its own.
FIRST = """
import os, sys
own = [os.environ.get("PYTHONPATH")]
if sys.prefix != sys.base_prefix:
    own += [entry for entry in sys.path if entry.startswith(sys.prefix)]
names = ["capstone", "elftools"]
sys.path[:] = [entry for entry in sys.path if entry in own or not any(os.path.exists(os.path.join(entry, name)) for name in names)]
before = list(sys.path)
"""
THEN = r"""
import json
import findleaks.cli
early = [name for name in names if name in sys.modules]
from findleaks.debuginfo.elftools_loader import ELFTOOLS_MISSING, load_elftools
from findleaks.disasm.capstone_loader import CAPSTONE_MISSING, load_capstone
module = load_capstone()
code = list(module.Cs(module.CS_ARCH_X86, module.CS_MODE_64).disasm(b"\x62\xf1\x7c\x48\x58\xc1", 0)) if module else []
reader = load_elftools()
parsed = reader.dwarf.structs.DWARFStructs(True, 32, 8).the_Dwarf_uint16.parse(b"\x05\x00") if reader else 0
files = [each and each.__file__ for each in (module, reader)]
print(">" + json.dumps([early, sys.path == before, [line.mnemonic for line in code], parsed, files]))
"""
FOUND, MISSING = [[], True, ["vaddps"], 5], [[], True, [], 0, [None, None]]
DOORS = ("gdb", "lldb", "command line")


def ask(front_end: str, layout: Layout, folder: Path, env: dict[str, str]) -> list[Any]:
    """Return which libraries can be imported after the lines of `findleaks init` have loaded findleaks.

    The result is a list: modules imported at load, whether sys.path is unchanged, what capstone decoded, what pyelftools read, and the
    files of both libraries (None if a library is missing).
    """
    scripts = [folder / "first.py", folder / "then.py"]
    for script, text in zip(scripts, (FIRST, THEN)):
        script.write_text(text)
    first, then = (f"exec(open({str(script)!r}).read())" for script in scripts)
    if front_end == "command line":
        done = layout.imports(f"{first}\n{then}", cwd=folder, env=env)
        out, err = done.stdout, done.stderr
    else:
        python, option = ("python", "-ex") if front_end == "gdb" else ("script", "-o")
        lines = [f"{python} {first}", *init_lines(layout)[f".{front_end}init"].splitlines()[1:], f"{python} {then}"]
        words = [word for line in lines for word in (option, line)]
        out, err = gdb("-nx", *words, cwd=folder, env=env) if front_end == "gdb" else lldb("--no-lldbinit", *words, cwd=folder, env=env)
    assert err == ""
    answer: list[Any] = json.loads(next(line[1:] for line in out.splitlines() if line.startswith(">")))
    return answer


@pytest.mark.parametrize("front_end", DOORS)
def test_libraries_of_the_environment(front_end: str, layout: Layout, source: Path, tmp_path: Path, home: dict[str, str]) -> None:
    """Debuggers use the libraries that pip or pipx installed with findleaks; for an editable checkout, those of the environment of
    `findleaks init`. If neither library is available, a message says that it is missing."""
    *answer, files = ask(front_end, layout, tmp_path, home)
    if layout.name == "bare":
        assert [*answer, files] == MISSING
    else:
        assert answer == FOUND
        assert all(Path(layout.python[0]).parents[1] in Path(file).parents for file in files)


@pytest.fixture
def with_venv(layout: Layout, source: Path) -> Iterator[Layout]:
    """Return the checkout with a .venv, which is the environment that runs the tests (`make venv`)."""
    link = source / ".venv"
    link.symlink_to(sys.prefix)
    yield layout
    link.unlink()


@pytest.mark.parametrize("layout", ["bare"], indirect=True)
@pytest.mark.parametrize("front_end", mark_matrix_except(DOORS, "gdb"))
def test_libraries_of_the_checkouts_venv(front_end: str, with_venv: Layout, source: Path, tmp_path: Path, home: dict[str, str]) -> None:
    *answer, files = ask(front_end, with_venv, tmp_path, home)
    assert answer == FOUND
    assert all(source / ".venv" in Path(file).parents for file in files)


@pytest.mark.parametrize("layout", ["wheel"], indirect=True)
@pytest.mark.parametrize("front_end", ["gdb", "lldb"])
def test_libraries_of_the_debugger_take_precedence(front_end: str, layout: Layout, tmp_path: Path, home: dict[str, str]) -> None:
    import capstone
    import elftools

    own = tmp_path / "own"
    own.mkdir()
    for module in (capstone, elftools):
        (own / module.__name__).symlink_to(Path(module.__file__).parent)
    files = [str(own / name / "__init__.py") for name in ("capstone", "elftools")]
    assert ask(front_end, layout, tmp_path, {**home, "PYTHONPATH": str(own)}) == [*FOUND, files]


@pytest.mark.parametrize("layout", ["wheel"], indirect=True)
def test_started_debugger_has_the_libraries(layout: Layout, tmp_path: Path, home: dict[str, str]) -> None:
    (tmp_path / "then.py").write_text(f"{FIRST}\n{THEN}")
    line = f"exec(open({str(tmp_path / 'then.py')!r}).read())"
    done = run(*layout.cli, "gdb", "-nx", "-batch", "-ex", f"python {line}", cwd=tmp_path, env=home)
    assert (done.stderr, json.loads(done.stdout[1:])[:4]) == ("", FOUND)
    done = run(*layout.cli, "lldb", "--no-lldbinit", "--batch", "-o", f"script {line}", cwd=tmp_path, env=home)
    answer = next(line[1:] for line in done.stdout.splitlines() if line.startswith(">"))
    assert (done.stderr, json.loads(answer)[:4]) == ("", FOUND)
