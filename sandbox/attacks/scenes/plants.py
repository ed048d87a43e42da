"""What a program leaves behind for stockade itself, for the next run, or for whoever starts one."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading

import stockade
from stockade.policies.errors import StockadeError
from stockade.policies.model import parse_tree
from stockade.sandbox.attacks.bait import die_with_parent
from stockade.sandbox.attacks.scenery import Seen, scene

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.policies.model import Policy
    from stockade.sandbox.attacks.scenery import Stage

GROUP = "H host environment and what is left behind"
STARTS = 15
RENAME_EXCHANGE, AT_FDCWD = 2, -100
CLI = (sys.executable, "-m", "stockade", "run")


def policy(stage: Stage, **sections: dict[str, Any]) -> Policy:
    tree: dict[str, Any] = {"extends": "workspace-write", "mode": "auto", **sections}
    tree["process"] = {"user": stage.user}
    return parse_tree(tree, "the attacks")


def cli(stage: Stage, *words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CLI, *words], cwd=stage.place, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@scene("mount points resolved without symlinks")
def link_above_a_protected_name(stage: Stage) -> Seen:
    """Leave a symlink where the next run makes a mount point, so that bubblewrap makes it outside (CVE-2026-87766)."""
    given = policy(stage, filesystem={"protect": ["tools/guarded"]})
    control = stockade.run("touch ran", cwd=stage.place, policy=given).ok
    refused = []
    for target in (f"{stage.bait.top}/beside", f"/oldroot{stage.bait.top}/beside", "."):
        os.symlink(target, f"{stage.place}/tools")
        try:
            stockade.run("touch again", cwd=stage.place, policy=given)
        except StockadeError as error:
            refused.append(error.message)
        os.unlink(f"{stage.place}/tools")
    ran = "the run was started" if os.path.exists(f"{stage.place}/again") else ""
    return Seen(ran, control, f"refused {len(refused)} times: it is a symlink")


@scene("sources opened once, mounted by descriptor")
def exchange_a_grant(stage: Stage) -> Seen:
    """Exchange a granted directory for a symlink while runs are being started."""
    os.mkdir(f"{stage.place}/data")
    os.chmod(f"{stage.place}/data", 0o777)  # noqa: S103
    os.symlink(f"{stage.bait.top}/beside", f"{stage.place}/other")
    own = f"{stage.bait.top}/grant.toml"
    with open(own, "w") as file:
        file.write(
            f'extends = "read-only"\nmode = "auto"\n[filesystem]\nwrite = ["data"]\n[process]\nuser = "{stage.user}"\n'
        )
    good = stockade.run("touch data/made", cwd=stage.place, policy=own).ok
    stop = threading.Event()
    libc = ctypes.CDLL(None)
    names = [os.fsencode(f"{stage.place}/{name}") for name in ("data", "other")]

    def exchange() -> None:
        while not stop.is_set():
            libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE)

    thread = threading.Thread(target=exchange)
    thread.start()
    refusals = 0
    try:
        for _start in range(STARTS):
            try:
                refusals += not stockade.run("echo evil > data/evil", cwd=stage.place, policy=own, timeout=20).ok
            except StockadeError:
                refusals += 1
    finally:
        stop.set()
        thread.join()
    return Seen("", good, f"{refusals} of {STARTS} starts refused or without effect")


@scene("own files opened without following links")
def link_for_our_own_document(stage: Stage) -> Seen:
    """Leave a symlink where stockade will write its own document (--json=FILE)."""
    os.symlink(f"{stage.bait.top}/beside/secret", f"{stage.place}/document.json")
    os.symlink(f"{stage.bait.top}/beside", f"{stage.place}/out")
    codes = [
        cli(stage, f"--json={name}", "--", "true").returncode for name in ("document.json", "out/document.json")
    ]
    control = cli(stage, "--json=good.json", "--", "true").returncode == 0 and os.path.exists(
        f"{stage.place}/good.json"
    )
    return Seen(
        "" if codes == [125, 125] else f"it was written through: {codes}",
        control,
        "could not write: it leads through a link",
    )


@scene("project files may only narrow")
def widen_by_a_project_file(stage: Stage) -> Seen:
    """Leave a .stockade.toml that switches confinement off or grants more."""
    texts = ('mode = "off"', '[filesystem]\nwrite = ["/"]', '[network]\negress = "open"', '[syscalls]\nfilter = "off"',
             'extends = "full-access"', '[environment]\nset = { LD_PRELOAD = "/tmp/evil.so" }')  # fmt: skip
    ran = []
    for text in texts:
        with open(f"{stage.place}/.stockade.toml", "w") as file:
            file.write(text + "\n")
        if cli(stage, "--", "true").returncode != 125:
            ran.append(text)
    with open(f"{stage.place}/.stockade.toml", "w") as file:
        file.write('[limits]\ntimeout = "50s"\n')
    return Seen("; ".join(ran), cli(stage, "--", "true").returncode == 0, f"{len(texts)} of {len(texts)} refused")


@scene("a regular file is wanted")
def pipe_for_a_project_file(stage: Stage) -> Seen:
    """Leave a named pipe as .stockade.toml, for the next start to hang or to go on without."""
    os.mkfifo(f"{stage.place}/.stockade.toml")
    code = cli(stage, "--", "true").returncode
    os.unlink(f"{stage.place}/.stockade.toml")
    return Seen(
        "" if code == 125 else f"it ended with {code}",
        cli(stage, "--", "true").returncode == 0,
        "refused: not a regular file",
    )


@scene("own state is never writable")
def forge_our_own_cache(stage: Stage) -> Seen:
    """Write stockade's own policy and cache through a grant of the directories above."""
    tops = [os.environ["XDG_CACHE_HOME"], os.environ["XDG_CONFIG_HOME"]]
    for top in tops:
        os.makedirs(top, exist_ok=True)
        os.chmod(top, 0o777)  # noqa: S103
    script = "".join(
        f"echo x > {top}/made; mkdir {top}/stockade; echo 'mode = \"off\"' > {top}/stockade/policy.toml; "
        for top in tops
    )
    stockade.run(script, cwd=stage.place, policy=policy(stage, filesystem={"write": tops}))
    written = [top for top in tops if os.path.exists(f"{top}/stockade/policy.toml")]
    control = all(os.path.exists(f"{top}/made") for top in tops)
    return Seen(", ".join(written), control, "beside it they are writable")


@scene("helpers from root's directories alone")
def a_bubblewrap_of_its_own(stage: Stage) -> Seen:
    """Leave a bwrap, nft and slirp4netns on PATH, as node_modules/.bin is."""
    marker = f"{stage.place}/fooled"
    for name in ("bwrap", "nft", "slirp4netns", "nsenter", "setsid"):
        with open(f"{stage.place}/{name}", "w") as file:
            file.write(f"#!/bin/sh\ntouch {marker}\n")
        os.chmod(f"{stage.place}/{name}", 0o755)  # noqa: S103
    for path in (f"{stage.place}:/usr/bin:/bin", ".:/usr/bin:/bin", ":/usr/bin:/bin"):
        cli(stage, "--", "/bin/true", env={"PATH": path})
    through = "it was started" if os.path.exists(marker) else ""
    subprocess.run([f"{stage.place}/bwrap"], check=False)
    return Seen(through, os.path.exists(marker), "not started from any of three PATHs")


@scene("cleared environment")
def variables_that_load_code(stage: Stage) -> Seen:
    """Have variables of the caller load code into the program (LD_PRELOAD, BASH_ENV, PYTHONSTARTUP, GIT_*)."""
    marker = f"{stage.place}/loaded"
    with open(f"{stage.place}/evil.sh", "w") as file:
        file.write(f"touch {marker}\n")
    env = {
        "BASH_ENV": f"{stage.place}/evil.sh",
        "ENV": f"{stage.place}/evil.sh",
        "PYTHONSTARTUP": f"{stage.place}/evil.sh",
    }
    done = cli(
        stage,
        "--policy",
        "workspace-write",
        "--",
        "/bin/bash",
        "-c",
        "env",
        env={**env, "LD_EVIL": "1", "GIT_DIR": "/evil"},
    )
    seen = [name for name in (*env, "LD_EVIL", "GIT_DIR") if f"{name}=" in done.stdout]
    through = ", ".join(seen) or ("it was loaded" if os.path.exists(marker) else "")
    subprocess.run(["/bin/bash", "-c", ":"], env={**os.environ, **env}, check=False)
    return Seen(through, os.path.exists(marker), "none of them is passed on")


@scene("no namespaces: refused")
def host_without_namespaces(stage: Stage) -> Seen:
    """Start where no namespace can be made: the command must not run without one."""
    script = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    command = [*CLI, "--policy", "workspace-write", "--", "touch", f"{stage.place}/ran"]
    enter = (
        "import ctypes, os, sys\n"
        "from stockade.sandbox.attacks.toolbox import enter_own\n"
        "enter_own()\n"
        "os.execv('/bin/sh', ['/bin/sh', '-c', *sys.argv[1:]])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", enter, script, "sh", *command], cwd=stage.place, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=60, check=False, preexec_fn=die_with_parent,
    )  # fmt: skip
    through = "it ran unconfined" if os.path.exists(f"{stage.place}/ran") else ""
    control = cli(stage, *command[4:]).returncode == 0 and os.path.exists(f"{stage.place}/ran")
    return Seen(
        through,
        control and done.returncode == 125,
        done.stderr.strip().splitlines()[0][:120] if done.stderr else "",
    )
