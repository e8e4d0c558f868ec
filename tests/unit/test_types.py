"""Types of blocks in handmade memory: their shapes, and memory that must not be mistaken for one."""

from __future__ import annotations

import re
import struct
from typing import Optional

import graphs
import pytest
from fake import FakeTarget
from hypothesis import given
from hypothesis import strategies as st

from findleaks.block_types import Types
from findleaks.block_types.shapes import is_file, is_string
from findleaks.target.arch import Arch
from findleaks.target.base import Module, Range, Symbol
from findleaks.target.ranges import range_at

TEXT, TABLES, CONSTANTS, DATA, HEAP = 0x40_0000, 0x50_0000, 0x60_0000, 0x70_0000, 0x100_0000


def pack_words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *(v & (1 << 64) - 1 for v in values))


class Image:
    """A handmade module: tables of words at TABLES, names at CONSTANTS."""

    def __init__(self) -> None:
        self.tables = bytearray(pack_words(0, 0))
        self.constants = bytearray(b"\0")
        self.symbols: list[Symbol] = []
        meta = self.typeinfo("N10__cxxabiv117__class_type_infoE", 0)
        self.class_type_info = self.vtable(meta)
        single = self.typeinfo("N10__cxxabiv120__si_class_type_infoE", 0)
        self.single_type_info = self.vtable(single)
        many = self.typeinfo("N10__cxxabiv121__vmi_class_type_infoE", 0)
        self.many_type_info = self.vtable(many)

    def put(self, *values: int) -> int:
        at = TABLES + len(self.tables)
        self.tables += pack_words(*values)
        return at

    def text(self, text: bytes) -> int:
        at = CONSTANTS + len(self.constants)
        self.constants += text + b"\0"
        return at

    def typeinfo(self, name: str, own: Optional[int] = None, *more: int) -> int:
        return self.put(self.class_type_info if own is None else own, self.text(name.encode("latin-1")), *more)

    def vtable(self, info: int, top: int = 0, function: int = TEXT + 0x10) -> int:
        return self.put(top, info, function) + 16

    def target(
        self, heap: bytes = b"\0" * 64, names: bool = True, modules: bool = True, files: Optional[dict[int, str]] = None
    ) -> FakeTarget:
        memory = {TEXT: b"\xc3" * 0x1000, TABLES: bytes(self.tables), DATA: pack_words(1, 2, 3, 4), HEAP: heap}
        if names:
            memory[CONSTANTS] = bytes(self.constants).ljust(-len(self.constants) % 64 + len(self.constants), b"\0")
        return FakeTarget(
            memory,
            permissions={TEXT: "r-x", TABLES: "r--", CONSTANTS: "r--"},
            names=files,
            modules=[Module("/usr/lib/libmade.so", 0x40_0000, TEXT, HEAP)] if modules else [],
            symbols=self.symbols,
        )


def test_classes_are_named_from_their_typeinfo() -> None:
    image = Image()
    plain = image.vtable(image.typeinfo("N5osgeo4proj5datum9EllipsoidE"))
    derived = image.vtable(image.typeinfo("3Foo", image.single_type_info, image.typeinfo("4Base")))
    template = image.vtable(image.typeinfo("3BoxISt6vectorIiSaIiEELi3EE"))
    local = image.vtable(image.typeinfo("*Z3fooiE5Local"))
    second = image.vtable(image.typeinfo("3Bar"), top=-16)
    types = Types(image.target())
    assert types.name(plain) == "osgeo::proj::datum::Ellipsoid"
    assert types.name(derived) == "Foo"
    assert types.name(template) == "Box<std::vector<int, std::allocator<int> >, 3>"
    assert types.name(local) == "foo(int)::Local"
    assert types.name(second) == "Bar"
    assert all(range_at(types.ranges(), word) for word in (plain, derived, template, TEXT))
    assert types.ranges() == [Range(TEXT, TEXT + 0x1000), *types.vtables()]


def test_standard_names_are_short() -> None:
    image = Image()
    counted = image.vtable(image.typeinfo("St23_Sp_counted_ptr_inplaceISt6vectorIiSaIiEESaIvELN9__gnu_cxx12_Lock_policyE2EE"))
    counters = image.vtable(image.typeinfo("St15_Sp_counted_ptrIP3FooLN9__gnu_cxx12_Lock_policyE2EE"))
    string = image.vtable(image.typeinfo("3BoxINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEE"))
    types = Types(image.target())
    assert types.name(counted) == "std::make_shared<std::vector<int, std::allocator<int> > >"
    assert types.name(counters) == "counters of std::shared_ptr<Foo>"
    assert types.name(string) == "Box<std::string>"


def test_a_library_whose_headers_are_not_in_the_core() -> None:
    """The first page of the library is not in the core, so it is not a module. Its vtables have the same addresses."""
    image = Image()
    vtable = image.vtable(image.typeinfo("3Foo"))
    names = dict.fromkeys((TEXT, TABLES, CONSTANTS, DATA), "/usr/lib/libmade.so")
    types = Types(image.target(modules=False, files=names))
    assert types.name(vtable) == "Foo"
    assert types.name(TEXT) == "code in libmade.so"
    assert Types(image.target(modules=False)).name(vtable) == ""


def test_identifiers_beyond_ascii() -> None:
    image = Image()
    vtable = image.vtable(image.typeinfo("6Größe".encode().decode("latin-1").replace("6", "7", 1)))
    assert Types(image.target()).name(vtable) == "Größe"


def test_memory_that_is_no_vtable() -> None:
    image = Image()
    info = image.typeinfo("3Foo")
    far = image.vtable(info, top=1 << 40)
    no_code = image.vtable(info, function=HEAP)
    own = image.vtable(image.put(HEAP, image.text(b"3Foo")))  # the typeinfo is of no known class
    odd_name = image.vtable(image.typeinfo("not a name"))
    not_mangled = image.vtable(image.put(image.class_type_info + 1, image.text(b"3Foo")))
    types = Types(image.target())
    assert types.name(no_code) == ""
    assert [types.name(w) for w in (info, far + 1, 0, HEAP, DATA, 1 << 63, (1 << 64) - 1)] == [""] * 7
    for word in (far, own, odd_name, not_mangled):
        assert re.fullmatch(r"((table|class) libmade\.so\+0x[0-9a-f]+)?", types.name(word))


def test_null_functions_need_a_typeinfo() -> None:
    """A destructor that is never called is null in construction vtables and abstract classes. Zeros before other words
    are frequent and prove nothing."""
    image = Image()
    sure = image.put(0, image.typeinfo("3Foo"), 0, 0) + 16
    unsure = image.put(0, TABLES, 0, 0) + 16
    types = Types(image.target())
    assert types.name(sure) == "Foo"
    assert types.name(unsure) == ""


def test_symbols_are_used_without_rtti() -> None:
    image = Image()
    vtable = image.vtable(0)
    image.symbols.append(Symbol("vtable for bare::Thing", vtable - 16, 24, "libmade.so"))
    part = image.put(0, 24, 0, 0, TEXT) + 32
    image.symbols.append(Symbol("construction vtable for Base-in-Whole", part - 32, 40, "libmade.so"))
    table = image.put(TEXT + 32, TEXT + 48)
    image.symbols.append(Symbol("operations", table, 16, "libmade.so"))
    image.symbols += [Symbol("run(int)", TEXT + 32, 16, "libmade.so"), Symbol("std::f()", TEXT + 0x100, 32, "libmade.so")]
    types = Types(image.target())
    assert types.name(vtable) == "bare::Thing"
    assert types.name(vtable - 16) == ""
    assert types.name(part) == "Base in Whole"
    assert types.name(table) == "table operations"
    assert types.name(TEXT + 32) == "function run(int)"
    assert types.name(TEXT + 0x101) == "code in libmade.so"


def test_construction_vtables_by_symbols() -> None:
    image = Image()
    base = image.typeinfo("4Base")
    flags = 0 | 1 << 32  # no flags, one base
    virtual = image.typeinfo("7Virtual", image.many_type_info, flags, base, 1)
    under = image.vtable(virtual)
    image.symbols.append(Symbol("construction vtable for Virtual-in-Whole", under - 16, 24, "libmade.so"))
    types = Types(image.target())
    assert types.name(under) == "Virtual in Whole"


def test_types_of_a_missing_library_have_their_shape() -> None:
    image = Image()
    vtable = image.vtable(image.typeinfo("3Foo"))
    table = image.put(TEXT + 32, TEXT + 48)
    types = Types(image.target(names=False))
    assert types.name(vtable) == f"class libmade.so+{vtable - 0x40_0000:#x}"
    assert types.name(table) == f"table libmade.so+{table - 0x40_0000:#x}"


def test_names_are_neither_escaped_nor_shortened() -> None:
    image = Image()
    image.symbols.append(Symbol("\x1b[31mred" + "x" * 500, TEXT, 16, "libmade.so"))
    assert Types(image.target()).name(TEXT) == "function \x1b[31mred" + "x" * 500


@pytest.mark.parametrize(
    ("heap", "size", "type_"),
    [
        (lambda v: pack_words(3, v, 7, v, 7, v, 7), 56, "Foo[3]"),
        (lambda v: pack_words(3, v, 7, v, 7, v, 7, 0), 64, "Foo[3]"),
        (lambda v: pack_words(1, v, 7), 24, "Foo[1]"),
        (lambda v: pack_words(99, 2, v, 7, v, 7), 56, "Foo[2]"),
        (lambda v: pack_words(3, v, 7, v, 7, 0, 7), 56, ""),
        (lambda v: pack_words(3, v, 7, 0, 0, v, 7), 24, ""),
        (lambda v: pack_words(1 << 60, v, v), 24, ""),
        (lambda v: pack_words(2, TEXT, 7, TEXT, 7), 40, ""),
        (lambda v: pack_words(v, 7), 16, "Foo"),
        (lambda v: pack_words(HEAP + 16, 5) + b"hello\0\0\0" + pack_words(0), 40, "std::string"),
        (lambda v: pack_words(HEAP + 16, 5) + b"hello!\0\0" + pack_words(0), 40, ""),
        (lambda v: pack_words(HEAP + 32, 16, 20, 0) + b"a long long text\0", 40, "std::string"),
        (lambda v: pack_words(HEAP + 32, 16, 15, 0) + b"a long long text\0", 40, ""),
        (lambda v: pack_words(HEAP + 32, 16, 0x4000, 0) + b"a long long text\0", 40, ""),
        (lambda v: pack_words(0xFBAD2488, *[0] * 16, HEAP + 240, *[0] * 41), 472, "FILE"),
        (lambda v: pack_words(0xFBAD2488, *[0] * 58), 472, ""),
        (lambda v: pack_words(0xFBAD2488, 5, 6), 24, ""),
        (lambda v: b"", 0, ""),
        (lambda v: b"abc", 3, ""),
    ],
)
def test_blocks(heap: object, size: int, type_: str) -> None:
    image = Image()
    vtable = image.vtable(image.typeinfo("3Foo"))
    types = Types(image.target(heap(vtable) + b"\1" * 600))  # type: ignore[operator]
    assert types.of_block(HEAP, size) == type_
    assert types.of_block(HEAP + 0x10_0000, size) == ""


@pytest.mark.parametrize("arch", graphs.ARCHES, ids=lambda arch: arch.name)
def test_files_and_strings_of_other_words(arch: Arch) -> None:
    word, large = arch.word, {4: 148, 8: 216}[arch.word]
    flags = arch.word_format[0] + "I"
    file = bytearray(large + 80)
    file[:word] = struct.pack(flags, 0xFBAD2488) + bytes(word - 4)
    file[18 * word : 19 * word] = arch.pack([HEAP + large + 8])
    string = arch.pack([HEAP + 2 * word, 5]) + b"hello\0\0\0" + bytes(8)
    for content, size, expected in ((file, len(file), "FILE"), (file[:word] + bytes(300), 300, ""), (string, 2 * word + 16, "std::string")):
        target = FakeTarget({HEAP: bytes(content) + b"\1" * 64}, arch=arch)
        first = arch.unpack(target.read(HEAP, 4 * word))
        assert is_file(target, first[0], HEAP, size) == (expected == "FILE")
        assert is_string(target, first, HEAP, size) == (expected == "std::string")
    if word == 8:  # padding has no type
        file[4:8] = b"\1" * 4
        target = FakeTarget({HEAP: bytes(file)}, arch=arch)
        assert not is_file(target, target.word(HEAP), HEAP, len(file))


@pytest.mark.parametrize("modules", [True, False])
def test_a_function_object_at_a_fixed_address_is_no_string(modules: bool) -> None:
    """{functor, unused, manager, invoker}: the functor begins with a zero, and its region is larger than the manager's address."""
    heap = bytearray(TEXT + 0x2000)
    heap[:32] = pack_words(HEAP + 48, 0, TEXT + 16, TEXT + 32)
    types = Types(Image().target(bytes(heap), modules=modules))
    assert types.of_block(HEAP, 40) == ""
    heap[16:24] = pack_words(TEXT - 16)
    assert Types(Image().target(bytes(heap), modules=modules)).of_block(HEAP, 40) == "std::string"


def test_hints() -> None:
    hint = Types(Image().target()).hint
    assert hint(b"GET /index.html HTTP/1.1\r\n\0") == '"GET /index.html HTTP/1.1…"'
    assert hint(b"text\0\1\2\3") == '"text"'
    assert hint(b"abc\0\1\2\3\4") == ""
    assert hint(b"open end") == '"open end"'
    assert hint(b"opened") == ""
    assert hint(bytes(64)) == "zeros"
    assert hint(bytes(4)) == "" and hint(b"") == ""
    assert hint("Grüße aus Köln\0".encode()) == '"Grüße aus Köln"'
    assert hint("日本語の文字列がここにあります".encode()) == '"日本語の文字列がここにあ…"'
    assert hint("Grüße aus Kö".encode()[:-1]) == '"Grüße aus K"'
    assert hint(b'say "hi"\\\n\0') == '"say \\"hi\\"\\\\\\n"'
    assert hint(pack_words(HEAP, 5) + b"short\0\0\0" + pack_words(0)) == '"short"'
    assert hint(pack_words(HEAP) + b"session-42\0") == '+8 "session-42"'
    assert hint(pack_words(HEAP, 7, HEAP)) == ""
    assert hint(b"\x1b]0;title\x07 and on\0") == ""


def test_an_address_of_printable_bytes_is_no_text() -> None:
    """0x562e82ace760 reads as "`笂.V". If memory is mapped at this address, the word is the pointer of a short std::string, not text."""
    address = 0x562E82ACE760
    string = pack_words(address, 9) + b"short one\0\0\0\0\0\0\0"
    assert Types(FakeTarget({})).hint(string) == '"`笂.V"'
    assert Types(FakeTarget({address & -4096: bytes(4096)})).hint(string) == '"short one"'


@given(st.binary(max_size=96))
def test_no_hint_disturbs_a_terminal(data: bytes) -> None:
    hint = Types(Image().target()).hint(data)
    assert hint.isprintable() and len(hint) <= 100


@given(st.text(alphabet="abcdefgh \x1b\x07\x00\x9b\u202e\n\r\t\x7f\U000e0001", max_size=60))
def test_no_escape_sequence_survives(text: str) -> None:
    hint = Types(Image().target()).hint(b"text: " + text.encode())
    assert hint.isprintable()


LIKELY = [0, 1, -1, TEXT, TEXT + 16, TABLES + 16, TABLES + 32, TABLES + 64, CONSTANTS + 1, HEAP, 1 << 63]


@given(st.lists(st.sampled_from(LIKELY), max_size=40))
def test_random_images_raise_nothing(values: list[int]) -> None:
    image = Image()
    first = image.put(*values, TEXT)
    types = Types(image.target())
    for i in range(len(values) + 1):
        name = types.name(first + 8 * i)
        assert name.isprintable() and len(name) <= 200


def test_only_words_with_a_type_are_cached() -> None:
    """A heap has millions of first words without a type, which are not cached."""
    image = Image()
    table = image.put(TEXT, TEXT + 8)
    types = Types(image.target())
    assert types.name(table)
    assert [types.name(HEAP + 16 * i) for i in range(1000)] == [""] * 1000
    assert set(types._names) == {table}
