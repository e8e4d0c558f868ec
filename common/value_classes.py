"""`dataclass`, its functions, and `NamedTuple` of the standard library, in versions that do little
work at import.

findleaks defines hundreds of such classes, and a command uses only a few of them. `dataclasses`
imports `inspect`, and compiles several functions for each class. `typing.NamedTuple` compiles a
function and each annotation. This took half of the time in which `find` reads a small core. In this
module, a function is compiled when it is first called. Type checkers see the originals.

Differences: `NamedTuple` keeps its annotations as they are written, and takes no other bases.
`dataclass` takes only `frozen`, `eq` and `repr`. The first use of `dataclasses.fields`,
`dataclasses.asdict` and the like makes the class a standard one; `fields` and `replace` of this
module do not need that."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import MISSING as MISSING
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import fields as fields
    from dataclasses import replace as replace
    from typing import NamedTuple as NamedTuple
else:
    from collections import _tuplegetter
    from types import FunctionType, MappingProxyType

    def dataclass(cls=None, *, frozen=False, eq=True, repr=True):  # noqa: A002
        """The same as dataclasses.dataclass."""

        def process(cls):
            if any("__dataclass_fields__" in vars(base) and _PLAN not in vars(base) for base in cls.__mro__):
                import dataclasses  # a base class must be a standard one

                return dataclasses.dataclass(cls, frozen=frozen, eq=eq, repr=repr)
            _Plan(cls, frozen, eq, repr)
            return cls

        return process if cls is None else process(cls)

    MISSING = type("Missing", (), {"__doc__": "The default value of a field without one."})()

    def fields(cls):
        """Return the fields of a class, in order. They have the attributes that dataclasses.Field
        has."""
        return tuple(value.with_name(name) for name, value in vars(cls)[_PLAN].fields.items())

    def replace(record, **changes):
        """The same as dataclasses.replace."""
        return type(record)(**{name: getattr(record, name) for name in vars(type(record))[_PLAN].fields} | changes)

    def field(**options):
        """The same as dataclasses.field, without `init`, `kw_only` and `compare`."""
        return _Field(options)

    class _Field:
        """A field, with the options that were passed to `field`."""

        def __init__(self, options, name=""):
            self.options, self.name = options, name
            self.default = options.get("default", MISSING)
            self.default_factory = options.get("default_factory", MISSING)
            self.metadata = options.get("metadata") or {}

        def with_name(self, name):
            return _Field(self.options, name)

    _PLAN = "_value_class_plan"
    _STANDARD = ("__dataclass_fields__", "__dataclass_params__")

    class _Plan:
        """The options with which a class becomes a dataclass when it is first used."""

        def __init__(self, cls, frozen, eq, repr):  # noqa: A002
            self.cls, self.options = cls, {"frozen": frozen, "eq": eq, "repr": repr}
            self.own = vars(cls).get("__annotations__", {})
            self.fields = {}  # by name
            for base in reversed(cls.__mro__[1:]):
                if _PLAN in vars(base):
                    self.fields.update(vars(base)[_PLAN].fields)
            for name in self.own:
                value = vars(cls).get(name, MISSING)
                if isinstance(value, _Field):
                    if value.default is MISSING:
                        delattr(cls, name)
                    else:
                        setattr(cls, name, value.default)
                    self.fields[name] = value
                else:
                    self.fields[name] = _Field({} if value is MISSING else {"default": value})
            made = {"__init__": _first_init(self), **{name: _Standard(self, name) for name in _STANDARD}}
            if repr and "__repr__" not in vars(cls):
                made["__repr__"] = _first_repr(self)
            if eq and "__eq__" not in vars(cls):
                made["__eq__"] = _equal(self)
                made["__hash__"] = _hash(self) if frozen else None
            if frozen:
                made["__setattr__"], made["__delattr__"] = _no_set, _no_delete
            made["__match_args__"] = tuple(self.fields)
            self.made = [name for name in made if name not in ("__init__", "__hash__") or name not in vars(cls)]
            for name in self.made:
                setattr(cls, name, made[name])
            setattr(cls, _PLAN, self)

        def compile_init(self):
            """Return an __init__ that has a parameter for each field."""
            names = {"_set": object.__setattr__, "_MISSING": MISSING}
            parameters, body = ["self"], []
            for name, one in self.fields.items():
                given = name
                if one.default_factory is not MISSING:
                    names[f"_make_{name}"] = one.default_factory
                    parameters.append(f"{name}=_MISSING")
                    given = f"_make_{name}() if {name} is _MISSING else {name}"
                elif one.default is not MISSING:
                    names[f"_default_{name}"] = one.default
                    parameters.append(f"{name}=_default_{name}")
                else:
                    parameters.append(name)
                body.append(f" _set(self, {name!r}, {given})" if self.options["frozen"] else f" self.{name} = {given}")
            if hasattr(self.cls, "__post_init__"):
                body.append(" self.__post_init__()")
            exec(f"def __init__({', '.join(parameters)}):\n" + ("\n".join(body) or " pass"), names)
            made = names["__init__"]
            made.__qualname__ = f"{self.cls.__qualname__}.__init__"
            return made

        def make_standard(self):
            """Let `dataclasses` process the class."""
            import dataclasses

            for name in self.made:
                delattr(self.cls, name)
            for name in self.own:
                setattr(self.cls, name, dataclasses.field(**self.fields[name].options))
            dataclasses.dataclass(self.cls, **self.options)

    class _Standard:
        """An attribute that `dataclasses` adds to a class. It is computed when it is first used."""

        def __init__(self, plan, name):
            self.plan, self.name = plan, name

        def __get__(self, instance, owner):
            self.plan.make_standard()
            return getattr(owner, self.name)

    def _first_init(plan):
        def __init__(self, *args, **kwargs):
            plan.cls.__init__ = made = plan.compile_init()
            made(self, *args, **kwargs)

        return __init__

    def _first_repr(plan):
        def __repr__(self):
            plan.make_standard()
            return repr(self)

        return __repr__

    def _equal(plan):
        def __eq__(self, other):
            if other.__class__ is not self.__class__:
                return NotImplemented
            return all(getattr(self, name) == getattr(other, name) for name in plan.fields)

        return __eq__

    def _hash(plan):
        def __hash__(self):
            return hash(tuple([getattr(self, name) for name in plan.fields]))

        return __hash__

    def _no_set(self, name, value):
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def _no_delete(self, name):
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot delete field {name!r}")

    class _Named(tuple):
        """The methods that all named tuples have in common."""

        __slots__ = ()
        _fields = ()
        _field_defaults = MappingProxyType({})

        @classmethod
        def _make(cls, iterable):
            made = tuple.__new__(cls, iterable)
            if len(made) != len(cls._fields):
                raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
            return made

        def _replace(self, **changes):
            made = self._make(map(changes.pop, self._fields, self))
            if changes:
                raise ValueError(f"Got unexpected field names: {list(changes)!r}")
            return made

        __replace__ = _replace

        def _asdict(self):
            return dict(zip(self._fields, self))

        def __repr__(self):
            return f"{self.__class__.__name__}({', '.join(f'{name}={value!r}' for name, value in zip(self._fields, self))})"

        def __getnewargs__(self):
            return tuple(self)

    _CONSTRUCTORS = {}  # constructors of named tuples, by the number of their fields

    def _constructor(names, defaults):
        """Return a __new__ with these parameters. Its code is that of a __new__ with as many
        parameters, with other names."""
        count = len(names)
        if count not in _CONSTRUCTORS:
            numbered = "".join(f"_{number}, " for number in range(count))
            _CONSTRUCTORS[count] = eval(f"lambda _cls, {numbered}: _new(_cls, ({numbered}))").__code__
        code = _CONSTRUCTORS[count].replace(co_varnames=("_cls", *names), co_name="__new__")
        return FunctionType(code, {"_new": tuple.__new__, "__builtins__": {}}, "__new__", tuple(defaults))

    class _NamedTupleMeta(type):
        def __new__(meta, name, bases, namespace):
            if not bases:
                return type.__new__(meta, name, bases, namespace)
            if len(bases) > 1:
                raise TypeError(f"{name}: a NamedTuple takes no other base class")
            fields = tuple(namespace.get("__annotations__", ()))
            defaults = {field: namespace[field] for field in fields if field in namespace}
            namespace.update(zip(fields, map(_tuplegetter, range(len(fields)), [""] * len(fields))))
            namespace["__new__"] = _constructor(fields, defaults.values())
            namespace["_fields"] = namespace["__match_args__"] = fields
            namespace["_field_defaults"] = defaults
            namespace["__slots__"] = ()
            return type.__new__(type, name, (_Named,), namespace)

    class NamedTuple(metaclass=_NamedTupleMeta):
        """The same as typing.NamedTuple."""
