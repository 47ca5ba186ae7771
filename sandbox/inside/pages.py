"""Memory of the warm interpreter in huge pages, so that a fork has few page tables to copy.

A fork copies the page table of every private page, one entry for 4 KiB or one for 2 MiB, and its end walks
them again: half of what a fork of a warm interpreter costs. What a program writes to is still copied in 4 KiB.
"""

from __future__ import annotations

import ctypes

HUGE = 2 << 20
_MADV_COLLAPSE = 25


def collapse() -> int:
    """Gather this process's private memory into huge pages (madvise(2), Linux 6.1); how many bytes were.

    What the kernel cannot do, for want of memory or of the call, stays as it is: nothing depends on it.
    """
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    with open("/proc/self/maps") as maps:
        regions = [(span, rights, inode) for span, rights, _, _, inode, *_ in map(str.split, maps)]
    done = 0
    for span, rights, inode in regions:
        if rights != "rw-p" or inode != "0":
            continue
        start, end = (int(part, 16) for part in span.split("-"))
        for address in range(-(-start // HUGE) * HUGE, end - HUGE + 1, HUGE):
            done += HUGE * (madvise(address, HUGE, _MADV_COLLAPSE) == 0)
    return done
