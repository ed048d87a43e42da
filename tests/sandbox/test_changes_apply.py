"""Captured changes applied to a workspace: what becomes of it, what stands in the way, and who tries to divert it.

No box runs here: the layer is written by hand. ``test_overlay`` has the real ones.
"""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import socket
import stat
import threading

import pytest
from boxes import tree_of

from stockade.policies.errors import NotApplied, StockadeError
from stockade.sandbox import apply as applying
from stockade.sandbox import captured, private
from stockade.sandbox.captured import Entry
from stockade.sandbox.changes import Changes
from stockade.sandbox.overlay import note_workspace

GONE = Entry("whiteout")


class Rig:
    """A workspace, a victim beside it, and a layer over the workspace."""

    def __init__(self, top) -> None:
        self.top, self.ws, self.victim = top, top / "ws", top / "victim"
        for path in (self.ws / "d/e", self.victim, top / "places"):
            path.mkdir(parents=True)
        for name in ("a", "b", "d/x", "d/e/y"):
            self.put(self.ws / name, f"old {name}\n")
        (self.victim / "file").write_text("victim\n")
        self.victims = tree_of(self.victim)
        self.extra = {}
        self.changes = None
        self.begin()

    def begin(self) -> None:
        """What is in the workspace now is what the program saw."""
        if hasattr(self, "root"):
            os.close(self.root)
        self.root, self.before = note_workspace(str(self.ws))
        if not hasattr(self, "place"):
            self.place = private.make(str(self.top / "places"))
            self.layer = self.top / self.place.path / "box/upper"
            self.layer.mkdir(parents=True, mode=0o755)
            self.layer.chmod(stat.S_IMODE(self.before[b""][0]))

    def put(self, path, text="new\n", mode=0o644):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def write(self, name, text="new\n", mode=0o644):
        return self.put(self.layer / name, text, mode)

    def delete(self, *names) -> None:
        self.extra |= {os.fsencode(name): GONE for name in names}

    def end(self, *, protected=(), whole=True) -> Changes:
        found = captured.scan(str(self.layer))
        self.changes = Changes(
            workspace=str(self.ws),
            before=self.before,
            changes=captured.compare(
                self.before, found.entries | self.extra, root_mode=stat.S_IMODE(self.before[b""][0])
            ),
            protected=tuple(map(os.fsencode, protected)),
            whole=whole,
            place=self.place.path,
            box=os.path.join(self.place.path, "box"),
            root=self.root,
            fds=(self.place.fd,),
        )
        return self.changes

    def tree(self):
        return {name: what[-1] for name, what in tree_of(self.ws).items() if what[0] != "other"}

    def close(self) -> None:
        if self.changes is not None:
            self.changes.close()
        else:
            os.close(self.root)
            os.close(self.place.fd)
        assert tree_of(self.victim) == self.victims, "something was written outside of the workspace"
        assert not list(self.ws.rglob(".stockade-*")), "something of ours was left"
        for path in (self.ws, *self.ws.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o700)


@pytest.fixture
def rig(tmp_path):
    made = Rig(tmp_path)
    yield made
    made.close()


OLD = {"a": b"old a\n", "b": b"old b\n", "d/x": b"old d/x\n", "d/e/y": b"old d/e/y\n"}


def without(*names, **more):
    return {name: text for name, text in OLD.items() if name not in names} | more


# --- what becomes of the workspace -------------------------------------------------------------------------


def test_created_changed_and_deleted(rig):
    rig.write("a")
    rig.write("n/m/file", "deep\n")
    rig.write("d/z")
    rig.delete("b", "d/e")
    changes = rig.end()
    applied = changes.apply()
    assert rig.tree() == {
        "a": b"new\n", "d/x": b"old d/x\n", "d/z": b"new\n", "n/m/file": b"deep\n",
    }  # fmt: skip
    assert not (rig.ws / "d/e").exists()
    assert [(file.kind, os.path.relpath(file.path, rig.ws)) for file in applied.files] == [
        ("changed", "a"), ("deleted", "b"), ("deleted", "d/e"), ("deleted", "d/e/y"), ("created", "d/z"), ("created", "n"),
        ("created", "n/m"), ("created", "n/m/file"),
    ]  # fmt: skip
    assert applied.files == changes.files
    assert applied.left_out == ()


def test_nothing_is_nothing(rig):
    before = tree_of(rig.ws)
    assert rig.end().apply().files == ()
    assert rig.changes.diff() == ""
    assert tree_of(rig.ws) == before


def test_changes_of_type(rig):
    rig.write("d", "a file now\n")
    rig.write("a/inner", "a directory now\n")
    (rig.layer / "b").symlink_to("a/inner")
    rig.end().apply()
    assert rig.tree() == {"d": b"a file now\n", "a/inner": b"a directory now\n", "b": "a/inner"}


def test_a_directory_made_anew(rig):
    rig.write("d/n")
    entry = captured.scan(str(rig.layer)).entries[b"d"]
    rig.extra[b"d"] = entry.replace(opaque=True)
    inode = (rig.ws / "d").stat().st_ino
    rig.end().apply()
    assert rig.tree() == without("d/x", "d/e/y", **{"d/n": b"new\n"})
    assert (rig.ws / "d").stat().st_ino == inode


def test_modes(rig):
    rig.write("a", "old a\n", 0o755)
    rig.write("secret", mode=0o600)
    (rig.layer / "d").mkdir(mode=0o755)
    (rig.layer / "d").chmod(0o711)
    rig.write("shut/inner/file", mode=0o400)
    (rig.layer / "shut/inner").chmod(0o500)
    (rig.layer / "shut").chmod(0o555)
    rig.end().apply()
    modes = {
        name: stat.S_IMODE((rig.ws / name).stat().st_mode) for name in ("a", "secret", "d", "shut", "shut/inner")
    }
    assert modes == {"a": 0o755, "secret": 0o600, "d": 0o711, "shut": 0o555, "shut/inner": 0o500}
    assert (rig.ws / "shut/inner/file").read_text() == "new\n"


def test_set_id_bits_are_never_given(rig):
    rig.write("tool", mode=0o6755)
    rig.write("a", "new\n", 0o4711)
    (rig.layer / "group").mkdir()
    (rig.layer / "group").chmod(0o2755)
    applied = rig.end().apply()
    for name, mode in (("tool", 0o755), ("a", 0o711), ("group", 0o755)):
        assert stat.S_IMODE((rig.ws / name).stat().st_mode) == mode
    reason = "only its set-user-id and set-group-id bits"
    assert [(os.path.basename(each.path), each.reason) for each in applied.left_out] == [
        ("a", reason),
        ("tool", reason),
    ]


def test_times_of_files_come_along(rig):
    rig.write("a")
    os.utime(rig.layer / "a", ns=(1, 1_234_567_890_000_000_000))
    rig.end().apply()
    assert (rig.ws / "a").stat().st_mtime_ns == 1_234_567_890_000_000_000


def test_what_was_written_with_its_own_content_is_left_alone(rig):
    rig.write("a", "old a\n")
    inode = (rig.ws / "a").stat().st_ino
    changes = rig.end()
    assert [file.kind for file in changes.files] == ["changed"]
    assert changes.diff() == ""
    changes.apply()
    assert (rig.ws / "a").stat().st_ino == inode


def test_another_name_of_a_changed_file_keeps_the_old_content(rig):
    os.link(rig.ws / "a", rig.ws / "hard")
    rig.begin()
    rig.write("a")
    rig.end().apply()
    assert (rig.ws / "a").read_text() == "new\n"
    assert (rig.ws / "hard").read_text() == "old a\n"


def test_names_of_every_kind(rig):
    names = [b"new\nline", b"\xff\xfe", b"-rf", b" ", "grün".encode(), b"old0", b"new0", b"x" * 255]
    for name in names:
        with open(os.fsencode(rig.layer) + b"/" + name, "wb") as file:
            file.write(name)
    changes = rig.end()
    assert changes.diff().count("diff --git") == len(names)
    changes.apply()
    for name in names:
        with open(os.fsencode(rig.ws) + b"/" + name, "rb") as file:
            assert file.read() == name


def test_a_large_file_keeps_its_holes(rig):
    with open(rig.layer / "large", "wb") as file:
        file.write(b"head")
        file.seek(3 << 30)
        file.write(b"tail")
        file.truncate(4 << 30)
    changes = rig.end()
    assert "# too large to show: 0 to 4294967296 bytes" in changes.diff()
    changes.apply()
    info = (rig.ws / "large").stat()
    assert info.st_size == 4 << 30
    assert info.st_blocks * 512 < 1 << 20
    with open(rig.ws / "large", "rb") as file:
        assert file.read(4) == b"head"
        file.seek(3 << 30)
        assert file.read(4) == b"tail"


def test_own_attributes_of_a_changed_file_stay(rig):
    os.setxattr(rig.ws / "a", "user.mine", b"1")
    rig.begin()
    rig.write("a")
    rig.end().apply()
    assert os.getxattr(rig.ws / "a", "user.mine") == b"1"
    assert (rig.ws / "a").read_text() == "new\n"


@pytest.mark.root
def test_the_owner_of_a_changed_file_stays(rig):
    os.chown(rig.ws / "a", 1234, 4321)
    rig.begin()
    rig.write("a")
    rig.write("fresh")
    rig.end().apply()
    assert ((rig.ws / "a").stat().st_uid, (rig.ws / "a").stat().st_gid) == (1234, 4321)
    assert (rig.ws / "fresh").stat().st_uid == 0


def test_a_file_that_the_program_closed_is_read_all_the_same(rig):
    rig.write("a", "shut\n", 0)
    changes = rig.end()
    assert "+shut" in changes.diff()
    changes.apply()
    assert stat.S_IMODE((rig.ws / "a").stat().st_mode) == 0
    (rig.ws / "a").chmod(0o600)
    assert (rig.ws / "a").read_text() == "shut\n"


# --- what is left out --------------------------------------------------------------------------------------


def test_pipes_sockets_and_links_that_lead_outside(rig):
    os.mkfifo(rig.layer / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(rig.layer)
        try:
            listener.bind("socket")
        finally:
            os.chdir(here)
    (rig.layer / "out").symlink_to(rig.victim)
    (rig.layer / "up").symlink_to("../victim/file")
    (rig.layer / "in").symlink_to("d/x")
    (rig.layer / "whole").symlink_to(rig.ws / "a")
    rig.write("n/file")
    os.mkfifo(rig.layer / "n/pipe")
    changes = rig.end()
    applied = changes.apply()
    assert {os.path.relpath(each.path, rig.ws) for each in applied.left_out} == {
        "pipe",
        "socket",
        "out",
        "up",
        "n/pipe",
    }
    assert changes.left_out() == applied.left_out
    assert rig.tree() == {**OLD, "in": "d/x", "whole": str(rig.ws / "a"), "n/file": b"new\n"}
    assert os.listdir(rig.ws / "n") == ["file"]


def test_links_that_lead_outside_if_it_is_asked_for(rig):
    (rig.layer / "out").symlink_to(rig.victim)
    assert rig.end().apply(outside_links=True).left_out == ()
    assert os.readlink(rig.ws / "out") == str(rig.victim)


def test_a_link_through_another_link_of_the_workspace(rig):
    (rig.ws / "door").symlink_to(rig.victim)
    rig.begin()
    (rig.layer / "through").symlink_to("door/file")
    applied = rig.end().apply()
    assert [os.path.basename(each.path) for each in applied.left_out] == ["through"]
    assert not os.path.lexists(rig.ws / "through")


@pytest.mark.parametrize("closed", ["pipe", "protected", "inside a pipe"])
def test_a_link_through_one_that_the_program_seemed_to_remove(rig, closed):
    """What is left out stays as the host has it, and there it leads outside."""
    name = "d/door" if closed == "inside a pipe" else "door"
    (rig.ws / name).symlink_to(rig.victim)
    rig.begin()
    if closed == "inside a pipe":
        os.mkfifo(rig.layer / "d")
    elif closed == "pipe":
        os.mkfifo(rig.layer / "door")
    else:
        rig.write("door/file")
    (rig.layer / "through").symlink_to(f"{name}/file")
    (rig.layer / "good").symlink_to("a")
    applied = rig.end(protected=("door",) if closed == "protected" else ()).apply()
    assert sorted(os.path.relpath(each.path, rig.ws) for each in applied.left_out) == sorted(
        ["d" if closed == "inside a pipe" else "door", "through"]
    )
    assert os.readlink(rig.ws / name) == str(rig.victim)
    assert not os.path.lexists(rig.ws / "through")
    assert os.readlink(rig.ws / "good") == "a"


def test_a_link_through_one_that_the_program_did_remove(rig):
    """The control: where a directory comes in its place, the link leads into that."""
    (rig.ws / "door").symlink_to(rig.victim)
    rig.begin()
    rig.write("door/file")
    (rig.layer / "through").symlink_to("door/file")
    assert rig.end().apply().left_out == ()
    assert (rig.ws / "through").read_text() == "new\n"


def test_protected_names(rig):
    rig.write(".git/hooks/pre-commit", "evil\n", 0o755)
    rig.write(".envrc")
    rig.write("b")
    applied = rig.end(protected=(".git/hooks", ".envrc")).apply()
    assert [os.path.relpath(each.path, rig.ws) for each in applied.left_out] == [".envrc", ".git"]
    assert rig.tree() == without(b=b"new\n")


def test_nothing_protected_goes_with_a_directory_above_it(rig):
    rig.put(rig.ws / ".git/hooks/mine")
    rig.begin()
    rig.delete(".git", "b")
    rig.end(protected=(".git/hooks",)).apply()
    assert rig.tree() == without("b", **{".git/hooks/mine": b"new\n"})


# --- conflicts: all or nothing -----------------------------------------------------------------------------


def refuses(rig, *paths, changes=None):
    """Nothing is changed, and exactly these are named."""
    before = tree_of(rig.ws)
    with pytest.raises(NotApplied) as caught:
        (changes or rig.end()).apply()
    assert sorted(os.path.relpath(each.path, rig.ws) for each in caught.value.conflicts) == sorted(paths)
    assert "nothing was changed" in caught.value.message
    assert tree_of(rig.ws) == before
    return caught.value


SAME_TIME = 1_700_000_000_000_000_000


def rewrite_in_place(path, text):
    """Same size, same time of modification: only the inode's own time tells."""
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    path.write_text(text)
    os.utime(path, ns=times)


@pytest.mark.parametrize(
    ("meanwhile", "paths"),
    [
        (lambda ws: (ws / "a").write_text("theirs\n"), ["a"]),
        (lambda ws: rewrite_in_place(ws / "a", "OLD a\n"), ["a"]),
        (lambda ws: (ws / "a").unlink(), ["a"]),
        (lambda ws: (ws / "a").chmod(0o600), ["a"]),
        (lambda ws: (os.replace(ws / "b", ws / "a"), (ws / "b").write_text("x")), ["a", "b"]),
        (lambda ws: (ws / "n").write_text("theirs\n"), ["n"]),
        (lambda ws: (ws / "n").mkdir(), ["n"]),
        (lambda ws: (ws / "n").symlink_to("a"), ["n"]),
        (lambda ws: (ws / "d/e/theirs").write_text("x"), ["d/e/theirs"]),
        (lambda ws: (ws / "d/e/y").write_text("theirs\n"), ["d/e/y"]),
        (lambda ws: (ws / "d/e/y").unlink(), ["d/e/y"]),
        (lambda ws: (os.rename(ws / "d", ws / "moved"), shutil.copytree(ws / "moved", ws / "d")), ["d", "d"]),
        (lambda ws: (os.rename(ws / "d", ws / "moved"), (ws / "d").symlink_to("moved")), ["d", "d"]),
        (lambda ws: (ws / "f").chmod(0o701), ["f"]),
    ],
)
def test_what_others_did_meanwhile(rig, meanwhile, paths):
    (rig.ws / "f").mkdir(mode=0o755)
    rig.begin()
    rig.write("a")
    rig.write("n")
    rig.write("d/z")
    (rig.layer / "f").mkdir(mode=0o750)
    rig.delete("b", "d/e")
    changes = rig.end()
    meanwhile(rig.ws)
    if "b" not in paths and "a" in paths:
        assert "changed on the host" in changes.diff() or "can't be read any more" in changes.diff()
    refuses(rig, *paths, changes=changes)


def test_without_a_conflict_the_same_changes_are_applied(rig):
    (rig.ws / "f").mkdir(mode=0o755)
    rig.begin()
    rig.write("a")
    rig.write("n")
    rig.write("d/z")
    (rig.layer / "f").mkdir(mode=0o750)
    rig.delete("b", "d/e")
    changes = rig.end()
    rig.put(rig.ws / "unrelated", "theirs\n")
    changes.apply()
    assert rig.tree() == {
        "a": b"new\n", "n": b"new\n", "d/x": b"old d/x\n", "d/z": b"new\n", "unrelated": b"theirs\n",
    }  # fmt: skip
    assert stat.S_IMODE((rig.ws / "f").stat().st_mode) == 0o750


def test_a_workspace_that_was_moved_away(rig):
    rig.write("a")
    changes = rig.end()
    os.rename(rig.ws, rig.top / "moved")
    shutil.copytree(rig.top / "moved", rig.ws)
    refuses(rig, ".", changes=changes)
    assert (rig.top / "moved/a").read_text() == "old a\n"
    shutil.rmtree(rig.ws)
    os.rename(rig.top / "moved", rig.ws)
    changes.apply()
    assert (rig.ws / "a").read_text() == "new\n"


def test_twice_is_once(rig):
    rig.write("a")
    changes = rig.end()
    changes.apply()
    with pytest.raises(NotApplied, match="applied already"):
        changes.apply()
    assert (rig.ws / "a").read_text() == "new\n"


def test_changes_that_were_not_read_whole(rig):
    rig.write("a")
    changes = rig.end(whole=False)
    assert changes.files is None
    with pytest.raises(NotApplied, match="could not be read whole"):
        changes.apply()
    assert rig.tree() == OLD


# --- what happens at the worst moment ----------------------------------------------------------------------


def at_the_last_moment(monkeypatch, act):
    """Call ``act`` after everything was checked, and before anything is moved."""
    real = applying.Moves.commit

    def commit(self, operations):
        act()
        return real(self, operations)

    monkeypatch.setattr(applying.Moves, "commit", commit)


@pytest.mark.parametrize(
    "attack",
    [
        lambda rig: (os.rename(rig.ws / "d", rig.ws / "moved"), (rig.ws / "d").symlink_to(rig.victim)),
        lambda rig: (shutil.rmtree(rig.ws / "d/e"), (rig.ws / "d/e").symlink_to(rig.victim)),
        lambda rig: (os.rename(rig.ws / "d", rig.top / "moved"), (rig.ws / "d").mkdir()),
    ],
)
def test_a_directory_swapped_between_check_and_move(rig, monkeypatch, attack):
    rig.write("a")
    rig.write("d/file")
    rig.write("d/e/file")
    rig.delete("b")
    changes = rig.end()
    at_the_last_moment(monkeypatch, lambda: attack(rig))
    with pytest.raises(NotApplied):
        changes.apply()
    assert {name: text for name, text in rig.tree().items() if name in ("a", "b")} == without("d/x", "d/e/y")
    # the victim is compared when the rig is closed


@pytest.mark.parametrize(
    "attack",
    [
        lambda rig: (rig.ws / "a").unlink() or (rig.ws / "a").symlink_to(rig.victim / "file"),
        lambda rig: (rig.ws / "n").symlink_to(rig.victim / "file"),
        lambda rig: (rig.ws / "n").symlink_to(rig.victim / "not there yet"),
        lambda rig: (rig.ws / "m").symlink_to(rig.victim),
        lambda rig: (rig.ws / "b").write_text("theirs\n"),
        lambda rig: (rig.ws / "d/e/late").write_text("theirs\n"),
    ],
)
def test_a_file_swapped_between_check_and_move(rig, monkeypatch, attack):
    rig.write("a")
    rig.write("n")
    rig.write("m/inner")
    rig.delete("b", "d/e")
    changes = rig.end()
    theirs = []
    at_the_last_moment(monkeypatch, lambda: (attack(rig), theirs.append(tree_of(rig.ws))))
    with pytest.raises(NotApplied) as caught:
        changes.apply()
    assert len(caught.value.conflicts) == 1
    [expected] = theirs
    assert tree_of(rig.ws) == {name: what for name, what in expected.items() if not name.startswith(".stockade-")}


def test_without_an_attack_the_moment_is_harmless(rig, monkeypatch):
    rig.write("a")
    called = []
    at_the_last_moment(monkeypatch, lambda: called.append(1))
    rig.end().apply()
    assert called
    assert (rig.ws / "a").read_text() == "new\n"


def test_a_swap_at_any_moment_never_leads_outside(rig):
    """Another program exchanges a directory for a link to the victim all the time, while changes are applied."""
    over = threading.Event()

    def flip() -> None:
        while not over.is_set():
            try:
                os.rename(rig.ws / "d", rig.ws / "away")
                os.symlink(rig.victim, rig.ws / "d")
                os.unlink(rig.ws / "d")
                os.rename(rig.ws / "away", rig.ws / "d")
            except OSError:
                return

    rig.write("d/file")
    rig.write("d/x")
    rig.delete("d/e")
    changes = rig.end()
    thread = threading.Thread(target=flip)
    thread.start()
    outcomes = set()
    try:
        for _ in range(300):
            try:
                changes.apply()
                outcomes.add("applied")
                break
            except NotApplied:
                outcomes.add("refused")
    finally:
        over.set()
        thread.join()
    assert outcomes
    assert os.listdir(rig.victim) == ["file"]


def test_an_error_halfway_takes_everything_back(rig, monkeypatch):
    rig.write("a")
    rig.write("n")
    rig.write("m/inner")
    (rig.layer / "d").mkdir(mode=0o700)
    (rig.layer / "d").chmod(0o700)
    rig.delete("b", "d/e")
    rig.write("zz")
    changes = rig.end()
    before = tree_of(rig.ws)
    real = applying.move_file

    def fail_at_the_end(source, place, parent, name):
        if name == b"zz":
            raise OSError(28, "No space left on device", "zz")
        real(source, place, parent, name)

    monkeypatch.setattr(applying, "move_file", fail_at_the_end)
    with pytest.raises(NotApplied, match="no space left on device; nothing was changed"):
        changes.apply()
    assert tree_of(rig.ws) == before
    monkeypatch.setattr(applying, "move_file", real)
    # what was moved there and back has another time of change, and nothing else tells it from somebody's change
    with pytest.raises(NotApplied):
        changes.apply()


def test_an_error_while_building_changes_nothing(rig, monkeypatch):
    rig.write("a")
    rig.write("b")
    changes = rig.end()
    before = tree_of(rig.ws)
    monkeypatch.setattr(applying, "build", lambda *_: (_ for _ in ()).throw(OSError(122, "Disk quota exceeded")))
    with pytest.raises(NotApplied, match="disk quota exceeded"):
        changes.apply()
    assert tree_of(rig.ws) == before
    monkeypatch.undo()
    changes.apply()
    assert (rig.ws / "a").read_text() == "new\n"


def test_what_is_swapped_in_while_steps_are_taken_back_is_not_removed(rig, monkeypatch):
    """It is of somebody else, and may be all there is of it."""
    rig.write("n/file")
    rig.write("z")
    rig.put(rig.ws / "theirs/kept", "theirs\n")
    rig.begin()
    changes = rig.end()
    real, put = applying.Moves.take_in, applying.Moves.put

    def take_in(self, parent, name, made):
        if name == b"n":
            os.rename(rig.ws / "n", rig.top / "elsewhere")
            os.rename(rig.ws / "theirs", rig.ws / "n")
        real(self, parent, name, made)

    def fail(self, operation, parent, name, place):
        if operation.change.path == b"z":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        put(self, operation, parent, name, place)

    monkeypatch.setattr(applying.Moves, "take_in", take_in)
    monkeypatch.setattr(applying.Moves, "put", fail)
    with pytest.raises(NotApplied):
        changes.apply()
    assert (rig.ws / "n/kept").read_text() == "theirs\n"
    assert not (rig.ws / "n/file").exists()
    assert not (rig.ws / "z").exists()


def test_a_file_system_without_hard_links(rig, monkeypatch):
    def no_links(*_arguments, **_options):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    rig.write("a")
    rig.write("n")
    rig.end().apply()
    assert rig.tree() == without(a=b"new\n", n=b"new\n")


@pytest.mark.user
def test_a_workspace_that_can_not_be_written(rig):
    rig.write("a")
    changes = rig.end()
    rig.ws.chmod(0o555)
    try:
        with pytest.raises(NotApplied, match="permission denied; nothing was changed"):
            changes.apply()
    finally:
        rig.ws.chmod(0o755)
    assert rig.tree() == OLD
    changes.apply()
    assert (rig.ws / "a").read_text() == "new\n"


# --- the object --------------------------------------------------------------------------------------------


def test_closed_is_closed(rig):
    rig.write("a")
    changes = rig.end()
    assert os.path.isdir(rig.place.path)
    with changes:
        assert not changes.closed
    assert changes.closed
    assert not os.path.exists(rig.place.path)
    for use in (changes.diff, changes.apply, changes.left_out):
        with pytest.raises(StockadeError, match="they were dropped"):
            use()
    changes.close()
    assert rig.tree() == OLD


def test_what_nobody_holds_is_removed(rig):
    rig.write("a")
    rig.end()
    assert os.path.isdir(rig.place.path)
    rig.changes = None
    import gc

    gc.collect()
    assert not os.path.exists(rig.place.path)
    rig.root, rig.place = os.open("/", os.O_RDONLY), private.make(str(rig.top / "places"))


def test_a_forked_copy_removes_nothing(rig):
    rig.write("a")
    changes = rig.end()
    pid = os.fork()
    if pid == 0:
        try:
            changes.close()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert "+new" in changes.diff()


def test_a_copy_elsewhere_has_no_changes(rig):
    assert pickle.loads(pickle.dumps(rig.end())) is None
