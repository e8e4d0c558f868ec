# # Find the leak of a core file with pandas
#
# A program was killed when it had grown too large, and left a core file. Which blocks grew, and what are they? Run this file as a
# script, `python find_the_leak.py CORE`, or cell by cell in a notebook. It needs findleaks and pandas.

# %% Open the core
import sys

import findleaks

core = sys.argv[1] if len(sys.argv) > 1 else "app.core"
process = findleaks.open(core)
print(process)

# %% All blocks in use, as a data frame
blocks = process.blocks().to_pandas()
print(len(blocks), "blocks in use,", blocks["size"].sum(), "bytes")

# %% How much of it is leaked?
by_kind = blocks.groupby("kind", observed=True)["size"].agg(["count", "sum"])
print(by_kind)

# %% Which blocks are leaked? Those with a type by their type, all others by their size
leaked = blocks[blocks["kind"].isin(["definite", "indirect"])].copy()
leaked["what"] = leaked["type"].astype(object).fillna(leaked["size"].astype(str) + " bytes")
largest = leaked.groupby("what")["size"].agg(["count", "sum"]).sort_values("sum", ascending=False)
print(largest.head(5))

# %% One of the leaked blocks with a type, and what refers to it
typed = leaked[leaked["type"].notna()]
most = typed.groupby("type", observed=True)["size"].sum().idxmax()
example = process.block_at(int(typed[typed["type"] == most]["address"].iloc[0]))
print(example.phrase, "with", process.referrers(example).live, "references")

# %% The same from findleaks itself: groups of leaked blocks, with what is only reachable from them
for group in process.leaks(kind="definite", by="type"):
    print(group.blocks, group.bytes, group.indirect_bytes, group.type)

process.close()
