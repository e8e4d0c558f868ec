"""Build the rows of the retained tree: a root, its fields, and the blocks and containers that the
fields refer to."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Optional

from findleaks.audit.block_contents import describe_untyped
from findleaks.audit.block_type import find_block_type, is_managed
from findleaks.audit.container_samples import SAMPLE, name_kept_blocks
from findleaks.audit.containers import Container
from findleaks.audit.containers.reader import ContainerReader
from findleaks.audit.containers.recognise import recognise_first_node
from findleaks.audit.conventions import name_structure_of_block
from findleaks.audit.declared_types import declared_types
from findleaks.audit.fields import Field, Fields, group_fields, read_fields, size_key, sum_retained
from findleaks.audit.heavy_nodes import MOST, count_node_sizes, find_heavy_node, has_no_other_links
from findleaks.audit.member_names import is_telling, name_managed_member, name_managed_object
from findleaks.audit.origins import Origin, check_declared_type, find_origin_of_root
from findleaks.audit.owner import Owner, OwnerSort
from findleaks.audit.reference_names import name_any_reference, name_reference
from findleaks.audit.retained_rows import (
    Contents,
    RetainedBlocks,
    RetainedNode,
    SimilarFields,
    describe_blocks,
    describe_contents,
    describe_managed_variable,
    join_steps,
)
from findleaks.audit.similar_blocks import UNTYPED, name_similar_blocks
from findleaks.audit.thread_local_names import find_thread_local
from findleaks.audit.typed_places import block_field, name_template
from findleaks.debuginfo.members import Type
from findleaks.engine.dominators import SHARED, Child, Dominators
from findleaks.engine.interior_structures import ROW, Structure
from findleaks.engine.terms import NO_BLOCK, Totals
from findleaks.formatting import size
from findleaks.session import Session
from findleaks.target.base import Range

STEPS = 32  # maximum number of blocks with a single field that are skipped in a row
SIZES = 4096  # sizes of blocks that are counted separately at most
# Memory that is reached through several fields is shown if it is this fraction of a row
SHARED_PART = 0.1
MOST_SHARED = 5  # maximum number of rows for such memory
FEW = 4  # number of fields that are shown, whatever their size, if they retain memory only together
NAMED_SPANS = 8  # words of a field for which a name is looked up
ELEMENTS = "elements of "  # begins the name of a block with the elements of a managed object
# For blocks with these structures, the contents are a better name than the structure.
UNNAMED = (Structure.TAGGED_START, Structure.LINK, Structure.EXCEPTION, Structure.STRING)


class TreeBuilder:
    """Builds rows of the retained tree."""

    def __init__(self, session: Session, reader: ContainerReader, tree: Dominators, depth: int, limit: int, least: float = 0.0) -> None:
        """`tree` must be computed. `depth`: levels below the requested row. `limit`: maximum number
        of rows of a level (0: all). `least`: a field that retains a smaller fraction of its root
        gets no row."""
        self.session, self.reader, self.tree = session, reader, tree
        self.depth, self.limit, self.least = depth, limit, least
        self._bytes = 0
        rows = session.structures.rows
        self._structures = {index for structure, index in zip(rows[0::ROW], rows[1::ROW]) if structure not in UNNAMED}

    def of_root(self, owner: Owner, node: int, expand: bool = True) -> RetainedNode:
        """Return the row of a root, with its fields if `expand`."""
        made = RetainedNode(owner.label, self.tree.sum_retained(node), "root", owner, address=owner.ranges[0].start if owner.ranges else 0)
        self._least(made)
        if owner.sort == OwnerSort.MANAGED and owner.length is not None:
            made.contents = Contents(Container(owner.what, 0, 0, owner.length, owner.unit), 0, 0, 0, [])
            made.sizes = self.tree.sizes(node, SIZES)
        if owner.what:
            made.what = describe_managed_variable(owner)
        if expand and made.totals.blocks and not owner.apart and owner.is_expanded:
            found = read_fields(self.session, self.reader, self.tree, node, owner.ranges, owner.words)
            self._fill(made, found, find_origin_of_root(self.session, owner, found.all), self.depth)
            made.what = made.what or name_template(self.session, owner)
        return made

    def of_block(self, index: int, expand: bool = True) -> RetainedNode:
        """Return the row of a block, with its fields if `expand`."""
        block, name = self.reader.block(index), self.name(index)
        made = RetainedNode(f"{self._label(index)} at {block.start:#x}", self.tree.sum_retained(index), "block", address=block.start)
        self._least(made)
        if not expand or made.totals.blocks < 2:
            made.what = self._hint(index, name)
            return made
        container = None if is_managed(self.session, index) else recognise_first_node(self.reader, block)
        if container is not None:
            made.sizes = self.tree.sizes(index, SIZES)
            made.contents = self._contents(index, made.totals, container, self.tree, made.sizes)
            made.what = describe_contents(made.contents) if made.contents is not None else ""
            self._add_heavy_node(made, index, self.depth, self.tree)
        if made.contents is None:
            self._fill(made, self._fields(index), self._origin(index), self.depth)
            made.what = made.what or self._hint(index, name)
        return made

    def of_shared_list(self, index: int) -> tuple[Optional[RetainedNode], array[int]]:
        """Return a row for the list or tree that begins with a shared block, and the blocks of its
        nodes.
        The row is None unless all nodes are in blocks that no root retains alone."""
        block = self.reader.block(index)
        container = None if is_managed(self.session, index) else recognise_first_node(self.reader, block)
        if container is None:
            return None, array("I")
        indices, sizes = self.reader.blocks.find_all(container.nodes)
        sample = indices[:: max(len(indices) // SAMPLE, 1)]
        if not indices or NO_BLOCK in indices or any(self.tree.idom(block) != SHARED for block in sample):
            return None, array("I")
        made = RetainedNode(f"{self.name(index)} at {block.start:#x}", Totals(len(indices), sum(sizes)), "block", address=block.start)
        made.contents = Contents(container, len(indices), min(sizes), max(sizes), [])
        made.what = describe_contents(made.contents)
        return made, indices

    def _least(self, row: RetainedNode) -> None:
        self._bytes = int(max(row.totals.bytes, self.tree.total().bytes / 4) * self.least)

    def name(self, index: int, type_: Optional[Type] = None) -> str:
        """Return the name of a block in rows: its type or its size. `type_`: the type that a
        pointer to the block is declared to point to."""
        block = self.reader.block(index)
        type_name = find_block_type(self.session, index)
        if not type_name and type_ is not None and type_.is_structure and type_.size <= block.size:
            type_name = type_.name
        return type_name or f"{UNTYPED}{size(block.size)}"

    def declared_origin(self, index: int) -> Origin:
        """Return a block as the origin of fields. If its content does not show its type, the type
        is the one that pointers to the block are declared to point to."""
        name = self.name(index)
        return self._origin(index, declared_types(self.session).find(index) if name.startswith(UNTYPED) else None)

    def _label(self, index: int, type_: Optional[Type] = None) -> str:
        """Return the name of a block in rows; for managed objects and structures, with a size."""
        return self._object_name(index) or self.name(index, type_)

    def _object_name(self, index: int) -> str:
        """Return what a managed object or a structure is: "list of 20", "hash table of Rust, 3
        entries in 4 places"; "" for other blocks."""
        name = name_managed_object(self.session, index)
        return name or (name_structure_of_block(self.session, index) if index in self._structures else "")

    def _origin(self, index: int, type_: Optional[Type] = None, before: Optional[Origin] = None) -> Origin:
        """Return the origin of a block's fields. `before`: the origin of the field that refers to
        the block."""
        holder = (
            before.start if before is not None and before.start and is_managed(self.session, self.reader.blocks.find(before.start)) else 0
        )
        member = partial(block_field, self.session, index)
        return Origin(self.name(index, type_), self.reader.blocks.address(index), type_, holder, member)

    def _place(self, origin: Origin, offset: int) -> tuple[str, Optional[Type]]:
        """Return the name of the field at this offset, and its type. For a managed object, the
        runtime names the field."""
        member = name_managed_member(self.session, origin.start + offset, origin.holder)
        if not member:
            named = find_thread_local(self.session, origin.start + offset) if origin.name.startswith(UNTYPED) else None
            return (f"{named.label} ({named.module})", None) if named is not None else origin.place(offset)
        is_key = member.startswith(".") and origin.name.startswith(ELEMENTS)
        alone = is_key or (not member.startswith(".") and is_telling(member)) or origin.name.startswith(UNTYPED)
        if not alone and member.startswith("[") and " " in origin.name:
            return f"{member} in {origin.name}", None  # "[0] in elements of an array"
        return member if alone else f"{origin.name}{'' if member.startswith(('.', '[')) else '.'}{member}", None

    def _fields(self, index: int) -> Fields:
        block = self.reader.block(index)
        return read_fields(self.session, self.reader, self.tree, index, [Range(block.start, block.start + block.size)])

    def _pointee(self, one: Field, type_: Optional[Type], index: int) -> Optional[Type]:
        """Return the type of block `index`, if the first word of the field points to its start."""
        first = one.places[0] if one.places else None
        return type_.pointee() if type_ is not None and first is not None and (first.block, first.offset) == (index, 0) else None

    def _fill(self, row: RetainedNode, found: Fields, origin: Origin, depth: int, expands_shared: bool = True) -> None:
        """Set the fields of a row. If the owner's only field refers to a single block, the fields
        of that block are shown instead."""
        steps: list[tuple[str, str]] = []
        for _ in range(STEPS):
            only = found.all[0] if len(found.all) == 1 and not found.shared.blocks else None
            container = self._check_declared(only, origin) if only is not None else None
            if only is not None and container is not None and origin.start and only.spans[0].start == origin.start:
                # The owner consists only of this container.
                made = self._field_row(only, found.tree, origin, -1)
                row.what, row.contents, row.sizes = made.what, made.contents, made.sizes
                if made.contents is not None:
                    self._add_heavy_node(row, only.node, depth, found.tree)
                    return
            if only is None or container is not None:
                break
            children = found.tree.children(only.node, 2)
            if len(children) != 1:
                break
            if children[0].blocks < 2 and row.owner is not None and not row.what:
                phrase = self._block_phrase(children[0].block, self._label(children[0].block), 1, ())
                row.what = " → ".join(join_steps(steps)) or phrase
                return
            if children[0].blocks < 2:
                break
            index = children[0].block
            type_ = origin.place(only.spans[0].start - origin.start)[1] if only.spans and origin.start else None
            steps.append(self._step(origin, only, index))
            origin = self._origin(index, self._pointee(only, type_, index), origin)
            row.address = row.address or origin.start
            found = self._fields(index)
        row.what = " → ".join(filter(None, (row.what, *join_steps(steps))))
        row.shared = found.shared
        if depth > 0 and expands_shared and found.shared.bytes >= SHARED_PART * row.totals.bytes:
            least = max(int(SHARED_PART * row.totals.bytes), self._bytes, 1)
            row.shared_rows = self._shared_rows(found.tree, least, depth, origin)
        if depth <= 0:
            row.left, row.more = len(found.all), row.totals
            return
        groups = [[one] for one in found.all]
        if self.limit:
            groups = group_fields(found.all, lambda one: self.name(one.places[0].block))
        least = 0 if row.shared_rows and len(groups) <= FEW else self._bytes
        shown = [group for group in groups if sum_retained(group).bytes >= least][: self.limit or None]
        if not shown and groups and sum(one.alike for one in groups[0]) > 1:
            shown = groups[:1]  # A small root of similar fields has no other description.
        row.fields = [self._group_row(group, found.tree, origin, depth) for group in shown]
        rest = [one for group in groups[len(shown) :] for one in group]
        row.left = sum(one.alike for one in rest)
        row.more = sum_retained(rest)

    def _first_named(self, one: Field, origin: Origin) -> int:
        """Return the address of the first word of a field that a runtime has a name for; if there
        is none, of the field's first word. Other words of a managed object may be links of a list
        of all objects."""
        places = (span.start for span in one.spans[:NAMED_SPANS])
        named = (place for place in places if name_managed_member(self.session, place, origin.holder))
        return next(named, one.spans[0].start)

    def _step(self, origin: Origin, only: Field, index: int) -> tuple[str, str]:
        """Return the name of an object's only field, and a phrase for the object in block `index`
        that the field refers to. The name is "" unless the program's author knows it."""
        at = self._first_named(only, origin) if only.spans and origin.start else 0
        member = name_managed_member(self.session, at, origin.holder) if at else ""
        label = self._object_name(index)
        return member if is_telling(member) else "", label

    def _shared_rows(self, tree: Dominators, least: int, depth: int, origin: Origin) -> list[RetainedNode]:
        """Return rows for the blocks of at least `least` bytes that several fields of `origin`
        reach.

        Example: a server has its clients in a list and in an index. No field alone retains the
        clients, but each client retains its buffers. A large block gets a row with its own fields.
        Many small blocks of one size get one row together."""
        large = [child for child in tree.children(SHARED, MOST_SHARED) if child.bytes >= least]
        rows = [self._shared_row(child, depth, origin) for child in large]
        named = Counter(self.reader.block(child.block).size for child in large)
        for group in tree.spread(SHARED, MOST_SHARED + len(named)):
            own = [child for child in large if self.reader.block(child.block).size == group.size]
            totals = Totals(group.blocks - sum(child.blocks for child in own), group.bytes - sum(child.bytes for child in own))
            if totals.bytes < least or len(rows) >= MOST_SHARED:
                continue
            count = group.children - len(own)
            name = name_similar_blocks(self.session, tree, group, count, self.declared_origin(group.example).name)
            made = RetainedNode(name, totals, "block", address=self.reader.block(group.example).start)
            made.what = f"{totals.blocks - count:,} more blocks below them" if totals.blocks > count else ""
            rows.append(made)
        # Show at least the largest ones.
        if not rows and least > 1 and tree.sum_retained(SHARED).bytes:
            most = next(iter(tree.spread(SHARED, 1)), None)
            return self._shared_rows(tree, max(min(most.bytes, least - 1), 1), depth, origin) if most is not None else rows
        return sorted(rows, key=lambda row: (-row.totals.bytes, row.address))

    def _shared_row(self, child: Child, depth: int, holder: Origin) -> RetainedNode:
        origin = self.declared_origin(child.block)
        member = name_reference(self.session, self.reader.blocks.find(holder.start), child.block) or name_any_reference(
            self.session, child.block
        )
        label = f"{member}{': ' if member else ''}{self._label(child.block, origin.type)} at {origin.start:#x}"
        made = RetainedNode(label, Totals(child.blocks, child.bytes), "block", address=origin.start)
        if child.blocks > 1:
            # At depth 1, the block's own fields still get rows, because they show where the bytes
            # are.
            self._fill(made, self._fields(child.block), origin, max(depth - 1, 1), expands_shared=depth > 1)
        else:
            made.what = self._hint(child.block, origin.name)
        return made

    def _check_declared(self, one: Field, origin: Origin) -> Optional[Container]:
        """Return the container whose head is the field, unless debug information contradicts it."""
        if one.container is not None and one.spans and origin.start:
            if is_managed(self.session, self.reader.blocks.find(origin.start)) or origin.holder:
                return None  # fields of managed objects are not containers of C and C++
            one.found = check_declared_type(
                one.container, origin.place(one.spans[0].start - origin.start)[1], one.places[0] if one.places else None
            )
        return one.found

    def _group_row(self, group: Sequence[Field], tree: Dominators, origin: Origin, depth: int) -> RetainedNode:
        """Return the row of a field. For a group of similar fields, the row describes the largest
        one."""
        first = group[0]
        several = len(group) > 1
        made = self._field_row(first, tree, origin, -1 if several else depth)
        if several:
            counts = [one.totals.blocks for one in group]
            sizes: Counter[int] = Counter()
            for one in group:
                sizes.update(dict(tree.sizes(one.node, SIZES)))
            made.alike = SimilarFields(len(group), min(counts), max(counts))
            made.totals, made.contents = sum_retained(group), None
            made.sizes = sorted(sizes.items(), key=lambda item: (-item[0] * item[1], item[0]))[:SIZES]
            each = f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,}–{max(counts):,}"
            made.what = f"each retains {each} block{'' if max(counts) == 1 else 's'}, such as {made.what}"
        elif first.alike > 1:
            direct = [(s.size, s.children) for s in tree.spread(first.node, SIZES) if size_key(s.size) in first.size_keys]
            below = Counter(dict(made.sizes))
            below.subtract(dict(direct))
            made.alike = SimilarFields(min(first.alike, sum(number for _, number in direct)))
            made.what = describe_blocks(direct) + (f" ({first.type})" if first.type else "")
            made.what += f", and {describe_blocks([(s, n) for s, n in below.items() if n > 0])} below them" if +below else ""
            made.fields, made.left = [], 0
        if made.alike is not None:
            made.name = f"{made.alike.fields:,} fields like {made.place}"
        return made

    def _field_row(self, one: Field, tree: Dominators, origin: Origin, depth: int) -> RetainedNode:
        origin, is_whole = origin.of_field(one.spans)
        offset = self._first_named(one, origin) - origin.start if one.spans and origin.start else None
        unplaced = ", ".join(filter(None, (origin.name, one.name or hex(one.spans[0].start)))) if offset is None else ""
        place, type_ = self._place(origin, offset) if offset is not None else (unplaced, None)
        place = origin.name if is_whole else place
        made = RetainedNode(place, one.totals, "field", place=place, address=one.spans[0].start if one.spans else 0, offset=offset)
        made.sizes = tree.sizes(one.node, SIZES)
        container = self._check_declared(one, origin)
        if container is not None:
            made.contents = self._contents(one.node, one.totals, container, tree, made.sizes)
            if made.contents is not None:
                made.what = describe_contents(made.contents)
                self._add_heavy_node(made, one.node, depth, tree)
                return made
        if container is None and one.found is not None and any(end - start > self.reader.size for start, end in one.spans[:1]):
            # For example, the elements of a managed list
            made.name = f"{one.found.length:,} {one.found.unit} from {place}"
        children = tree.children(one.node, 2)
        if len(children) == 1:
            index = children[0].block
            below = self._origin(index, self._pointee(one, type_, index), origin)
            made.what = self._block_phrase(index, self._label(index), children[0].blocks, made.sizes)
            # At a negative depth only `what` is needed, and a damaged list might never end.
            if children[0].blocks > 1 and depth >= 0:
                self._fill(made, self._fields(index), below, depth - 1)
        else:
            made.what = describe_blocks(made.sizes)
        return made

    def _block_phrase(self, index: int, name: str, count: int, sizes: Sequence[tuple[int, int]]) -> str:
        if count == 1:
            hint = self._hint(index, name)
            return f"{name}, {hint}" if hint else name
        rest = Counter(dict(sizes))
        rest[self.reader.block(index).size] -= 1
        return f"{name}, and {describe_blocks([(s, n) for s, n in rest.items() if n])} below it"

    def _hint(self, index: int, name: str) -> str:
        """Return the text or the contents of a block without a type; "" if neither is known."""
        block = self.reader.block(index)
        return describe_untyped(self.session, block.start, block.size) if name.startswith(UNTYPED) else ""

    def _contents(
        self, node: int, totals: Totals, container: Container, tree: Dominators, sizes: Sequence[tuple[int, int]]
    ) -> Optional[Contents]:
        """Return what a container retains. Returns None if the links of its nodes turn out to
        belong to a larger structure."""
        blocks = self.reader.blocks
        left = Counter(dict(sizes))
        for table in container.tables:
            left[blocks.size(blocks.find(table))] -= 1
        counted = count_node_sizes(self.reader, container)
        same = sum(left[length] for length in counted)
        if (
            ("linked list" in container.what or container.what == "binary tree")
            and same > 2 * container.length + 16
            and not has_no_other_links(self.session, self.reader, container)
        ):
            return None
        nodes = min(len(container.nodes), same)
        for length, number in counted.items():
            left[length] -= number
        kept = sorted(((s, n) for s, n in left.items() if n > 0), key=lambda item: -item[0] * item[1])
        names = name_kept_blocks(self.session, self.reader, tree, node, totals.blocks, {s for s, _ in kept}, container) if kept else {}
        found = [RetainedBlocks(s, n, names.get(s, "")) for s, n in kept]
        return Contents(container, nodes, min(counted, default=0), max(counted, default=0), found)

    def _add_heavy_node(self, row: RetainedNode, node: int, depth: int, tree: Dominators) -> None:
        """If one node of a row's container retains most of the container's memory, add the field of
        this node that retains it. `node`: the number of the row in `tree`."""
        contents = row.contents
        if contents is None or not contents.kept or depth <= 0:
            return
        heavy = find_heavy_node(self.reader, contents.container, tree, node, row.totals.bytes)
        if heavy >= 0:
            found = self._fields(heavy)
            nodes = set(contents.container.nodes)
            own = [one for one in found.all if one.places and one.places[0].start + one.places[0].offset not in nodes]
            if own and own[0].totals.bytes >= MOST * row.totals.bytes:
                row.fields = [self._field_row(own[0], found.tree, self._origin(heavy), depth - 1)]
