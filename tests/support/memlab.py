"""MemLab's parser of heap snapshots, from the npm package @memlab/core, without the browser that it can control."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import debian
import nodes

VERSION = "2.0.5"
NODE = "20.20.0"  # runs the parser

PARSE = """
const path = require("path"), main = require.resolve("@memlab/core")
require(main).config.muteConsole = true
require(path.join(path.dirname(main), "lib", "HeapParser.js")).default.parse(process.argv[2]).then(heap => {
  const counts = {}, sizes = {}, names = {}
  let edges = 0
  heap.nodes.forEach(node => {
    if (node.type !== "object") return
    counts[node.name] = (counts[node.name] || 0) + 1
    sizes[node.name] = (sizes[node.name] || 0) + node.self_size
    node.forEachReference(edge => {
      if (edge.type === "property") (names[node.name] = names[node.name] || {})[edge.name_or_index] = edge.toNode.name
    })
  })
  heap.edges.forEach(() => { edges++ })
  console.log(JSON.stringify({ nodes: heap.nodes.length, edges, counts, sizes, names }))
})
"""


class Parsed(NamedTuple):
    """The number of nodes and edges; objects and bytes by constructor; and by constructor, the names of properties that refer to an
    object."""

    nodes: int
    edges: int
    counts: Mapping[str, int]
    sizes: Mapping[str, int]
    names: Mapping[str, Mapping[str, str]]


def parse(snapshot: Path) -> Parsed:
    """Parse a snapshot. The package is installed into the cache at the first use."""
    folder = debian.cache() / "memlab" / VERSION
    npm = shutil.which("npm")
    assert npm is not None
    with debian.hold_lock(folder):
        if not (folder / "node_modules" / "@memlab" / "core" / "package.json").exists():
            command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent", f"@memlab/core@{VERSION}"]
            subprocess.run(command, cwd=folder, env={**os.environ, "PUPPETEER_SKIP_DOWNLOAD": "1"}, check=True, stdout=subprocess.DEVNULL)
        (folder / "parse.js").write_text(PARSE)
    printed = subprocess.check_output([nodes.get(NODE), str(folder / "parse.js"), str(snapshot)], text=True)
    return Parsed(**json.loads(printed))
