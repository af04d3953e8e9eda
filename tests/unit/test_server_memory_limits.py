"""Rooms for what is held in memory: never more than there is, everybody in turn, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import platform
import subprocess
import sys
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.server.memory_limits import LEAST_BLOCK, MOST_BLOCK, Blocks, Room, RoomFull, RoomRefusal, RoomShare


def run(live: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(live(), 20)

    asyncio.run(bounded())


async def waiting(room: Room, owner: str, size: int) -> asyncio.Task[RoomShare]:
    """Somebody who asks for a place, as far as that goes at once."""
    task = asyncio.create_task(room.take(owner, size))
    for _ in range(5):
        await asyncio.sleep(0)
    return task


def test_who_comes_first_is_served_first() -> None:
    async def live() -> None:
        room = Room(10)
        first = await room.take("a", 8)
        large = await waiting(room, "a", 6)
        small = await waiting(room, "a", 2)
        # The small one would fit, and would let large ones wait for ever.
        assert (large.done(), small.done(), room.taken) == (False, False, 8)
        first.give_back()
        await asyncio.gather(large, small)
        assert room.taken == 8

    run(live)


def test_a_large_one_of_another_owner_is_not_passed_either() -> None:
    async def live() -> None:
        room = Room(10, share=0.6)
        first, second = await room.take("a", 5), await room.take("b", 4)
        large, small = await waiting(room, "c", 6), await waiting(room, "d", 1)
        assert (large.done(), small.done()) == (False, False)
        first.give_back()
        await asyncio.gather(large)
        assert not small.done()
        second.give_back()
        await small

    run(live)


def test_who_has_had_his_share_lets_others_pass() -> None:
    async def live() -> None:
        room = Room(10, share=0.5)
        first = await room.take("a", 5)
        more = await waiting(room, "a", 3)
        await room.take("b", 5)
        assert not more.done()
        first.give_back()
        await more

    run(live)


def test_some_space_is_left_for_the_next_owner_however_many_have_taken_theirs() -> None:
    room = Room(1000, share=0.5)
    for owner in range(8):
        while room.hold(str(owner), 1) is None:
            pass
        assert room.hold("next", 1) is None
        room.free("next", 1)


def test_a_body_larger_than_the_room_has_it_alone_and_is_not_passed_for_ever() -> None:
    async def live() -> None:
        room = Room(10, share=0.5)
        held = await room.take("b", 1)
        huge = await waiting(room, "a", 100)
        behind = await waiting(room, "c", 1)
        assert (huge.done(), behind.done(), room.hold("d", 1)) == (False, False, RoomRefusal.ROOM)
        held.give_back()
        place = await huge
        assert (room.taken, behind.done()) == (10, False)
        place.give_back()
        (await behind).give_back()

    run(live)


def test_a_body_larger_than_a_share_is_the_only_one_of_its_owner() -> None:
    async def live() -> None:
        room = Room(10, share=0.5)
        place = await room.take("a", 8)
        assert (room.hold("a", 1), room.hold("b", 2), room.hold("c", 1)) == (
            RoomRefusal.SHARE,
            None,
            RoomRefusal.ROOM,
        )
        room.free("b", 2)
        place.give_back(keep=2)
        assert room.taken == 2
        place.give_back()
        place.give_back()
        assert room.taken == 0

    run(live)


def test_nobody_waits_for_ever() -> None:
    async def live() -> None:
        room = Room(10, wait=0.05)
        held = await room.take("a", 10)
        with pytest.raises(RoomFull):
            await room.take("b", 1)
        held.give_back()
        (await room.take("b", 10)).give_back()
        assert room.taken == 0

    run(live)


def test_who_leaves_while_waiting_holds_up_nobody() -> None:
    async def live() -> None:
        room = Room(10)
        held = await room.take("a", 8)
        left, behind = await waiting(room, "b", 9), await waiting(room, "c", 2)
        left.cancel()
        await behind
        # And who leaves at the very moment of being let in gives it back.
        late = await waiting(room, "d", 8)
        held.give_back()
        late.cancel()
        await asyncio.gather(left, late, return_exceptions=True)
        assert room.taken == 2

    run(live)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 12), st.booleans()), max_size=40))
def test_there_is_never_more_than_there_is_room_for(asked: list[tuple[str, int, bool]]) -> None:
    async def live() -> None:
        room, tasks = Room(10, share=0.6), []
        for owner, size, leaves in asked:
            task = await waiting(room, owner, size)
            tasks.append(task)
            assert 0 <= room.taken <= 10
            if leaves:
                task.cancel()
        while tasks:
            done = [task for task in tasks if task.done()]
            assert done, "nobody is let in, and somebody waits"
            for task in done:
                tasks.remove(task)
                if not task.cancelled():
                    task.result().give_back()
            for _ in range(5):
                await asyncio.sleep(0)
        assert room.taken == 0

    run(live)


HOLDS = st.tuples(st.sampled_from("abc"), st.integers(1, 12))


@given(st.lists(HOLDS, max_size=40), st.randoms(use_true_random=False))
def test_what_is_held_without_waiting_is_bounded_fair_and_told_when_it_comes_back(
    asked: list[tuple[str, int]], random: Random
) -> None:
    room, calls, held = Room(10, share=0.5), list[int](), list[tuple[str, int]]()
    room.on_free = lambda: calls.append(1)
    for owner, size in asked:
        refusal = room.hold(owner, size)
        own = sum(min(each, 10) for other, each in held if other == owner)
        if refusal is None:
            assert own == 0 or own + size <= 5
            held.append((owner, size))
        else:
            assert held, "nobody holds anything, and a body is refused"
            calls.clear()
            owner, size = held.pop(random.randrange(len(held)))
            room.free(owner, min(size, 10))
            assert calls, "who was refused is not told that there is room"
        assert room.taken == sum(min(size, 10) for _, size in held) <= 10


def test_blocks_become_smaller_the_more_files_go_through() -> None:
    blocks = Blocks()
    assert blocks.size == MOST_BLOCK
    with blocks.passing():
        assert blocks.size == MOST_BLOCK
    blocks._active = 200
    assert LEAST_BLOCK < blocks.size < MOST_BLOCK
    blocks._active = 100_000
    assert blocks.size == LEAST_BLOCK


KEEPS = """
import sys
from pathlib import Path
from orchestrator.server.memory_limits import return_large_bodies

def held():
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) * 1024

if sys.argv[1] == "set":
    return_large_bodies()
seen = bytearray(30_000_000)  # from now on glibc takes it for usual
del seen
first, second = bytearray(20_000_000), bytearray(20_000_000)
before = held()
del first  # `second` lies above it
print(before - held())
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps large bodies")
@pytest.mark.parametrize(("setting", "is_returned"), [("set", True), ("not", False)])
def test_the_memory_of_a_large_body_is_returned_at_once(setting: str, is_returned: bool) -> None:
    done = subprocess.run([sys.executable, "-c", KEEPS, setting], capture_output=True, text=True, check=True)
    assert (int(done.stdout) > 19_000_000) is is_returned
