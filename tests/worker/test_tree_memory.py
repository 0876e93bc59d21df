"""Workers report the memory of their process tree with each renewal."""

from __future__ import annotations

import os
import subprocess
import sys

from mulligan.worker.liveness import resident_memory, tree_memory

CHILD = "import sys; text = bytearray(30_000_000); print('up', flush=True); sys.stdin.read()"


def test_the_memory_of_children_is_included():
    alone = tree_memory(os.getpid())
    assert alone >= resident_memory(os.getpid()) * 0.9
    command = [sys.executable, "-c", CHILD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        assert tree_memory(os.getpid()) > alone + 30_000_000
        child.communicate()


def test_an_unknown_process_has_no_memory():
    assert tree_memory(2**22 + 1) == 0
