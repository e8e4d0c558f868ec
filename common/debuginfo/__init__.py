"""Read debug information (DWARF) with pyelftools: types of variables, and names of members.

`files` opens the files of a module once per session. `dwarf` reads one file, and guards the calls
of pyelftools. `variables` finds a variable by its address. `members` names its members. Every call
of pyelftools goes through `DebugFile.ask`. Sources: DWARF 4 and 5 (dwarfstd.org)."""
