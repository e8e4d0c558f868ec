"""Debug information (DWARF), read with pyelftools: the types of variables and names of members.
`files` opens a module's files, once a session; `dwarf` reads one, with guards around pyelftools;
`variables` finds a variable by its address, `members` names its members. Every use of pyelftools
goes through `DebugFile.ask`. Sources: DWARF 4 and 5 (dwarfstd.org)."""
