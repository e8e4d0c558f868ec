"""A script for GDB, attached to a backend of PostgreSQL. It creates memory contexts of the types Slab, Generation and Bump (since
PostgreSQL 17), allocates 150 chunks of 200 bytes in each, and frees some of them, except in Bump. Some blocks of the Slab context become
completely free. The convenience variable $major has PostgreSQL's major version."""

import gdb

CHUNK, CHUNKS = 200, 150  # bytes of a chunk, number of chunks


def call(function: str, *arguments: str) -> int:
    types = ", ".join("const char*" if one.startswith('"') else "unsigned long" for one in arguments)
    return int(gdb.parse_and_eval(f"((unsigned long (*)({types})) {function})({', '.join(arguments)})"))


major = int(gdb.parse_and_eval("$major"))
contexts = {"Slab": ["8192", str(CHUNK)], "Generation": ["0", "8192", "65536"] if major > 14 else ["8192"]}
if major > 16:
    contexts["Bump"] = ["0", "8192", "65536"]
top = int(gdb.parse_and_eval("*(unsigned long*)&TopMemoryContext"))
for kind, sizes in contexts.items():
    context = call(f"{kind}ContextCreate", str(top), f'"{kind} test"', *sizes)
    chunks = [call("MemoryContextAlloc", str(context), str(CHUNK)) for _ in range(CHUNKS)]
    for chunk in [*chunks[: CHUNKS // 2 : 3], *chunks[CHUNKS // 2 :]] if kind != "Bump" else []:
        call("pfree", str(chunk))
