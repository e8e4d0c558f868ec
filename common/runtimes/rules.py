"""Rules of `count --outside-scope`: what opens and closes a scope, and whether a thread is in one.

A rule with a `state` reads this state and needs no breakpoints: "v8" reads the level of handle
scopes in the thread's isolate, and "gil" reads whether the thread holds CPython's lock. For each
thread, other rules count the calls of `enter` minus the calls of `leave` since counting began.
"gil" does the same if the interpreter's code is not as expected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from findleaks.errors import UsageError


@dataclass(frozen=True)
class Rule:
    """One kind of scope.

    `guarded`: the functions that are usually counted. `enter` and `leave`: names of functions. For
    a built-in rule, at least one of them must exist. For a user's own rule, all must exist."""

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
            "an N-API handle scope",
        ),
        # hotspot/share/prims/jni.cpp
        Rule("jni", ("jni_PushLocalFrame",), ("jni_PopLocalFrame",), ("jni_NewLocalRef",), "", "a JNI local frame"),
        # Python/pystate.c
        Rule("python-gil", ("PyGILState_Ensure",), ("PyGILState_Release",), ("PyObject_Call",), "gil", "the global interpreter lock"),
    )
}
"""Rules by name. To add a rule, add a line here."""


def rule(name: str, enter: Sequence[str] = (), leave: Sequence[str] = ()) -> Rule:
    """Return the rule of this name; without a name, return a user's own rule of `enter` and
    `leave`. Raises UsageError."""
    if name and (enter or leave):
        raise UsageError("expected either --outside-scope or --enter and --leave, not both")
    if name:
        if name not in RULES:
            raise UsageError(
                f"--outside-scope {name}: no such rule; use one of {', '.join(RULES)}, or define a scope by --enter and --leave"
            )
        return RULES[name]
    if not enter or not leave:
        raise UsageError(
            f"--{'leave' if enter else 'enter'} is missing: give both the function that opens a scope and the one that closes it"
        )
    return Rule("", tuple(enter), tuple(leave), what=f"{' or '.join(enter)} … {' or '.join(leave)}")
