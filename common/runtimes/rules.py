"""Rules of `count --outside-scope`: what opens and closes a scope, and whether a thread is in one.

A rule with a `state` reads it, and needs no breakpoints: "v8" reads the level of handle scopes in
the thread's isolate, "gil" whether the thread holds CPython's lock. Other rules, and "gil" if the
interpreter's code is not as expected, count for each thread how often `enter` was called more than
`leave` since counting began."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from findleaks.errors import UsageError


@dataclass(frozen=True)
class Rule:
    """One kind of scope. `guarded`: the functions usually counted. `enter` and `leave`: names to
    look for, of which at least one must exist for a built-in rule, all for a user's own."""

    name: str
    enter: tuple[str, ...]
    leave: tuple[str, ...]
    guarded: tuple[str, ...] = ()
    state: str = ""
    what: str = "a scope"


RULES = {
    rule.name: rule
    for rule in (
        # deps/v8/src/api.cc; src/node.cc of Node 0.10, src/api/callback.cc since 10
        Rule(
            "v8",
            ("v8::HandleScope::HandleScope", "v8::HandleScope::Initialize"),
            ("v8::HandleScope::~HandleScope", "v8::HandleScope::Leave"),
            ("node::MakeCallback", "node::InternalMakeCallback"),
            "v8",
            "a handle scope",
        ),
        # src/js_native_api_v8.cc
        Rule(
            "napi",
            ("napi_open_handle_scope", "napi_open_escapable_handle_scope"),
            ("napi_close_handle_scope", "napi_close_escapable_handle_scope"),
            ("napi_create_object",),
            "",
            "a N-API handle scope",
        ),
        # hotspot/share/prims/jni.cpp
        Rule("jni", ("jni_PushLocalFrame",), ("jni_PopLocalFrame",), ("jni_NewLocalRef",), "", "a JNI local frame"),
        # Python/pystate.c
        Rule("python-gil", ("PyGILState_Ensure",), ("PyGILState_Release",), ("PyObject_Call",), "gil", "the global interpreter lock"),
    )
}
"""By name. To add a rule, add a line here."""


def rule(name: str, enter: Sequence[str] = (), leave: Sequence[str] = ()) -> Rule:
    """The rule of this name, or without one a user's own of `enter` and `leave`. UsageError
    otherwise."""
    if name and (enter or leave):
        raise UsageError("--outside-scope names a rule, --enter and --leave make one: give one of both")
    if name:
        if name not in RULES:
            raise UsageError(f"--outside-scope {name}: no such rule; there are {', '.join(RULES)}, or make one by --enter and --leave")
        return RULES[name]
    if not enter or not leave:
        raise UsageError(f"--{'leave' if enter else 'enter'} is missing: a scope is opened by one function and closed by another")
    return Rule("", tuple(enter), tuple(leave), what=f"{' or '.join(enter)} … {' or '.join(leave)}")
