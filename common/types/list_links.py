"""Find the types to whose links a pointer to a pointer may refer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from findleaks.debuginfo.type_table import Kind
from findleaks.types.embedding import Embedding
from findleaks.types.layouts import Layouts
from findleaks.types.sizes import SizeClasses
from findleaks.types.specs import Spec


class ListLinks:
    """The structs that have links of lists."""

    def __init__(self, embedding: Embedding, layouts: Layouts, sizes: SizeClasses, may_extend_to: Callable[[int, int], bool]) -> None:
        """`may_extend_to`: whether blocks of a size may have a struct that ends with an array."""
        self._embedding, self._layouts, self._sizes, self._may_extend_to = embedding, layouts, sizes, may_extend_to
        self._heads_of: dict[int, list[Spec]] = {}  # by link

    def find(self, link: int, offset: int, size: int) -> Sequence[Spec]:
        """Return the structs, and arrays of list heads, that blocks of `size` bytes may have and
        that have a link at an offset. `link` is the type of the link, a pointer.

        Some lists have the address of the last link: `pprev` of Linux's hlist_node, `tqe_prev` and
        the tail of a STAILQ in BSD's sys/queue.h. It refers to a link in a node, or to the head of
        the list. The result is () for pointers to types that are not linked: pointers to such
        pointers usually refer to arrays. Types of libraries with one word, such as Rust's
        Option<Box<T>>, only store a link; an array of them has the content of an array of links."""
        table = self._embedding.table
        node = table.bare(table.targets[link])
        if node not in self._layouts.pointees(node):
            return ()
        whole = self._embedding.of_sizes(self._sizes.least(size), size)
        flexible = [one for one in self._flexible if self._may_extend_to(one, size)]
        found = [Spec(one) for one in (*whole, *flexible) if self._embedding.has(one, offset, link) and not self._only_stores(one)]
        if link not in self._heads_of:
            self._heads_of[link] = [Spec(one, True) for one in self._heads if self._embedding.has(one, 0, link)]
        return [*found, *self._heads_of[link]]

    @cached_property
    def _flexible(self) -> Sequence[int]:
        """The structs that end with an array."""
        table = self._embedding.table
        return [
            number
            for number in range(len(table))
            if table.kinds[number] == Kind.STRUCT and table.names[number] and self._layouts.flexible(number) is not None
        ]

    @cached_property
    def _heads(self) -> Sequence[int]:
        """The structs of one word."""
        word = self._embedding.table.word
        return [one for one in self._embedding.of_sizes(word, word) if not self._only_stores(one)]

    def _only_stores(self, number: int) -> bool:
        """Whether a type of a library has only one word."""
        return self._embedding.table.sizes[number] == self._embedding.table.word and self._embedding.is_library(number)
