"""Describe the cause of a fault, and the origin of the pointer that caused it."""

from __future__ import annotations

from typing import Optional

from findleaks.audit.crash import Crash
from findleaks.audit.crash.closed_stream import describe_closed_stream
from findleaks.audit.crash.equal_words import describe_equal_words, equal_words_facts
from findleaks.audit.crash.fault import FLOATS, Fault, register_name
from findleaks.audit.crash.fortified import describe_check
from findleaks.audit.crash.nearby_memory import describe_nearby_memory, nearby_facts
from findleaks.audit.crash.pointer_source import (
    WIDEST,
    Place,
    PointerSource,
    block_facts,
    describe_block,
    describe_in_block,
    is_in_hint,
    text_of_value,
)
from findleaks.formatting import number, shorten, with_article
from findleaks.target.base import Target
from findleaks.target.ranges import region_at

_ALLOCATOR_ERRORS = "an invalid pointer was passed to free() or realloc(), a block was freed twice, or the heap is damaged"
_DOUBLE_FREES = ("double free", "free(): double free")  # glibc's messages


def describe_reason(found: Crash, target: Target) -> str:
    """Return what the thread did, for the end of the title; "" if neither the instruction nor
    si_code shows it."""
    fault = found.fault
    if fault is None:
        return ""
    if found.musl_check:
        return _describe_musl_check(found.musl_check)
    value = _quote_value(max(fault.value, 0), region_at(target.regions(), fault.value) is not None)
    invalid = "which is not a valid address" if found.address is None else "which is not executable"
    texts = {
        "division-by-zero": "it divided an integer by zero",
        "division-overflow": f"it divided {number(fault.dividend)} by {number(fault.value)}, and the result does not fit into the register",
        "float": f"it {FLOATS.get(fault.code, '')}",
        "trap": f"it reached a trap instruction ({fault.instruction})",
        "refused": f"{fault.instruction} is an invalid or privileged instruction",
        "hardware": f"it accessed address {fault.address or 0:#x}, where the memory is defective",
        "file": f"it accessed address {fault.address or 0:#x}, where a page of a mapped file is missing",
        "shared-memory": f"it accessed address {fault.address or 0:#x}, where a page of shared memory is missing",
        "huge-page": f"it accessed address {fault.address or 0:#x}, where a huge page is missing",
        "segment": _describe_segment(fault),
        "return": f"it returned to {value}, {invalid}",
    }
    if fault.kind == "not-aligned":
        of = f", but {fault.instruction} requires a multiple of {fault.width}" if fault.width else ", which is not aligned"
        return f"it accessed address {fault.address or 0:#x}{of}"
    if fault.kind == "call" and found.address is None:
        return f"it called {value}, which is not a valid address"
    if fault.kind == "jump" and found.address is None:
        return f"it jumped to {value}, which is not a valid address"
    if fault.kind == "pointer" and found.address is None:
        return f"it used {value} as a pointer, which is not a valid address"
    if fault.kind == "index" and found.address is None:
        return f"it used {number(fault.value)} as an index, and the resulting address is not valid"
    return texts.get(fault.kind, "")


def describe_causes(found: Crash) -> str:
    """Return sentences about the fault and the origin of its pointer; "" if nothing is known."""
    fault, sentences = found.fault, []
    if found.released is not None and found.released_place is not None:
        sentences += _describe_released(found, found.released_place)
    elif fault is not None:
        sentences += _describe_fault(fault) if not found.message else []
        if fault.kind == "index" and found.address is not None:
            register = register_name(fault.register)
            sentences.append(f"The index{f', in {register},' if register else ''} is {number(fault.value)}.")
        noun = _noun(fault)
        if found.source is not None and noun and found.freed is None:
            sentences += _describe_source(noun, found.source, found.text)
        elif found.text:
            sentences.append(_describe_text(found.text))
    if found.equal is not None and not found.message:
        sentences.append(describe_equal_words(found.equal))
    if found.nearby is not None and not found.message:
        sentences.append(describe_nearby_memory(found.nearby))
    if found.stack_place is not None:
        sentences.append(f"The stack is in {_phrase_of_stack(found.stack_place)}, for example an alternate signal stack.")
    if found.recursion is not None:
        named = found.recursion.frame
        which = shorten(named.short_name(), 200) if named.function else f"The function at {named.label()}"
        sentences.append(f"{which} is on the stack {found.recursion.frames} times or more.")
    if found.stream is not None:
        sentences.append(describe_closed_stream(found.stream))
    if found.check:
        sentences.append(describe_check(found.check))
    return " ".join(sentences)


def _phrase_of_stack(place: Place) -> str:
    if place.block is None:
        return shorten(with_article(place.phrase.rpartition(", +")[0] or place.phrase), WIDEST)
    return describe_block(place.block)


def _describe_segment(fault: Fault) -> str:
    if fault.address is None:
        return "it accessed an address relative to the register gs, which is not a valid address"
    base = f", which contains {fault.value:#x}" if fault.value >= 0 else ""
    return f"it accessed address {fault.address:#x}, relative to the register gs{base}"


def _describe_fault(fault: Fault) -> list[str]:
    if fault.kind == "file":
        name = shorten(fault.file, WIDEST)
        where = f"The access was at offset {number(fault.file_offset)} of {name}."
        return [f"{where} The file was truncated, or could not be read or extended."]
    if fault.kind == "shared-memory":
        where = f"The access was at offset {number(fault.file_offset)} of {shorten(fault.file, WIDEST)}."
        return [f"{where} This offset is beyond the end of the shared memory, or the kernel had no page for it."]
    if fault.kind == "huge-page":
        return ["The memory was mapped with MAP_HUGETLB. Probable cause: the kernel had no free huge page (vm.nr_hugepages)."]
    if fault.kind == "trap":
        return ["Compilers generate trap instructions for __builtin_trap(), failed checks, and code that must not be reached."]
    if fault.kind == "return":
        return [f"The return address, at {fault.address or 0:#x} on the stack, was overwritten, or the stack pointer is wrong."]
    return []


def _noun(fault: Fault) -> str:
    """Return the subject of a sentence about the value of a fault: "The divisor, in rcx,"; "" if
    the origin of the value is not described."""
    register = register_name(fault.register)
    of = f", in {register}," if register else ""
    if fault.kind.startswith("division"):
        return f"The divisor{of}"
    if fault.kind == "index":
        return f"The index{of}"
    if fault.kind not in ("pointer", "call", "jump"):
        return ""
    return f"The {'null ' if fault.value == 0 else ''}pointer{of}"


def _describe_musl_check(check: str) -> str:
    """Return what musl found when it executed hlt. `check`: see musl_check.py."""
    if check == "allocator":
        return f"it executed hlt in musl's allocator, which found an error: {_ALLOCATOR_ERRORS}"
    if check == "stack":
        return "it executed hlt in musl's __stack_chk_fail(): a local array was written past its end"
    return (
        "it executed hlt, a privileged instruction. Functions of musl execute it if they find an error: "
        f"{_ALLOCATOR_ERRORS}; or a local array was written past its end"
    )


def _describe_source(noun: str, source: PointerSource, text: str) -> list[str]:
    """Return sentences about the origin of a value. `noun`: see `_noun`."""
    more = f"{number(abs(source.offset))} {'more' if source.offset > 0 else 'less'} than " if source.offset else ""
    if source.sort == "result":
        return [f"{noun} is {more}the result of {shorten(source.function, 200)}()."]
    if source.sort == "argument":
        return [f"{noun} is {more}an argument of {shorten(source.function, 200)} (passed in {source.register})."]
    place = source.place
    if place is None:
        return []
    if source.local_of:
        return [f"{noun} is {more}{'a value in ' if more else 'in '}a local variable of {shorten(source.local_of, 200)}."]
    sentences = [f"{noun} {f'is {more}a value' if more else 'was'} loaded from {_phrase(place)}."]
    if text and not is_in_hint(text, place):
        sentences.append(_describe_text(text))
    if place.is_freed and not source.is_older:
        sentences.append("Probable cause: the block was used after it was freed.")
    return sentences


def _phrase(place: Place) -> str:
    """Return the description of a place for a sentence with "loaded from"."""
    block = place.block
    if block is None:
        return shorten(place.phrase if place.sort in ("module", "thread-local") else f"{place.address:#x} ({place.phrase})", WIDEST)
    return describe_in_block(place, block)


def _describe_released(found: Crash, place: Place) -> list[str]:
    released = found.released
    if released is None:
        return []
    block = place.block
    value = _quote_value(released.value, place.sort != "unmapped")
    where = (
        f": {shorten(place.phrase, WIDEST)}" if block is None or block.address != released.value else f": a {shorten(place.phrase, WIDEST)}"
    )
    by = f" by {shorten(released.by, WIDEST)}()" if released.by else ""
    sentences = [f"{released.function}() was called{by} with {value}{where}."]
    if block is not None and block.address != released.value:
        # glibc merges free chunks, so that a freed block may be inside a larger one.
        freed = "This is free memory, and not the start of a block. The pointer may have been freed before."
        sentences.append(freed if place.is_freed else "This is not the start of a block.")
    elif block is not None and place.is_freed and found.message.startswith(_DOUBLE_FREES) and found.damage is None:
        # Under other conditions, this call may have freed the block, or the block only seems to be
        # free because its neighbour is damaged.
        sentences.append("The block was already free.")
    elif place.sort in ("stack", "module", "thread-local"):
        sentences.append("No allocator returned this address.")
    if found.source is not None:
        sentences += _describe_source("The pointer", found.source, found.text)
    return sentences


def _quote_value(value: int, is_mapped: bool) -> str:
    """Return a value in hexadecimal. If its bytes are text, the text follows, unless the value is a
    mapped address: the bytes of such an address are text only by chance."""
    text = text_of_value(value) if not is_mapped else ""
    return f"{value:#x} ({_quote(text)})" if text else f"{value:#x}"


def _describe_text(text: str) -> str:
    return f"The memory there contains the text {_quote(text)}."


def _quote(text: str) -> str:
    return f'"{shorten(text, WIDEST)}"'


def cause_facts(found: Crash) -> dict[str, object]:
    """Return the facts that the sentences state, for the JSON."""
    fault, released, recursion, stream = found.fault, found.released, found.recursion, found.stream
    return {
        "fault": _fault_facts(fault) if fault is not None else None,
        "released_pointer": {
            "function": released.function,
            "value": hex(released.value),
            "by": released.by or None,
            "place": _place_facts(found.released_place),
        }
        if released is not None
        else None,
        "loaded_from": _source_facts(found.source) if found.source is not None else None,
        "text": found.text or None,
        "equal_words": equal_words_facts(found.equal),
        "nearby_memory": nearby_facts(found.nearby),
        "stack": _place_facts(found.stack_place),
        "fortified_function": found.check or None,
        "closed_stream": {"function": stream.function, "address": hex(stream.address), "is_freed": stream.is_freed} if stream else None,
        "allocator_check": "musl" if found.musl_check == "allocator" else None,
        "recursion": {"function": recursion.frame.short_name(), "frames": recursion.frames} if recursion is not None else None,
    }


def _fault_facts(fault: Fault) -> dict[str, object]:
    is_division = fault.kind.startswith("division")
    has_value = is_division or fault.kind in ("return", "call", "jump", "pointer", "index")
    return {
        "kind": fault.kind,
        "instruction": fault.instruction or None,
        "register": register_name(fault.register) or None,
        "address": hex(fault.address) if fault.address is not None else None,
        "value": None if not has_value else fault.value if is_division or fault.kind == "index" else hex(fault.value),
        "dividend": fault.dividend if is_division else None,
        "alignment": fault.width if fault.kind == "not-aligned" and fault.width else None,
        "file": fault.file or None,
        "file_offset": fault.file_offset if fault.file else None,
    }


def _source_facts(source: PointerSource) -> dict[str, object]:
    return {
        "source": source.sort,
        "place": _place_facts(source.place),
        "local_of": source.local_of or None,
        "function": source.function or None,
        "register": source.register or None,
        "offset": source.offset,
    }


def _place_facts(place: Optional[Place]) -> Optional[dict[str, object]]:
    if place is None:
        return None
    return {
        "address": hex(place.address),
        "description": place.phrase,
        "member": place.member or None,
        "block": block_facts(place.block),
    }
