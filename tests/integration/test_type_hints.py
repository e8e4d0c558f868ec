"""Type hints of the user: --type ADDR=TYPE in every front end, hint files, and messages for impossible hints."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path

import building
import hidden
import pytest
from debuggers import findleaks, gdb, lldb, run_cli
from hidden import Hidden

import cores
import findleaks as findleaks_api
from findleaks.commands.find_untyped import advise
from findleaks.commands.untyped_reason import join_candidates
from findleaks.results.amounts import Amount
from findleaks.results.untyped import UntypedSource

ITEMS = 100


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Hidden:
    return hidden.run(tmp_path_factory.mktemp("hidden"), ITEMS)


EXPECTED = {
    ("struct registry", "struct registry"): Counter({"hint": 1}),
    ("struct table", "struct table"): Counter({"debug-info": 2}),
    ("struct entry *[]", "struct entry *[]"): Counter({"debug-info": 2}),
    ("struct entry", "struct entry"): Counter({"debug-info": 2 * ITEMS}),
    ("struct value", "struct value"): Counter({"inferred": ITEMS}),
    ("struct point", None): Counter({"": ITEMS + ITEMS // 2}),
    ("struct line", None): Counter({"": ITEMS // 2}),
    ("struct session", None): Counter({"": ITEMS}),
}
"""The blocks of the program, with a type hint for the registry. Numbers to which a void pointer refers get no type."""


def test_without_hint(made: Hidden) -> None:
    assert {said for _, said in made.verdicts()} == {None}


def test_block(made: Hidden) -> None:
    """One hint gives the block a type, and types follow for blocks that are reachable from it."""
    assert made.verdicts(*made.hint("registry", "struct registry")) == EXPECTED
    assert made.verdicts(*made.hint("registry", "registry")) == EXPECTED


def test_memory(made: Hidden) -> None:
    """Memory that is not a block can have a type, too: here a pointer in an array of characters."""
    found = made.verdicts("--type", f"{made.places['reserve'] + 8:#x}=struct registry *[1]")
    assert found == {**EXPECTED, ("struct registry", "struct registry"): Counter({"debug-info": 1})}


def test_filter_beside_hint(made: Hidden) -> None:
    done = run_cli("blocks", "--json", "--type", "struct ta*", *made.hint("registry", "registry"), str(made.core))
    assert [json.loads(line)["type"] for line in done.stdout.splitlines()] == ["struct table"] * 2


@pytest.mark.parametrize("front", ["gdb", "lldb"])
def test_expression(front: str, made: Hidden) -> None:
    """In a debugger, the address is an expression."""
    words = ["leaks blocks --json --limit 0 --type 'handle=struct registry'", "leaks whatis handle --type handle=registry"]
    output = gdb(words, str(made.program), str(made.core)) if front == "gdb" else lldb(words, str(made.program), "-c", str(made.core))
    assert made.compared(output) == EXPECTED
    assert "+24  title       0x" in output


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("registry=registri", "debug information has no type 'registri': did you mean 'registry'?"),
        ("registry=struct table[5]", "the type has 160 bytes, the block at 0x{registry:x} has 40"),
        ("registry=struct table **", "debug information has no pointer to 'table'"),
        ("reserve=struct table[]", "write the number of elements, as in struct table[8]: only a block has a size"),
        ("16=struct table", "findleaks analyses no memory at this address"),
    ],
)
def test_impossible(word: str, message: str, made: Hidden) -> None:
    place, _, kind = word.partition("=")
    hint = f"{made.places.get(place) or int(place):#x}={kind}"
    expected = f"findleaks: --type {hint}: {message.format(**made.places)}\n"
    assert findleaks("find", "--type", hint, str(made.core)) == expected
    assert run_cli("find", "--type", hint, str(made.core)).returncode == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["find", "--type", "struct *"], "'struct *' is not ADDR=TYPE; `blocks --type GLOB` lists the blocks of a type"),
        (["find", "--type", "0x10="], "--type '0x10=': write ADDR=TYPE"),
        (["find", "--type", "here=struct table"], "'here' is not an address"),
        (["blocks", "--type", "a*", "--type", "b*"], "expected one GLOB, got 'a*' and 'b*'"),
        (["find", "--no-debug-types", "--type", "16=table"], "hints need debug information: omit --no-debug-types"),
    ],
)
def test_malformed(words: list[str], message: str, made: Hidden) -> None:
    done = run_cli(*words, str(made.core))
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_contradictions(made: Hidden) -> None:
    """Hints that cannot be right have warnings: numbers where the type has pointers, and two types for one block."""
    point = [address for address, kind in made.truth.items() if kind == "struct point"][-1]
    done = run_cli("whatis", hex(point), "--type", f"{point:#x}=struct line *[3]", str(made.core))
    assert f"warning: --type {point:#x}=struct line *[3] may be wrong: the type has a pointer at +0" in " ".join(done.stdout.split())
    table = next(address for address, kind in made.truth.items() if kind == "struct table")
    done = run_cli("blocks", "--by", "type", *made.hint("registry", "registry"), "--type", f"{table:#x}=registry", str(made.core))
    assert f"--type {table:#x}=registry was not used: the block is referenced as another type" in " ".join(done.stdout.split())


def test_untyped(made: Hidden) -> None:
    """`find --untyped` names the block whose hint would give most blocks a type, and then the remaining ones."""
    found = json.loads(run_cli("find", "--untyped", "--json", str(made.core), check=True).stdout)
    (source,) = found["sources"]
    assert source["origin"] in ("handle", "reserve[8]")
    assert source["example"] == hex(made.places["registry"])
    assert source["reason"] == "the member is a number"
    assert source["blocks"] == 1
    assert source["reached"]["blocks"] == len(made.truth) + made.texts
    hint = made.hint("registry", "struct registry")
    found = json.loads(run_cli("find", "--untyped", "--json", *hint, str(made.core), check=True).stdout)
    (source,) = found["sources"]
    assert source["origin"] == "registry.sessions"
    assert source["reason"] == "the member is a number"
    assert source["candidates"] == ["struct registry", "struct session", "struct table"]
    assert source["reached"]["blocks"] == source["example_reached"]["blocks"] == ITEMS
    text = run_cli("find", "--untyped", *hint, str(made.core), check=True).stdout
    assert "of these blocks; TYPE may be struct registry, struct session or struct table" in " ".join(text.split())
    assert f"--type {source['example']}=TYPE may type up to {ITEMS} of these blocks" in text


def test_reason_in_sums(made: Hidden) -> None:
    """`blocks --by type` gives the reason why blocks have no type, except for blocks that contain text."""
    words = ["blocks", "--by", "type", *made.hint("registry", "struct registry"), str(made.core)]
    rows = json.loads(run_cli(*words, "--json", check=True).stdout)["types"]
    assert {row["reason"] for row in rows if row["type"] is not None} == {None}
    (numbers,) = (row for row in rows if row["type"] is None and row["size"] == 24)
    assert numbers["reason"] == "the pointer is void *"
    assert {"struct point", "struct line"} <= set(numbers["candidates"])
    text = run_cli(*words, check=True).stdout
    assert any("24 B, " in line and ": the p" in line for line in text.splitlines()), text


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ((), ""),
        (("a",), "a"),
        (("a", "b"), "a or b"),
        (tuple("abc"), "a, b or c"),
        (tuple("abcd"), "a, b, c or 1 other"),
        (tuple("abcde"), "a, b, c or 2 others"),
    ],
)
def test_candidates(names: tuple[str, ...], text: str) -> None:
    assert join_candidates(names) == text


@pytest.mark.parametrize(
    ("origin", "is_member"),
    [("registry.sessions", True), ("main thread's stack (main)", False), ("db (load, data)", False), ("op[2].p", False)],
)
def test_advice(origin: str, is_member: bool) -> None:
    """The advice contains a line for a hint file only if the origin is a member."""
    ten = Amount(10, 400)
    source = UntypedSource(origin, False, "the pointer is void *", (), 10, (40, 40), ten, 0x1000, ten)
    line = f"the line `{origin} -> TYPE` in a file of --hints may type all of the first row"
    assert advise(source) == "--type 0x1000=TYPE " + (f"types the example; {line}" if is_member else "may type up to 10 of these blocks")


def test_only_data_is_untyped(made: Hidden, tmp_path: Path) -> None:
    """Blocks of text and numbers have no rows, because no block is reachable from them."""
    path = tmp_path / "program.hints"
    path.write_text("&session_ops -> session\n")
    words = ["find", "--untyped", "--hints", str(path), *made.hint("registry", "registry"), str(made.core)]
    assert json.loads(run_cli(*words, "--json", check=True).stdout)["sources"] == []
    assert "none of them refers to other blocks" in run_cli(*words, check=True).stdout


def test_untyped_needs_debug_information(made: Hidden) -> None:
    done = run_cli("find", "--untyped", "--no-debug-types", str(made.core))
    assert done.returncode == 2 and done.stderr.startswith("findleaks: --untyped needs debug information, and none was found: ")
    done = run_cli("find", "--untyped", "--by", "type", str(made.core))
    assert (done.returncode, done.stderr) == (2, "findleaks: --untyped and --by cannot be combined\n")


HINTS = """# comment
needs registry value
entry.content -> value if table.ops == &value_ops
entry.content -> struct point if table.ops == &point_ops
value.data -> line if encoding == 1  # a bit field
value.data -> point if encoding == 0
&session_ops -> session
"""


def test_file(made: Hidden, tmp_path: Path) -> None:
    """A hint file gives blocks a type by the member that refers to them, by an adjacent tag, by a table of functions in their owner, or
    by their own first word."""
    path = tmp_path / "program.hints"
    path.write_text(HINTS)
    found = made.verdicts("--hints", str(path), *made.hint("registry", "registry"))
    assert all(true == said for true, said in found)
    assert {true: sources for (true, _), sources in found.items()} == {
        **{true: sources for (true, _), sources in EXPECTED.items()},
        "struct value": Counter({"hint": ITEMS}),
        "struct point": Counter({"hint": ITEMS + ITEMS // 2}),
        "struct line": Counter({"hint": ITEMS // 2}),
        "struct session": Counter({"hint": ITEMS}),
    }


def test_characters(made: Hidden, tmp_path: Path) -> None:
    """A hint file can say that a pointer refers to a buffer of characters. Its text is printed as the content of the block, and other
    blocks with text do not get this type."""
    path = tmp_path / "program.hints"
    path.write_text("entry.key -> char[]\n")
    words = ["--hints", str(path), *made.hint("registry", "registry"), str(made.core)]
    rows = list(map(json.loads, run_cli("blocks", "--json", "--limit", "0", *words, check=True).stdout.splitlines()))
    keys = [row["address"] for row in rows if row.get("type") == "char[40]"]
    assert len(keys) == 2 * ITEMS
    assert not any(int(address, 16) in made.truth for address in keys)
    assert '+0  [0]  "key-' in run_cli("whatis", keys[0], *words, check=True).stdout
    entry = next(row["address"] for row in rows if row.get("type") == "struct entry")
    assert re.search(r'\+0 +key +0x[0-9a-f]+ → "key-', run_cli("whatis", entry, *words, check=True).stdout)


def test_retry(tmp_path: Path) -> None:
    """A block that contradicted a hint gets the type after findleaks has found that the blocks to which it refers are truncated."""
    found = hidden.run(tmp_path, 400, "typed_labels.c")
    path = tmp_path / "program.hints"
    path.write_text("holder.content -> note if kind == 2\nholder.content -> mark if kind == 1\n")
    verdicts = found.verdicts("--hints", str(path))
    assert all(true == said for true, said in verdicts), verdicts
    assert sum(sum(one.values()) for one in verdicts.values()) == len(found.truth)


def test_file_of_another_layout(made: Hidden, tmp_path: Path) -> None:
    """Hints are not used for blocks that are too small, or whose content contradicts the type."""
    path = tmp_path / "program.hints"
    path.write_text("entry.content -> table\nvalue.data -> session\n")
    found = made.verdicts("--hints", str(path), *made.hint("registry", "registry"))
    assert not any(said in ("struct table", "struct session") and true != said for true, said in found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("entry.content value", "1: not a hint: write MEMBER -> TYPE, or MEMBER -> TYPE if MEMBER == VALUE"),
        ("entry.content -> value if", "1: not a hint: write MEMBER -> TYPE, or MEMBER -> TYPE if MEMBER == VALUE"),
        ("\nentry.kontent -> value", "2: entry has no member kontent"),
        ("entry.content -> values", "1: debug information has no type 'values': did you mean 'value'?"),
        ("value.references -> value", "1: value.references is not a pointer"),
        ("value -> entry", "1: 'value' is neither a member nor an incomplete type; for a member, write value.MEMBER"),
        ("value.data -> line if encoding == one", "1: 'one' is not a number; for the address of a variable, write &NAME"),
        ("value.data -> line if age == 3", "1: a condition can only use a bit field that is in one byte"),
        ("value.data -> line if kind == 3", "1: value has no member kind"),
        ("&value_op -> session", "1: debug information has no variable 'value_op'"),
        (
            "value.data -> line if encoding == 1\nvalue.data -> point if references == 0",
            "2: all conditions of value.data must use the same member",
        ),
        ("needs nothing", " this program has no type 'nothing', which the file needs"),
        ("#" * 1001, ""),
        ("x" * 1001, "1: a line has at most 1,000 characters"),
        ("\n" * 10_001, " a hint file has at most 10,000 lines"),
        ("#" * (1 << 20) + "#", " a hint file has at most 1 MiB"),
    ],
)
def test_malformed_file(text: str, message: str, made: Hidden, tmp_path: Path) -> None:
    path = tmp_path / "program.hints"
    path.write_text(text)
    done = run_cli("find", "--hints", str(path), str(made.core))
    assert done.stderr == (f"findleaks: {path}:{message}\n" if message else "")
    assert done.returncode == (2 if message else 0)


@pytest.mark.parametrize(
    ("name", "message"), [("missing", "no such file or directory"), (".", "is a directory"), ("pipe", "not a regular file")]
)
def test_unreadable_file(name: str, message: str, made: Hidden, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    path = os.path.join(tmp_path, name)
    assert run_cli("find", "--hints", path, str(made.core)).stderr == f"findleaks: {path}: {message}\n"


def test_api(made: Hidden) -> None:
    """Blocks have members and the source of their type. Hints and the choice of debug information are arguments of `use_types`."""
    registry = made.places["registry"]
    with findleaks_api.open(made.core) as process:
        assert process.block_at(registry).type is None
        assert process.block_at(registry).members == []
        assert process.untyped().sources[0].example == registry
        process.use_types(types={registry: "struct registry"})
        block = process.block_at(registry)
        assert (block.type, block.type_from, block.type_sure) == ("struct registry", "hint", True)
        assert [(one.name, one.type) for one in block.members] == [
            ("values", "struct table *"),
            ("points", "struct table *"),
            ("sessions", "uintptr_t"),
            ("title", "char *"),
            ("generation", "long int"),
        ]
        tables = list(process.blocks(type="struct table"))
        assert [one.target for one in block.members[:2]] == [one.address for one in tables]
        assert [(one.members[0].value or "").partition(" → ")[2] for one in tables] == ["value_ops.name", "point_ops.name"]
        table = process.blocks().to_arrow()
        assert Counter(table["type_from"].to_pylist())["inferred"] == ITEMS
        assert Counter(process.blocks().to_pandas()["type_sure"].dropna()) == Counter(table["type_sure"].drop_null().to_pylist())
        unread = process.block_at(tables[0].address)
        assert unread == tables[0]
        with pytest.raises(findleaks_api.UsageError, match="has no type 'nothing'"):
            process.use_types(types={registry: "nothing"})
        process.use_types(debug_types=False)
        assert process.block_at(registry).type is None
        with pytest.raises(findleaks_api.TargetError, match="--untyped needs debug information"):
            process.untyped()
    with pytest.raises(findleaks_api.TargetError, match="the process is closed"):
        _ = unread.members
    assert len(block.members) == 5


def test_choice_of_debug_information(tmp_path: Path) -> None:
    """`triage` and `diff` find types by debug information by default."""
    program = building.compile_program(tmp_path, "typed_truth.c", "-g", "-O2")
    samples = []
    for count in ("500", "1000"):
        with cores.Running([str(program), count, "1"], tmp_path / count) as running:
            samples.append(str(running.kernel_core()))
    for words in (["triage", "--json", *samples], ["diff", "--by", "lost", "--json", *samples]):
        assert "struct " in run_cli(*words, check=True).stdout
        assert "struct " not in run_cli(*words, "--no-debug-types", check=True).stdout
