"""Find the largest group of classes whose names differ only in numbers.

Names of generated classes end with a number, such as com.sun.proxy.$Proxy12 and Script1. Hidden
classes have an address at the end: App$$Lambda/0x00007f4634009228 (OpenJDK 17 and newer,
src/hotspot/share/classfile/systemDictionary.cpp)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple, Optional

from findleaks.formatting import number, shorten
from findleaks.runtimes.jvm.classes import MOST, list_classes, list_loader_data
from findleaks.runtimes.jvm.java_classes import ClassReader, class_of
from findleaks.runtimes.jvm.layout import read_layout
from findleaks.runtimes.jvm.tables import Tables
from findleaks.runtimes.memory_part import Explanation
from findleaks.target.interruptible import interruptible

_NUMBER = re.compile(r"(?<![A-Za-z])0x[0-9a-f]+|[0-9]+")
_PART, _LEAST = 4, 100  # a group is reported if it has 1 / _PART of the classes, and _LEAST
_LONGEST = 512  # characters of a name that are compared
_LOOK = 256  # classes between two checks for Ctrl-C
_BOOT = "the boot class loader"


class _Loaded(NamedTuple):
    """Classes, and the types of the class loaders that loaded them."""

    klasses: list[int]
    loaders: set[str]


def explain_classes(tables: Tables) -> Optional[Explanation]:
    """Describe the largest group of classes; None if no group is a large part of all classes.
    Raises Interrupted."""
    reader, groups, count = ClassReader(tables), dict[str, _Loaded](), 0
    for klass, loader in interruptible(tables.target, islice(_list_all(tables, reader), MOST + 1), _LOOK):
        count += 1
        form = _NUMBER.sub("…", reader.name(klass)[:_LONGEST])
        if "…" in form:
            group = groups.setdefault(form, _Loaded([], set()))
            group.klasses.append(klass)
            group.loaders.add(loader)
    if count > MOST:  # a list does not end
        return None
    name, largest = max(groups.items(), key=lambda one: len(one[1].klasses), default=("", _Loaded([], set())))
    classes, loaders = len(largest.klasses), sorted(largest.loaders)
    if classes < max(_LEAST, count / _PART):
        return None
    sentence = f"{number(classes)} of the classes are named {shorten(name)}"
    sentence += f", and {shorten(loaders[0])} loaded them." if len(loaders) == 1 and loaders[0] else "."
    facts = {"name": name, "classes": classes, "loaders": loaders}
    return Explanation(sentence, facts, reader.mirror(largest.klasses[classes // 2]))


def _list_all(tables: Tables, reader: ClassReader) -> Iterator[tuple[int, str]]:
    """Yield each class with the type of its class loader."""
    for data in interruptible(tables.target, list_loader_data(tables)):
        loader = _loader_type(tables, reader, data)
        for klass in list_classes(tables, data):
            yield klass, loader


def _loader_type(tables: Tables, reader: ClassReader, data: int) -> str:
    """Return the type of the class loader with this ClassLoaderData, "" if it cannot be read."""
    loader, layout = tables.oop("ClassLoaderData", "_class_loader", data), read_layout(tables)
    if not loader or layout is None:
        return _BOOT if not loader else ""
    return reader.name(class_of(tables, layout, loader))
