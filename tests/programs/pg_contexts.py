"""A script for GDB, attached to a backend of PostgreSQL. It makes memory contexts of the types Slab, Generation and (from 17 on) Bump,
allocates 150 chunks of 200 bytes in each, and frees some of them. Of the Slab, some blocks become free as a whole. The convenience
variable $major has PostgreSQL's version."""

import gdb

CHUNK, CHUNKS = 200, 150  # bytes, number


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
