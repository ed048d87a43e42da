"""Files: what was not granted can't be written, moved, linked or read, by any name and in any order."""

from __future__ import annotations

import mmap
import os
import socket
import threading

from stockade.sandbox.attacks.toolbox import (
    Given,
    any_of,
    attempt,
    call,
    done,
    each_refused,
    read,
    syscall,
    write,
)

GROUP = "A filesystem"
VIEW, READ_ONLY = "mount namespace: it is not in the view", "read-only mount"
PROTECTED, HIDDEN = "mount over the protected name", "mask over the hidden name"
RENAME_EXCHANGE, AT_FDCWD, AT_SYMLINK_FOLLOW = 2, -100, 0x400
RENAMEAT2 = {"x86_64": 316, "aarch64": 276, "riscv64": 276}


def link_descriptor(fd: int, path: str) -> bool:
    """A name for what a descriptor is open on; os.link does not follow the link in /proc."""
    return call("linkat", AT_FDCWD, b"/proc/self/fd/%d" % fd, AT_FDCWD, path.encode(), AT_SYMLINK_FOLLOW) == 0


# --- beside the workspace ----------------------------------------------------------------------------------


@attempt(VIEW, facts=("beside",))
def write_beside(given: Given) -> object:
    """Write a file beside the workspace by its path."""
    return write(f"{given.beside}/secret")


@attempt(VIEW, facts=("beside",))
def write_by_dots(given: Given) -> object:
    """Write it by way of ``..``, from the workspace and from its descriptor."""
    fd = os.open(".", os.O_RDONLY)
    return each_refused(
        {
            "path": lambda: write("../beside/secret"),
            "descriptor": lambda: os.write(os.open("../beside/secret", os.O_WRONLY, dir_fd=fd), b"evil"),
            "back again": lambda: write(f"{given.place}/../beside/secret"),
        }
    )


@attempt(VIEW, facts=("beside",))
def write_through_a_link(given: Given) -> object:
    """Plant a symlink to a file outside and write through it."""
    os.symlink(f"{given.beside}/secret", "link-to-file")
    return write("link-to-file")


@attempt(VIEW, facts=("beside",))
def make_through_a_link(given: Given) -> object:
    """Plant a symlink to a directory outside and make a file in it."""
    os.symlink(given.beside, "link-to-directory")
    return write("link-to-directory/new")


@attempt(VIEW, facts=("beside",))
def link_from_beside(given: Given) -> object:
    """Hard-link a file from outside into the workspace and write through the link."""
    os.link(f"{given.beside}/secret", "hard")
    return write("hard")


@attempt(VIEW, facts=("beside",))
def move_out(given: Given) -> object:
    """Move a file of the workspace to a place outside."""
    write("carried")
    os.rename("carried", f"{given.beside}/carried")
    return True


@attempt(VIEW, facts=("beside",))
def race_a_link(given: Given) -> object:
    """Exchange a directory for a symlink as fast as possible while writing into it."""
    os.mkdir("race")
    os.symlink(given.beside, "race-link")
    stop = threading.Event()

    def exchange() -> None:
        while not stop.is_set():
            syscall(RENAMEAT2, AT_FDCWD, b"race", AT_FDCWD, b"race-link", RENAME_EXCHANGE)

    thread = threading.Thread(target=exchange)
    thread.start()
    last: OSError | None = None
    try:
        for _turn in range(400):
            try:
                write("race/new")
            except OSError as error:
                last = error
            if os.path.lexists(f"{given.beside}/new"):
                return "written outside"
    finally:
        stop.set()
        thread.join()
    if last is not None:
        raise last
    return False


@attempt(VIEW, control=lambda given: read(f"{given.beside}/secret"))
def leftovers_of_the_root_change(given: Given) -> object:
    """Read it below what bubblewrap's change of root may have left: /oldroot, /newroot, ``..`` of the root"""
    tops = ("/oldroot", "/newroot", "/..", "/../..", "/proc/self/root/..", "/proc/self/cwd/../..")
    return any_of(lambda top: read(f"{top}{given.beside}/secret"), tops)


@attempt(READ_ONLY, facts=("visible",))
def create_in_a_shown_directory(given: Given) -> object:
    """Create a file in a directory that everybody may write and that is shown read-only."""
    return write(f"{given.visible}/new")


@attempt(READ_ONLY, control=create_in_a_shown_directory)
def create_in_system(given: Given) -> object:
    """Create a file in a directory of the system"""
    tops = ("/", "/usr", "/usr/bin", "/etc", "/var", "/opt", "/usr/local/bin", "/dev", "/etc/cron.d", "/proc")
    return any_of(lambda top: write(f"{top}/stockade-attack"), tops)


@attempt(READ_ONLY, facts=("visible",))
def write_a_shown_file(given: Given) -> object:
    """Overwrite, append to or truncate a file that is shown read-only."""
    path = f"{given.visible}/file"
    return each_refused(
        {
            "write": lambda: write(path),
            "append": lambda: os.write(os.open(path, os.O_WRONLY | os.O_APPEND), b"evil"),
            "truncate": lambda: done(os.truncate, path, 0),
        }
    )


@attempt(READ_ONLY, facts=("visible",))
def link_and_write_a_shown_file(given: Given) -> object:
    """Hard-link a read-only file into the workspace, where the mount is writable, and write it there."""
    os.link(f"{given.visible}/file", "hard-of-shown")
    return write("hard-of-shown")


@attempt(READ_ONLY, facts=("visible",))
def link_by_descriptor(given: Given) -> object:
    """The same with linkat from a descriptor, by /proc/self/fd."""
    fd = os.open(f"{given.visible}/file", os.O_PATH)
    link_descriptor(fd, "hard-by-descriptor")
    return write("hard-by-descriptor")


@attempt(READ_ONLY, facts=("visible",))
def move_a_shown_file(given: Given) -> object:
    """Move it into the workspace, or remove it."""
    return each_refused(
        {
            "rename": lambda: done(os.rename, f"{given.visible}/file", "moved"),
            "unlink": lambda: done(os.unlink, f"{given.visible}/file"),
            "rmdir": lambda: done(os.rename, f"{given.visible}/inner", "inner"),
        }
    )


@attempt(READ_ONLY, facts=("visible",))
def reopen_for_writing(given: Given) -> object:
    """Open it to be read, and open that descriptor anew through /proc, to be written."""
    fd = os.open(f"{given.visible}/file", os.O_RDONLY)
    return write(f"/proc/self/fd/{fd}")


@attempt(READ_ONLY, facts=("visible",))
def map_shared(given: Given) -> object:
    """Map it shared and writable, from a descriptor for reading and for writing."""
    flags = (os.O_RDWR, os.O_RDONLY)

    def mapped(flag: int) -> bool:
        fd = os.open(f"{given.visible}/file", flag)
        with mmap.mmap(fd, 4, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE) as area:
            area[:4] = b"evil"
        return True

    return any_of(mapped, flags)


@attempt(READ_ONLY, facts=("visible",))
def change_modes(given: Given) -> object:
    """Change its mode, owner or times, by path and by descriptor."""
    path = f"{given.visible}/file"
    fd = os.open(path, os.O_RDONLY)
    own = os.stat(path)
    return each_refused(
        {
            "chmod": lambda: done(os.chmod, path, 0o600),
            "fchmod": lambda: done(os.fchmod, fd, 0o640),
            "chown": lambda: done(os.chown, path, own.st_uid, own.st_gid),
            "times": lambda: done(os.utime, path, (1, 1)),
        }
    )


@attempt(READ_ONLY, facts=("visible",))
def set_attributes(given: Given) -> object:
    """Attach an extended attribute to it."""
    os.setxattr(f"{given.visible}/file", "user.evil", b"1")
    return True


@attempt(READ_ONLY, facts=("visible",))
def unnamed_file(given: Given) -> object:
    """Make a file without a name in its directory and give it one."""
    fd = os.open(given.visible, os.O_TMPFILE | os.O_RDWR, 0o666)
    return link_descriptor(fd, f"{given.visible}/named")


@attempt(READ_ONLY, facts=("visible",))
def socket_in_a_shown_directory(given: Given) -> object:
    """Bind a socket, or make a pipe, in a read-only directory, for a program of the host to meet."""
    with socket.socket(socket.AF_UNIX) as made:
        return each_refused(
            {
                "socket": lambda: done(made.bind, f"{given.visible}/planted.sock"),
                "pipe": lambda: done(os.mkfifo, f"{given.visible}/planted"),
                "link": lambda: done(os.symlink, "/etc/passwd", f"{given.visible}/planted-link"),
            }
        )


# --- protected names ---------------------------------------------------------------------------------------


@attempt(PROTECTED, facts=("protected",))
def write_git_config(given: Given) -> object:
    """Write .git/config, whose core.fsmonitor runs at the user's next git status."""
    return write(".git/config", "[core]\n\tfsmonitor = ./evil\n")


@attempt(PROTECTED, facts=("protected",))
def plant_a_git_hook(given: Given) -> object:
    """Put a program into .git/hooks."""
    return write(".git/hooks/post-checkout", "#!/bin/sh\n")


@attempt(PROTECTED, facts=("protected",))
def replace_git(given: Given) -> object:
    """Move .git away and make another one with a configuration in it."""
    os.rename(".git", "git-aside")
    os.mkdir(".git")
    return write(".git/config")


@attempt(PROTECTED, facts=("protected",))
def rename_a_grandparent(given: Given) -> object:
    """Rename the directories above a protected name, from the nearest to the farthest, and make the path anew."""

    def replaced(folder: str) -> bool:
        os.rename(folder, f"{folder}-aside".replace("/", "-"))
        os.makedirs("nested/a")
        return write("nested/a/guarded")

    return any_of(lambda folder: replaced(folder), ("nested/a", "nested"))


@attempt(PROTECTED, facts=("protected",))
def exchange_a_protected_name(given: Given) -> object:
    """Exchange a protected directory for another one in one step (RENAME_EXCHANGE)."""
    os.mkdir("exchanged")
    write("exchanged/settings.json")
    return syscall(RENAMEAT2, AT_FDCWD, b"exchanged", AT_FDCWD, b".claude", RENAME_EXCHANGE) == 0


@attempt(PROTECTED, facts=("protected",))
def link_to_a_protected_file(given: Given) -> object:
    """Hard-link .git/config to another name and write it by that one."""
    os.link(".git/config", "config-hard")
    return write("config-hard")


@attempt(PROTECTED, facts=("protected",))
def create_a_missing_protected_name(given: Given) -> object:
    """Create a protected name that does not exist yet, as a file, a directory, a link and by a rename."""
    write("to-move")
    return each_refused(
        {
            "file": lambda: write(".envrc"),
            "directory": lambda: done(os.mkdir, ".vscode"),
            "inside": lambda: write(".vscode/tasks.json"),
            "link": lambda: done(os.symlink, "/tmp", ".envrc"),  # noqa: S108
            "rename": lambda: done(os.rename, "to-move", ".envrc"),
            "hard link": lambda: done(os.link, "file", ".envrc"),
        }
    )


@attempt(PROTECTED, facts=("protected",))
def remove_the_stand_in(given: Given) -> object:
    """Remove or move what keeps a missing protected name from being made, and its parent, then make it."""

    def made() -> bool:
        return done(os.mkdir, "nested/b/missing")

    return each_refused(
        {
            "make": made,
            "remove": lambda: done(os.rmdir, "nested/b/missing") and made(),
            "open up": lambda: done(os.chmod, "nested/b/missing", 0o777) and write("nested/b/missing/x"),
            "move": lambda: done(os.rename, "nested/b/missing", "stand-in") and made(),
            "parent": lambda: done(os.rename, "nested/b", "b-aside") and done(os.makedirs, "nested/b/missing"),
        }
    )


@attempt(PROTECTED, facts=("protected",))
def edit_agent_settings(given: Given) -> object:
    """Edit the agent's own settings, so that its next session runs a command."""
    return write(".claude/settings.json", '{"hooks": {}}')


# --- hidden names ------------------------------------------------------------------------------------------


def secret_in(given: Given, path: str) -> bool:
    return given.secret in read(path)


@attempt(HIDDEN)
def read_a_hidden_file(given: Given) -> object:
    """Read a hidden file, by its name and through /proc/self/cwd."""
    return any_of(lambda name: secret_in(given, name), (".env", "/proc/self/cwd/.env", "./sub/../.env"))


@attempt(HIDDEN)
def move_the_parent_of_a_hidden_file(given: Given) -> object:
    """Move the directories above a hidden file and read it where it is then."""
    os.mkdir("elsewhere")
    return each_refused(
        {
            "parent": lambda: done(os.rename, "sub/deep", "deep") and secret_in(given, "deep/.env"),
            "grandparent": lambda: (
                done(os.rename, "sub", "elsewhere/sub") and secret_in(given, "elsewhere/sub/deep/.env")
            ),
            "where it was left": lambda: secret_in(given, "deep/.env"),
        }
    )


@attempt(HIDDEN, facts=("hidden",))
def replace_a_hidden_file(given: Given) -> object:
    """Link, move, remove or overwrite a hidden file."""
    write("to-replace")
    return each_refused(
        {
            "link": lambda: done(os.link, ".env", "env-hard") and secret_in(given, "env-hard"),
            "move": lambda: done(os.rename, ".env", "env-moved"),
            "remove": lambda: done(os.unlink, ".env"),
            "write": lambda: write(".env"),
            "replace": lambda: done(os.rename, "to-replace", ".env"),
        }
    )


@attempt(HIDDEN, facts=("hidden",))
def write_into_a_hidden_directory(given: Given) -> object:
    """Write into a hidden directory: a write that vanished later would be a lie."""
    return each_refused(
        {
            "write": lambda: write("vault/new"),
            "open up": lambda: done(os.chmod, "vault", 0o777) and write("vault/new"),
            "remove": lambda: done(os.rename, "vault", "vault-moved"),
        }
    )


@attempt(HIDDEN)
def list_a_hidden_directory(given: Given) -> object:
    """List a hidden directory and read what is in it."""
    return os.listdir("vault") or secret_in(given, "vault/key")


@attempt(
    HIDDEN,
    allowed="hide covers names: another hard link to a hidden file that exists already stays readable",
)
def read_by_another_hard_link(given: Given) -> object:
    """Read a hidden file by a second hard link that has another name."""
    return secret_in(given, "alias")
