"""The rules that `make lint` checks: each rule is violated once here, and reported."""

from __future__ import annotations

from pathlib import Path

import pytest
import tree


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("common/long.py", "x = 1\n" * 421, "421 lines"),
        ("docs/long.md", "x\n" * 421, "421 lines"),
        ("common/a.py", "import os\nimport gdb\n", "common/a.py:2: imports gdb"),
        ("common/b/c.py", "def f():\n    from lldb import SBTarget\n", "common/b/c.py:2: imports lldb"),
        ("common/a.py", "from findleaks.gdb.target import X\n", "imports findleaks.gdb"),
        ("common/a.py", "from findleaks import lldb\n", "imports findleaks.lldb"),
        ("common/a.py", "ENTRY = 'findleaks.gdb.batch:run'\n", "names no function of a front end"),
        ("common/a.py", "def f(x):\n    print(x)\n", "common/a.py:2: writes by print"),
        ("common/a.py", "import sys\nsys.stdout.write('')\n", "writes by sys.stdout.write"),
        ("gdb/a.py", "import gdb\ngdb.write('')\n", "writes by gdb.write"),
        ("common/graph/a.py", "from findleaks.audit import owners\n", "common/graph/a.py:1: graph imports findleaks.audit"),
        ("common/graph/a.py", "def f():\n    from findleaks.session import Session\n", "common/graph/a.py:2: graph imports"),
        ("common/libc/a.py", "from findleaks.unwind import cfi\n", "libc imports findleaks.unwind, which is no lower layer"),
        ("common/errors.py", "from findleaks import cli\n", "errors imports findleaks.cli"),
        ("common/new/a.py", "from findleaks.target import base\n", "new is in no layer"),
        ("common/allocators/glibc/a.py", "from findleaks.allocators.musl import b\n", "allocators.glibc imports findleaks.allocators.musl"),
        ("tests/unit/__init__.py", "", "must hold no packages"),
        ("common/engine/a.py", f"x = 1\n# {'x' * 99}\n", "common/engine/a.py:2: prose of 101 columns"),
        ("common/engine/a.py", f'"""A.\n\n{"x" * 101}\n"""\n', "common/engine/a.py:3: prose of 101 columns"),
        ("common/native/a.h", f"int a; /* {'x' * 90} */\n", "common/native/a.h:1: prose of 103 columns"),
        ("conftest.py", "", "belongs in tests/"),
        ("docs/a.md", "# A\n\n### B\n", "docs/a.md:3: a heading of level 3 after one of level 1"),
    ],
)
def test_broken_rules(name: str, text: str, what: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
    found = list(tree.problems(tmp_path, [name]))
    assert found
    assert what in found[0]


def test_permitted_files(tmp_path: Path) -> None:
    for name, text in {
        "common/graph/a.py": "# import gdb\nfrom findleaks.target import base\nimport gdbm\n" + "\n" * 417,
        "gdb/target.py": "import gdb\n",
        "common/cli.py": "print()\n",
        "tests/conftest.py": "",
        "LICENSE": "\n" * 1000,
        "docs/a.md": "# A\n\n```\n### no heading\n```\n\n## B\n\n### C\n\n# D\n",
        "tests/unit/a.py": "strange = 1  # nobody\n",
        "gdb/counting.py": "def f(self):\n    self.silent = True\n",
        "common/engine/a.py": f"import sys\n\nsys.stdin.tell()\nbedrooms = understood = 'roommate'\nlong = '{'x' * 99}'\n",
        "common/native/a.c": "/* a mushroom */\nint bushel;\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        assert list(tree.problems(tmp_path, [name])) == []
