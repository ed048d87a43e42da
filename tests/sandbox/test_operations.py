"""What is done for which change, and what is never done: decided without a file."""

from __future__ import annotations

import pytest

from stockade.sandbox.captured import Change, Entry
from stockade.sandbox.operations import Rules, leads_outside, make_work

DIRECTORY, FILE = 0o040755, 0o100644
RULES = Rules(b"/ws", (b".git/hooks", b".envrc"))


def change(path, before=None, kind=None, mode=0o644, target=b""):
    row = None if before is None else ({"dir": DIRECTORY, "file": FILE}[before], 0, 0, 1, 0)
    after = None if kind is None else Entry(kind, mode, target=target)
    what = "deleted" if after is None else "created" if row is None else "changed"
    return Change(path, what, row, after)


def work(*changes, rules=RULES, links=None):
    found = make_work(changes, rules, (links or {}).get)
    done = [
        (each.verb, each.change.path.decode(), [inner.path.decode() for inner in each.inner])
        for each in found.operations
    ]
    return done, [(each.path, each.reason) for each in found.left_out]


@pytest.mark.parametrize(
    ("changes", "operations"),
    [
        ([change(b"n", None, "file")], [("put", "n", [])]),
        ([change(b"a", "file", "file")], [("put", "a", [])]),
        ([change(b"a", "file")], [("remove", "a", [])]),
        ([change(b"d", "dir"), change(b"d/x", "file")], [("remove", "d", ["d/x"])]),
        ([change(b"d", "dir", "dir", 0o700)], [("mode", "d", [])]),
        ([change(b"d", "dir", "dir", 0o755)], []),
        ([change(b"d", "dir", "dir", 0o755), change(b"d/x", "file")], [("remove", "d/x", [])]),
        (
            [change(b"d", "dir", "dir", 0o700), change(b"d/x", "file", "file")],
            [("mode", "d", []), ("put", "d/x", [])],
        ),
        ([change(b"n", None, "dir"), change(b"n/m", None, "file")], [("put", "n", ["n/m"])]),
        ([change(b"d", "dir", "file"), change(b"d/x", "file")], [("put", "d", ["d/x"])]),
        ([change(b"a", "file", "dir"), change(b"a/n", None, "file")], [("put", "a", ["a/n"])]),
        ([change(b"n", None, "dir"), change(b"n-x", None, "file")], [("put", "n", []), ("put", "n-x", [])]),
        ([change(b"", "dir", "dir", 0o700)], [("mode", "", [])]),
    ],
)
def test_one_operation_for_what_goes_together(changes, operations):
    assert work(*changes) == (operations, [])


@pytest.mark.parametrize(
    ("changes", "left", "operations"),
    [
        ([change(b"p", None, "fifo")], [("/ws/p", "it is a pipe")], []),
        ([change(b"p", None, "socket")], [("/ws/p", "it is a socket")], []),
        ([change(b"p", "file", "device")], [("/ws/p", "it is a device")], []),
        (
            [change(b"n", None, "dir"), change(b"n/a", None, "file"), change(b"n/p", None, "fifo")],
            [("/ws/n/p", "it is a pipe")],
            [("put", "n", ["n/a"])],
        ),
        ([change(b".envrc", None, "file")], [("/ws/.envrc", "it is protected by the policy")], []),
        ([change(b".git/hooks/x", None, "file")], [("/ws/.git/hooks/x", "it is protected by the policy")], []),
        (
            [change(b".git", "dir"), change(b".git/hooks", "dir"), change(b".git/hooks/x", "file"), change(b"b", "file")],
            [("/ws/.git", "it is protected by the policy")],
            [("remove", "b", [])],
        ),
        (
            [change(b".git", None, "dir"), change(b".git/hooks", None, "dir"), change(b".git/hooks/x", None, "file")],
            [("/ws/.git", "it is protected by the policy")],
            [],
        ),
        ([change(b".git", "dir", "file")], [("/ws/.git", "it is protected by the policy")], []),
        ([change(b".git", "dir", "dir", 0o700)], [], [("mode", ".git", [])]),
        ([change(b".gitx", None, "file")], [], [("put", ".gitx", [])]),
        ([change(b"s", None, "file", 0o4755)], [("/ws/s", "only its set-user-id and set-group-id bits")], [("put", "s", [])]),
        # a directory that turned into a pipe stays as it is, with all that is in it
        ([change(b"d", "dir", "fifo"), change(b"d/x", "file")], [("/ws/d", "it is a pipe")], []),
    ],
)  # fmt: skip
def test_what_is_left_out_and_why(changes, left, operations):
    assert work(*changes) == (operations, left)


LINKS = {b"out": b"/etc", b"in": b"d", b"loop": b"loop", b"d/up": b"..", b"abs": b"/ws/d", b"chain": b"in/up"}


@pytest.mark.parametrize(
    ("path", "target", "outside"),
    [
        (b"l", b"a", False),
        (b"l", b"./a//b/", False),
        (b"l", b"..", True),
        (b"d/l", b"..", False),
        (b"d/l", b"../..", True),
        (b"d/l", b"../a", False),
        (b"l", b"/etc/passwd", True),
        (b"l", b"/ws", False),
        (b"l", b"/ws/a", False),
        (b"l", b"/wsx", True),
        (b"l", b"/ws/../etc", True),
        (b"l", b"out/passwd", True),
        (b"l", b"in/x", False),
        (b"l", b"in/../..", True),
        (b"l", b"in/up/a", False),
        (b"l", b"in/up/../a", True),
        (b"l", b"abs/x", False),
        (b"l", b"abs/../../x", True),
        (b"l", b"chain/a", False),
        (b"l", b"chain/../a", True),
        (b"l", b"loop", True),
        (b"l", b"not/there/yet", False),
        (b"l", b"d//../a", False),
    ],
)
def test_where_a_link_leads(path, target, outside):
    assert leads_outside(path, target, RULES, LINKS.get) is outside
    done, left = work(change(path, None, "link", 0o777, target), links=LINKS)
    assert bool(left) is outside
    assert bool(done) is not outside
    if outside:
        assert left == [("/ws/" + path.decode(), "it is a link that leads out of the workspace")]
    allowed = RULES.replace(outside_links=True)
    assert work(change(path, None, "link", 0o777, target), rules=allowed, links=LINKS)[1] == []
