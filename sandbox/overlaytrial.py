"""Which bubblewrap can make overlay workspaces here, and where what they capture can be kept: found by trying.

The binary need not be the usual one, and then everything else is tried with it too. The kernel takes the layer of an
overlay only from some file systems (another overlay, as the root of a container often is, is none), so the places
that no box shows are tried one after the other.
"""

from __future__ import annotations

import os
import shutil
import time

from stockade.policies.capability import REQUIRED, Capability
from stockade.policies.errors import SandboxUnavailable, StockadeError
from stockade.sandbox import bwrap as binaries
from stockade.sandbox import hostcache, overlay, probe, shortage, state
from stockade.sandbox.confinement import prepare
from stockade.sandbox.engine import Io, execute
from stockade.sandbox.mounts import below
from stockade.sandbox.request import Request
from stockade.sandbox.rootfs import COVERED
from stockade.sandbox.trial import SECONDS, trial_policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.sandbox.bwrap import Bwrap
    from stockade.sandbox.host import Host

OPTION = "--overlay-src"
REMEDY = "pip install 'stockade[bwrap]', or install bubblewrap 0.11 or newer from your distribution."
SCRIPT = """
read -r line < kept && [ "$line" = old ] || exit 11
echo new > made && echo new > changed && rm gone && rm -r folder && mkdir folder || exit 12
read -r line < changed && [ "$line" = new ] && [ ! -e gone ] && [ ! -e folder/inner ] || exit 13
"""
BEFORE = {"kept": "old\n", "changed": "old\n", "gone": "old\n", "folder/inner": "old\n"}
EXPECTED = [
    ("changed", "changed"), ("changed", "folder"), ("deleted", "folder/inner"), ("deleted", "gone"), ("created", "made"),
]  # fmt: skip


def known(usual: Host) -> Host:
    """The host for overlay workspaces: as it was remembered, or found now. Raises nothing."""
    return recalled() or find(usual)


def recalled() -> Host | None:
    for path in candidates():
        try:
            host = None if binaries.distrust(path) else hostcache.recall(path, hostcache.OVERLAY)
        except OSError:
            continue
        if host is not None and os.access(host.upper, os.W_OK | os.X_OK):
            return host
    return None


def candidates() -> list[str]:
    return list(dict.fromkeys(filter(None, (binaries.find_helper("bwrap"), binaries.beside_interpreter()))))


def find(usual: Host) -> Host:
    """Try it; ``usual`` is the host as it is with the usual binary. A good finding is remembered."""
    binary, problem = choose()
    if binary is None:
        return with_capability(usual, problem)
    host = usual if usual.bwrap is not None and usual.bwrap.path == binary.path else probe.tried(binary.path)
    if not all(map(host.has, REQUIRED)):
        return with_capability(host, Capability("overlay", "unknown", "not tried: no box could be started", ""))
    found, place = try_places(binary, host)
    host = with_capability(host, found).replace(upper=place)
    if place and probe.able(host):
        hostcache.remember(host, hostcache.OVERLAY)
    return host


def choose() -> tuple[Bwrap | None, Capability]:
    """The first binary that has overlay mounts and that nobody else could replace."""
    causes = []
    for path in candidates():
        try:
            binary = binaries.inspect(binaries.locate(path))
        except SandboxUnavailable as error:
            if cause := shortage.cause_in(error.message):
                return None, shortage.untried("overlay", cause)
            causes.append(error.message)
            continue
        if binary.has(OPTION):
            return binary, Capability("overlay", "ok", path)
        causes.append(f"{path} is older than 0.11 and has no overlay mounts")
    detail = "; ".join(causes) or "bubblewrap is not installed"
    return None, Capability("overlay", "too old" if causes else "missing", detail, REMEDY)


def with_capability(host: Host, found: Capability) -> Host:
    return host.replace(
        capabilities=tuple(found if each.name == found.name else each for each in host.capabilities)
    )


def try_places(binary: Bwrap, host: Host) -> tuple[Capability, str]:
    problems = []
    for place in places():
        try:
            problem = attempt(binary, host, place)
        except (StockadeError, OSError) as error:
            problem = error.message if isinstance(error, StockadeError) else str(error)
        if cause := shortage.cause_in(problem):
            return shortage.untried("overlay", cause), ""
        if not problem:
            detail = f"writes were captured by {binary.path} in {place}, and the workspace was left alone"
            return Capability("overlay", "ok", detail), place
        problems.append(f"{place}: {problem}")
    return (
        Capability(
            "overlay",
            "missing",
            f"no place for the changes could be used: {'; '.join(problems)}",
            "Set TMPDIR to a directory below /tmp or /var/tmp on ext4, xfs, btrfs or tmpfs: no overlay can write to others.",
        ),
        "",
    )


def places() -> list[str]:
    """Directories to keep changes in, as real paths: none that a box shows."""
    cache, chosen = own_cache(), os.path.realpath(os.environ.get("TMPDIR", "/var/tmp"))  # noqa: S108
    hidden = [chosen] if any(below(chosen, top) for top in COVERED) else []
    found = [*filter(None, [cache]), *hidden, "/var/tmp", "/tmp", "/dev/shm"]  # noqa: S108
    return [place for place in dict.fromkeys(found) if os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK)]


def own_cache() -> str | None:
    """Stockade's own directory, which every box covers; made if its parent is there."""
    path = state.cache_dir()
    if path is None or not os.path.isdir(os.path.dirname(os.path.dirname(path))):
        return None
    try:
        os.makedirs(path, 0o700, exist_ok=True)
        os.close(state.open_private(path))
    except OSError:
        return None
    return os.path.realpath(path)


def attempt(binary: Bwrap, host: Host, parent: str) -> str:
    """One run in an overlay with its layer in ``parent``. What went wrong, or empty."""
    held = probe.temporary()
    place = held.path
    try:
        os.chmod(place, 0o755)  # noqa: S103  (for the uid that root drops to)
        workspace = f"{place}/workspace"
        os.makedirs(f"{workspace}/folder")
        for name, text in BEFORE.items():
            with open(f"{workspace}/{name}", "w") as file:
                file.write(text)
        policy = trial_policy(place).replace(write=(), workspace="overlay")
        open_to(workspace)
        request = Request(("/bin/sh", "-c", SCRIPT), workspace, ())
        start = prepare(policy, request, binary, fresh_proc=host.has("proc"), use_filter=host.has("seccomp"))
        layer, start = overlay.begin(start, parent)
        with layer:
            finished = execute(
                lambda into: layer.job(start.job(into), into),
                Io(cap=65_536),
                confined=True,
                deadline=time.monotonic() + SECONDS,
                process_limit=start.process_limit,
            )
            with layer.changes() as changes:
                listed = [(each.kind, os.path.relpath(each.path, workspace)) for each in changes.files or ()]
        if finished.evidence.exit_code != 0:
            error = finished.stderr.data.decode("utf-8", "replace").strip() if finished.stderr else ""
            return shortage.cause_of(finished.evidence, error) or error[-300:] or "it did not end well"
        if listed != EXPECTED:
            return "what was captured is not what was written"
        return "" if untouched(workspace) else "the workspace was written"
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(held.fd)


def open_to(workspace: str) -> None:
    """Let a dropped root own what it is to change: a layer takes over only files of the run's own uid."""
    from stockade.sandbox.survey import identify

    for path in (workspace, f"{workspace}/folder", *(f"{workspace}/{name}" for name in BEFORE)):
        os.chmod(path, 0o777 if os.path.isdir(path) else 0o666)
    owner = identify(trial_policy("/").replace(write=()), "/usr").credentials
    if owner is not None:
        for path in (workspace, f"{workspace}/folder", *(f"{workspace}/{name}" for name in BEFORE)):
            os.chown(path, *owner)


def untouched(workspace: str) -> bool:
    found = {}
    for folder, _names, files in os.walk(workspace):
        for name in files:
            with open(os.path.join(folder, name)) as file:
                found[os.path.relpath(file.name, workspace)] = file.read()
    return found == BEFORE
