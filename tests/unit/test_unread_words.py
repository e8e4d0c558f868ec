"""Which words of threads are read again: thousands of threads have the same names of words, for which the result is computed once."""

from __future__ import annotations

from findleaks.graph.unread import Unread
from findleaks.target.base import Thread

NAMES = ("rax", "rbx", "", "xmm0")


def make_thread(tid: int) -> Thread:
    return Thread(tid, {"rax": tid, "rbx": tid + 1}, 0, 0, 0, (tid, tid + 1, tid + 2, tid + 3), NAMES)


class CountingNames(frozenset[str]):
    """Names of dead words; counts how many names were looked up."""

    asked = 0

    def __contains__(self, name: object) -> bool:
        CountingNames.asked += 1
        return super().__contains__(name)


def test_names_are_looked_up_once_for_all_threads() -> None:
    unread, dead = Unread(), CountingNames({"rax", "xmm0"})
    threads = [make_thread(tid) for tid in range(0, 10_000, 10)]
    unread.registers = {thread.tid: dead for thread in threads}
    for thread in threads:
        assert list(unread.live(thread)) == [thread.tid + 1, thread.tid + 2]
        assert CountingNames.asked == len(NAMES)
    assert [value for _, value, read in unread.words(threads[3]) if read] == [31, 32]


def test_words_without_names_are_live() -> None:
    unread = Unread()
    unread.registers = {7: frozenset({"rax"})}
    assert list(unread.live(Thread(7, {}, 0, 0, 0, (1, 2, 3), ("rax",)))) == [2, 3]
    assert list(unread.live(make_thread(8))) == [8, 9, 10, 11]
