"""The tree of prefixes that rows share, built from sorted records and stored in arrays."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain

ROOT = 0


class Tree:
    """A tree whose nodes are prefixes of two or more rows. A row belongs to the longest prefix that it shares.

    A record begins with hashes of a row's text at the given lengths, up to the text's length, 4 bytes each. It ends
    with the row's number, 4 bytes. All numbers are big endian.
    """

    def __init__(self, rows: int, lengths: Sequence[int]) -> None:
        self.shared_bytes = 0
        """Bytes that rows share with an earlier row, summed over all rows; a lower bound."""
        self.distinct_bytes = 0
        """Bytes of all distinct shared prefixes; an upper bound."""
        self._lengths = (0, *lengths)
        self._bounds = (0, *lengths[1:], lengths[-1])
        self._node_of = array("I", bytes(4 * rows))
        self._levels = bytearray(1)
        self._hashes = array("I", [0])
        self._parents = array("I", [ROOT])

    def grow(self, blocks: Iterable[list[bytes]]) -> None:
        """Add all records, in sorted order."""
        node_of = self._node_of
        # The nodes on the path from the root to the previous row. Each has its length in bytes of a record, and the
        # number of its first record.
        depths, nodes, starts = [0], [ROOT], [0]
        previous, before = b"", 0
        shared, common = 0, b""
        number = -1
        for number, record in enumerate(chain.from_iterable(blocks)):
            if record.startswith(common) and record[shared : shared + 4] != previous[shared : shared + 4]:
                node_of[before] = nodes[-1]
            else:
                depth = _in_common(record, previous, shared)
                start, last = number - 1, ROOT
                if depth < shared:
                    node_of[before] = nodes[-1]
                    while depths[-1] > depth:
                        last, start = nodes.pop(), starts.pop()
                        self._close(depths.pop(), max(depth, depths[-1]), number - start)
                if depth > depths[-1]:
                    depths.append(depth)
                    nodes.append(self._node(record, depth, nodes[-1], last))
                    starts.append(start)
                if depth > shared:
                    node_of[before] = nodes[-1]
                shared, common = depth, record[:depth]
            previous = record
            before = int.from_bytes(record[-4:])
        if number >= 0:
            node_of[before] = nodes[-1]
        while len(nodes) > 1:
            nodes.pop()
            self._close(depths.pop(), depths[-1], number + 1 - starts.pop())

    def _node(self, record: bytes, depth: int, parent: int, child: int) -> int:
        node = len(self._levels)
        self._levels.append(depth // 4)
        self._hashes.append(int.from_bytes(record[depth - 4 : depth]))
        self._parents.append(parent)
        if child != ROOT:
            self._parents[child] = node
        return node

    def _close(self, depth: int, above: int, rows: int) -> None:
        level, higher = depth // 4, above // 4
        self.shared_bytes += (self._lengths[level] - self._lengths[higher]) * (rows - 1)
        self.distinct_bytes += self._bounds[level] - self._bounds[higher]

    def arrange(self, wanted: Iterable[int], unshared: int) -> tuple[array[int], array[int]]:
        """Set the order of the nodes. Return the groups of rows: their bounds, and a hash of each group's prefix.

        Among siblings, the node whose subtree has the earliest row in `wanted` comes first. A row may occur in
        `wanted` more than once. Rows without a shared prefix form groups of `unshared` rows.
        """
        first_child, next_sibling = self._children(self._by_appearance(wanted))
        sizes = array("I", bytes(4 * len(self._levels)))
        for node in self._node_of:
            sizes[node] += 1
        # The loop below replaces each size with the start of the node's rows; `place` then advances the starts.
        self._starts = sizes
        heads = array("I", bytes(4 * len(self._levels)))
        bounds, hashes = array("I"), array("I")
        at, head, node = 0, -1, ROOT
        while True:
            size, sizes[node] = sizes[node], at
            heads[node] = self._head(node, heads)
            if node == ROOT:
                bounds.extend(range(0, size, unshared))
                hashes.extend(range(0, size, unshared))
            elif size and heads[node] != head:
                head = heads[node]
                bounds.append(at)
                hashes.append(self._hashes[head])
            at += size
            if first_child[node]:
                node = first_child[node]
                continue
            while node and not next_sibling[node]:
                node = self._parents[node]
            if not node:
                bounds.append(at)
                return bounds, hashes
            node = next_sibling[node]

    def place(self, rows: Iterable[int]) -> array[int]:
        """Return all rows in the order of their nodes. Rows of the same node keep the given order."""
        node_of, starts = self._node_of, self._starts
        placed = array("I", bytes(4 * len(node_of)))
        for row in rows:
            node = node_of[row]
            at = starts[node]
            placed[at] = row
            starts[node] = at + 1
        return placed

    def _by_appearance(self, wanted: Iterable[int]) -> array[int]:
        node_of, parents = self._node_of, self._parents
        seen = bytearray(len(self._levels))
        seen[ROOT] = 1
        appeared = array("I")
        for row in wanted:
            node = node_of[row]
            while not seen[node]:
                seen[node] = 1
                appeared.append(node)
                node = parents[node]
        return appeared

    def _children(self, appeared: array[int]) -> tuple[array[int], array[int]]:
        """Return each node's first child and next sibling, in order of appearance. ROOT means none."""
        first_child = array("I", bytes(4 * len(self._levels)))
        next_sibling = array("I", bytes(4 * len(self._levels)))
        for node in reversed(appeared):
            parent = self._parents[node]
            next_sibling[node] = first_child[parent]
            first_child[parent] = node
        return first_child, next_sibling

    def _head(self, node: int, heads: array[int]) -> int:
        """Return the node whose group this node joins: an ancestor with more than half of its prefix, or itself."""
        above = heads[self._parents[node]]
        return above if self._lengths[self._levels[above]] * 2 > self._lengths[self._levels[node]] else node


def _in_common(one: bytes, other: bytes, guess: int) -> int:
    """Return the number of leading bytes that two records share, in whole hashes. Their row numbers differ."""
    while one[:guess] != other[:guess]:
        guess -= 4
    while one[guess : guess + 4] == other[guess : guess + 4]:
        guess += 4
    return guess
