"""The small replacements of `dataclass` and `NamedTuple` behave like those of the standard library."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
import typing

import pytest

from findleaks import value_classes


@value_classes.dataclass(frozen=True)
class LightClass:
    address: int
    name: str = "x"
    parts: list[int] = value_classes.field(default_factory=list, metadata={"key": "of"}, repr=False)


@dataclasses.dataclass(frozen=True)
class Standard:
    address: int
    name: str = "x"
    parts: list[int] = dataclasses.field(default_factory=list, metadata={"key": "of"}, repr=False)


@value_classes.dataclass
class Derived(LightClass if typing.TYPE_CHECKING else value_classes.dataclass(type("Base", (), {"__annotations__": {"first": "int"}}))):
    second: int = 2


class Pair(value_classes.NamedTuple):
    """Two numbers."""

    low: int
    high: int = 7

    @property
    def span(self) -> int:
        return self.high - self.low


class StandardPair(typing.NamedTuple):
    low: int
    high: int = 7


def test_dataclass_is_made_as_a_standard_one() -> None:
    made, standard = LightClass(5), Standard(5)
    assert vars(made) == vars(standard) == {"address": 5, "name": "x", "parts": []}
    assert made.parts is not LightClass(5).parts
    assert vars(LightClass(1, parts=[2], name="y")) == {"address": 1, "name": "y", "parts": [2]}
    for call in (lambda: LightClass(), lambda: LightClass(1, "x", [], 4), lambda: LightClass(1, other=2)):  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            call()
    assert not hasattr(LightClass, "parts") and LightClass.name == "x"
    assert LightClass.__match_args__ == Standard.__match_args__


def test_dataclass_is_compared_and_frozen_as_a_standard_one() -> None:
    assert LightClass(5) == LightClass(5) != LightClass(6)
    assert LightClass(5) != Standard(5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        LightClass(5).name = "y"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del LightClass(5).name
    light = value_classes.dataclass(frozen=True)(type("Made", (), {"__annotations__": {"one": "int"}}))
    assert hash(light(3)) == hash(light(3)) and {light(3): 1}[light(3)] == 1  # type: ignore[call-arg]
    assert value_classes.dataclass(type("Made", (), {"__annotations__": {"one": "int"}})).__hash__ is None


def test_functions_of_dataclasses_accept_it() -> None:
    light = value_classes.fields(LightClass)
    assert [one.name for one in light] == ["address", "name", "parts"]
    assert (light[0].default, light[1].default, light[2].default_factory) == (value_classes.MISSING, "x", list)
    assert repr(LightClass(5)) == "LightClass(address=5, name='x')"
    assert [(one.name, one.default, dict(one.metadata)) for one in dataclasses.fields(LightClass)] == [
        (one.name, one.default, dict(one.metadata)) for one in dataclasses.fields(Standard)
    ]
    assert dataclasses.replace(LightClass(5, "a"), address=6) == value_classes.replace(LightClass(5, "a"), address=6) == LightClass(6, "a")
    assert dataclasses.asdict(LightClass(5)) == dataclasses.asdict(Standard(5))
    assert dataclasses.is_dataclass(LightClass)
    assert LightClass(5) == pickle.loads(pickle.dumps(LightClass(5)))


def test_fields_of_a_base_class_come_first() -> None:
    made = Derived(1)
    assert (made.first, made.second) == (1, 2)  # type: ignore[attr-defined]
    assert [one.name for one in dataclasses.fields(Derived)] == ["first", "second"]
    assert vars(Derived(3, 4)) == {"first": 3, "second": 4}  # type: ignore[arg-type]


def test_standard_dataclass_as_base() -> None:
    made = value_classes.dataclass(frozen=True)(type("Made", (Standard,), {"__annotations__": {"more": "int"}, "more": 1}))
    assert made(5).more == 1  # type: ignore[attr-defined]
    assert [one.name for one in dataclasses.fields(made)] == ["address", "name", "parts", "more"]  # type: ignore[arg-type]


def test_named_tuple_behaves_as_a_standard_one() -> None:
    made, standard = Pair(3), StandardPair(3)
    assert made == standard == (3, 7) and made.span == 4
    assert repr(made) == "Pair(low=3, high=7)"
    assert Pair(high=1, low=2) == (2, 1)
    assert made._replace(high=9) == standard._replace(high=9) == (3, 9)
    assert made._asdict() == standard._asdict()
    assert Pair._make([1, 2]) == StandardPair._make([1, 2])
    assert Pair._fields == StandardPair._fields and Pair._field_defaults == StandardPair._field_defaults
    assert type(pickle.loads(pickle.dumps(made))) is Pair
    assert not hasattr(made, "__dict__")
    for call in (lambda: Pair(), lambda: Pair(1, 2, 3), lambda: Pair(1, other=2), lambda: Pair._make([1])):  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            call()
    with pytest.raises(ValueError, match="unexpected field names"):
        made._replace(other=1)
    with pytest.raises(AttributeError):
        made.low = 1  # type: ignore[misc]


def test_find_imports_neither_inspect_nor_a_second_dataclasses() -> None:
    """The module that takes longest to import is not needed by the command that is used most."""
    script = "import sys, findleaks.answers.leaks, findleaks.commands.find; print('inspect' in sys.modules, 'dataclasses' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
