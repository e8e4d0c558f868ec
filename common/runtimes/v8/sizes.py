"""Determine how the sizes of objects are computed, by instance type.

Sources: V8 7.8 to 13.6 (Node 12 to 24), src/objects/objects.cc (HeapObject::SizeFromMap; the
numbers are those of its machine code in Node's binaries) and the SizeFor functions of the types.
Types are identified by the names of metadata.py. Where layouts of one type differ and no constant
tells them apart, the first one is taken for which another object follows each object of a
sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Optional

from findleaks.runtimes.v8.engine import ASKED, COUNTED, UP_TO_MAP, Size, constant_size
from findleaks.runtimes.v8.metadata import Metadata

SMI = 12  # offset of the number of a Smi at offset 8, which is in the upper half of the word
ASK = Size(ASKED)


def _array(base: int, unit: int = 8) -> Size:
    """Return the size of arrays whose length is a Smi at offset 8."""
    return Size(COUNTED, base, at=SMI, unit=unit)


_CODE = 64  # alignment of code; 32 up to Node 16

_ARRAY_NAMES = (
    "fixed_array fixed_cow_array hash_table ephemeron_hash_table global_dictionary name_dictionary name_to_index_hash_table "
    "number_dictionary simple_number_dictionary registered_symbol_table ordered_hash_map ordered_hash_set "
    "ordered_name_dictionary closure_feedback_cell_array module_info string_table weak_fixed_array transition_array "
    "fixed_double_array embedder_data_array protected_fixed_array protected_weak_fixed_array trusted_fixed_array "
    "trusted_weak_fixed_array external_pointer_array"
)
ARRAYS = _ARRAY_NAMES.split()

LAYOUTS: Mapping[str, Sequence[Size]] = {
    **{name: (_array(16),) for name in ARRAYS},
    "script_context_table": (_array(32), _array(16)),
    "object_boilerplate_description": (_array(32), _array(16)),
    "array_list": (_array(24), _array(16)),
    "regexp_match_info": (_array(40),),
    "sloppy_arguments_elements": (_array(32), _array(16)),
    "weak_array_list": (_array(24),),
    "byte_array": (_array(16, 1),),
    "trusted_byte_array": (_array(16, 1),),
    "free_space": (_array(0, 1),),
    "scope_info": (_array(16), Size(UP_TO_MAP)),
    "property_array": (Size(COUNTED, 16, at=SMI, mask=0x3FF, unit=8),),
    "descriptor_array": (Size(COUNTED, 24, at=8, width=2, unit=24),),
    "strong_descriptor_array": (Size(COUNTED, 24, at=8, width=2, unit=24),),
    "bigint": (Size(COUNTED, 16, at=8, shift=1, mask=0x3FFFFFFF, unit=8),),
    "preparse_data": (Size(COUNTED, 16, at=8, unit=1, second=12, second_unit=8),),
    "feedback_metadata": (
        Size(COUNTED, 16, at=8, per=6, unit=4),
        Size(COUNTED, 16, at=8, per=6, unit=4, second=12, second_unit=2),
    ),
    "feedback_vector": (
        Size(COUNTED, 56, at=8, unit=8),
        Size(COUNTED, 48, at=8, unit=8),
        Size(COUNTED, 48, at=32, unit=8),
    ),
    "coverage_info": (Size(COUNTED, 16, at=8, unit=16),),
    "small_ordered_hash_map": (Size(COUNTED, 16, at=10, width=1, unit=35),),
    "small_ordered_hash_set": (Size(COUNTED, 16, at=10, width=1, unit=19),),
    "small_ordered_name_dictionary": (Size(COUNTED, 24, at=18, width=1, unit=51),),
    "swiss_name_dictionary": (Size(COUNTED, 40, at=12, unit=18),),
    "wasm_null": (constant_size(8),),
    "wasm_type_info": (Size(COUNTED, 40, at=36, unit=8),),
    "wasm_dispatch_table": (Size(COUNTED, 16, at=12, unit=24),),
    "instruction_stream": (Size(COUNTED, 32, align=_CODE, at=24, unit=1), ASK),
}
"""Layouts of types whose objects differ in size, the likeliest first."""

BYTECODE_HEADER = 54  # of BytecodeArray in versions without a constant (V8 7.8 to 9.4)


def layouts(metadata: Metadata, name: str) -> Sequence[Size]:
    """Return possible layouts of a type, likeliest first; () if the type is unknown."""
    if name == "bytecode_array":
        return (_array(metadata.offset("BytecodeArray", "data") or BYTECODE_HEADER, 1),)
    if name == "code":
        return list(_code(metadata))
    return LAYOUTS.get(name, ())


def _code(metadata: Metadata) -> Iterator[Size]:
    """Yield layouts of Code up to V8 10.2: instructions, and since V8 9 metadata, follow a
    header."""
    start, size = metadata.offset("Code", "instruction_start"), metadata.offset("Code", "instruction_size")
    if start and size:
        for align in (_CODE, _CODE // 2):
            yield Size(COUNTED, start, align, size, unit=1, second=size + 4, second_unit=1)
        yield Size(COUNTED, start, _CODE // 2, size, unit=1)


def string_size(metadata: Metadata, instance_type: int) -> Optional[Size]:
    """Return the size of sequential strings of this type; None if it is another type."""
    first, kind = metadata.constant("FirstNonstringType"), metadata.constant("StringRepresentationMask")
    encoding, one_byte = metadata.constant("StringEncodingMask"), metadata.constant("OneByteStringTag")
    chars, length = metadata.offset("SeqOneByteString", "chars"), metadata.offset("String", "length")
    if not first or not kind or not encoding or one_byte is None or not chars or not length:
        return None
    if instance_type >= first or instance_type & kind:
        return None
    return Size(COUNTED, chars, at=length, unit=1 if instance_type & encoding == one_byte else 2)
