"""Find functions of the Java Native Interface in a libjvm without symbols, by their index in its
function table.

The order is that of the interface (Java Native Interface Specification, chapter 4, "Interface
Function Table"; JNI 1.1 to 21): four words of 0, then the functions. HotSpot has the table in
writable data, because agents may replace entries (src/hotspot/share/prims/jni.cpp). The next table
is for -Xcheck:jni; its functions call those of the first table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Optional

from findleaks.errors import Interrupted
from findleaks.target.base import Piece, Range, Target
from findleaks.target.ranges import nonzero_pieces, region_at

PREFIX = "jni_"
EXPORTED = "JNI_GetCreatedJavaVMs"  # exported by every libjvm

MODULE = "libjvm.so"

RESERVED = 4  # words of 0 before the functions

MAX_DATA = 16 << 20  # maximum number of bytes searched in each region; libjvm has 1 MiB of data

_KINDS = "Object Boolean Byte Char Short Int Long Float Double"


_FIRST = """
    GetVersion DefineClass FindClass FromReflectedMethod FromReflectedField ToReflectedMethod GetSuperclass IsAssignableFrom
    ToReflectedField Throw ThrowNew ExceptionOccurred ExceptionDescribe ExceptionClear FatalError PushLocalFrame PopLocalFrame
    NewGlobalRef DeleteGlobalRef DeleteLocalRef IsSameObject NewLocalRef EnsureLocalCapacity AllocObject NewObject NewObjectV
    NewObjectA GetObjectClass IsInstanceOf GetMethodID"""
_STRINGS = """
    NewString GetStringLength GetStringChars ReleaseStringChars NewStringUTF GetStringUTFLength GetStringUTFChars ReleaseStringUTFChars
    GetArrayLength NewObjectArray GetObjectArrayElement SetObjectArrayElement"""
_LAST = """
    RegisterNatives UnregisterNatives MonitorEnter MonitorExit GetJavaVM GetStringRegion GetStringUTFRegion GetPrimitiveArrayCritical
    ReleasePrimitiveArrayCritical GetStringCritical ReleaseStringCritical NewWeakGlobalRef DeleteWeakGlobalRef ExceptionCheck
    NewDirectByteBuffer GetDirectBufferAddress GetDirectBufferCapacity GetObjectRefType"""


def _names() -> Iterator[str]:
    kinds = _KINDS.split()
    yield from _FIRST.split()
    for where in ("", "Nonvirtual"):
        yield from _calls(where)
    yield "GetFieldID"
    yield from (f"{verb}{kind}Field" for verb in ("Get", "Set") for kind in kinds)
    yield "GetStaticMethodID"
    yield from _calls("Static")
    yield "GetStaticFieldID"
    yield from (f"{verb}Static{kind}Field" for verb in ("Get", "Set") for kind in kinds)
    yield from _STRINGS.split()
    yield from (f"New{kind}Array" for kind in kinds[1:])
    for verb, what in (("Get", "Elements"), ("Release", "Elements"), ("Get", "Region"), ("Set", "Region")):
        yield from (f"{verb}{kind}Array{what}" for kind in kinds[1:])
    yield from _LAST.split()


def _calls(where: str) -> Iterator[str]:
    return (f"Call{where}{kind}Method{form}" for kind in (*_KINDS.split(), "Void") for form in ("", "V", "A"))


NAMES = tuple(_names())  # functions up to JNI 1.6; later versions append to the table

# Minimum number of different functions in the table. Entries that get fields may be outside libjvm:
# HotSpot replaces them with code generated at run time.
MIN_DISTINCT = len(NAMES) - 40


def functions(target: Target) -> Mapping[str, int]:
    """Return addresses by name ("jni_NewLocalRef"); {} without a JVM or such a table. Raises
    Interrupted."""
    symbol = target.symbol(EXPORTED)
    module = region_at(target.modules(), symbol.address) if symbol is not None else None
    if module is None:
        return {}
    code = [Range(one.start, one.end) for one in target.regions() if one.executable and module.start <= one.start < module.end]
    for region in target.regions():
        if region.writable and region.readable and region.start < module.end and module.start < region.end:
            start, end = max(region.start, module.start), min(region.end, module.end)
            for piece in nonzero_pieces(target, start, min(end, start + MAX_DATA)):
                if target.is_interrupted():
                    raise Interrupted
                table = _table(target, piece, code)
                if table is not None:
                    return {PREFIX + name: address for name, address in zip(NAMES, table)}
    return {}


def _table(target: Target, piece: Piece, code: list[Range]) -> Optional[tuple[int, ...]]:
    words = target.arch.unpack(bytes(piece.data))
    first, last = min((one.start for one in code), default=0), max((one.end for one in code), default=0)
    zeros = 0
    for at, word in enumerate(words):
        if not word:
            zeros += 1
            continue
        if zeros >= RESERVED and first <= word < last:
            found = words[at : at + len(NAMES)]
            if len({one for one in found if first <= one < last}) >= MIN_DISTINCT and all(found):
                return found
        zeros = 0
    return None
