"""A program on a leash ends with the pipe that it holds, though it does not look at it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.kernel

LEASHED = """
import os, sys
from stockade.sandbox import childsteps
read, write = os.pipe()
if "closed before" in sys.argv:
    os.close(write)
pid = os.fork()
if pid == 0:
    if "closed before" not in sys.argv:
        os.close(write)
    try:
        if "no leash" in sys.argv:
            childsteps.take_leash({}, [])
        else:
            os.dup2(read, 0)
            childsteps.take_leash({"leash": 0}, [])
        os.execv("/bin/sleep", ["sleep", "0.5" if "no leash" in sys.argv else "60"])
    except OSError as error:
        print(error.filename, flush=True)
    finally:
        os._exit(9)
os.close(read)
if "closed before" not in sys.argv:
    while os.readlink(f"/proc/{pid}/exe") == os.readlink("/proc/self/exe"):
        pass
    os.close(write)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.parametrize(
    ("case", "said"), [("leash", ["-9"]), ("no leash", ["0"]), ("closed before", ["leash", "9"])]
)
def test_program_ends_with_its_leash(case, said):
    line = [sys.executable, "-c", LEASHED, case]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, env={**os.environ})
    assert done.stdout.split() == said, done.stderr
