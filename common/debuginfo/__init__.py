"""Debug information (DWARF), read with pyelftools: what a program's author named the things in memory.

`files` opens a module's files, once a session; `dwarf` is one of them, with guards around pyelftools; `variables` finds a
variable by its address, `members` names its members. Everything that pyelftools is asked goes through `DebugFile.ask`.
Sources: DWARF 4 and 5 (dwarfstd.org).
"""
