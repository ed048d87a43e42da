"""Interpreters and tools that PATH finds in places the box replaces, brought in read-only (pure).

Only what is known to hold programs is brought: ``~/.cargo/bin`` and never ``~/.cargo`` with its credentials.
"""

from __future__ import annotations

from stockade.policies.record import Record
from stockade.sandbox.mounts import BIND_RO, Mount, below, covering

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from stockade.policies.resolved import Resolved
    from stockade.sandbox.survey import Facts
    from stockade.sandbox.tree import HostTree

WHOLE = (
    ".pyenv", ".nvm", ".asdf", ".volta", ".rbenv", ".nodenv", ".goenv", ".jenv", ".sdkman", ".fnm", ".rustup",
    ".local/share/mise", ".local/share/uv", ".local/share/pipx", ".local/share/pnpm", ".local/share/fnm",
    ".local/share/rtx", ".local/share/virtualenvs", ".npm-global", "miniconda3", "anaconda3", "miniforge3", "mambaforge",
    ".nix-profile", ".juliaup", ".ghcup", ".opam", "go/sdk",
)  # fmt: skip
"""Directories of a home that hold toolchains and nothing else."""

ALSO = {".cargo/bin": (".rustup",), ".bun/bin": (".bun/install/global",), ".deno/bin": ()}
"""Directories of programs that need another one beside them."""

MOST_LINKS = 300


class Tools(Record):
    """Binds that make PATH true inside, and the PATH itself."""

    mounts: tuple[Mount, ...]
    path: tuple[str, ...]


def bring(policy: Resolved, facts: Facts, tree: HostTree, mounts: Sequence[Mount]) -> Tools:
    """Visible entries of PATH stay; hidden ones are brought in where ``toolchains`` allows it, else left out.

    Never what holds the whole home: an entry ``/`` or ``~`` would show everything.
    """
    brought: dict[str, Mount] = {}
    path = []
    for entry in facts.path:
        real = tree.real(entry)
        node = tree.node(real)
        if node is None or node.kind != "dir":
            continue
        if not visible(mounts, real):
            if policy.toolchains != "auto" or below(facts.home, real):
                continue
            for source in sources(real, facts, tree):
                if not visible(mounts, source):
                    brought[source] = Mount(BIND_RO, source, source, f"PATH has {entry}", pinned=True)
        path.append(real)
    return Tools(tuple(brought.values()), tuple(dict.fromkeys(path)))


def visible(mounts: Sequence[Mount], path: str) -> bool:
    mount = covering(mounts, path)
    return mount is not None and mount.op in ("bind", "ro-bind", "symlink")


def sources(entry: str, facts: Facts, tree: HostTree) -> list[str]:
    """The directories to bind so that the programs of one PATH entry work."""
    toolchain = known_root(entry, facts.home)
    if toolchain:
        return [toolchain]
    environment = virtual_environment(entry, facts, tree)
    if environment:
        return environment + base_interpreter(environment[0], facts, tree)
    extra = ALSO.get(entry[len(facts.home) + 1 :], ()) if below(entry, facts.home) else ()
    beside = [path for path in (f"{facts.home}/{name}" for name in extra) if tree.node(path) is not None]
    return [entry, *beside, *link_targets(entry, facts, tree)]


def known_root(path: str, home: str) -> str | None:
    for name in WHOLE:
        if below(path, f"{home}/{name}"):
            return f"{home}/{name}"
    return None


def virtual_environment(entry: str, facts: Facts, tree: HostTree) -> list[str]:
    parent = entry.rpartition("/")[0] or "/"
    return [] if below(facts.home, parent) or tree.node(f"{parent}/pyvenv.cfg") is None else [parent]


def base_interpreter(environment: str, facts: Facts, tree: HostTree) -> list[str]:
    """What a virtual environment was made from, when that too lies in a home.

    A program may have written that file: it is believed only where an interpreter is.
    """
    for line in tree.text(f"{environment}/pyvenv.cfg").splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "home" and value.strip().startswith("/"):
            home = tree.real(value.strip())
            prefix = known_root(home, facts.home) or home.rpartition("/")[0]
            programs = tree.names(home)
            usable = below(home, facts.home) and not below(facts.home, prefix)
            return [prefix] if usable and any(name.startswith("python") for name in programs) else []
    return []


def link_targets(entry: str, facts: Facts, tree: HostTree) -> list[str]:
    """Known toolchains that links in ``~/.local/bin`` and its like lead to."""
    found = []
    for name in tree.names(entry)[:MOST_LINKS]:
        node = tree.node(f"{entry}/{name}")
        if node is not None and node.kind == "link":
            root = known_root(tree.real(f"{entry}/{name}"), facts.home)
            if root:
                found.append(root)
    return list(dict.fromkeys(found))
