"""The system part of the view (pure): read-only host directories, private places, covered ones, /proc and /dev."""

from __future__ import annotations

from stockade.sandbox.mounts import BIND_RO, DATA, DEV, MASK, PROC, SYMLINK, TMPFS, Mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.policies.resolved import Resolved
    from stockade.sandbox.survey import Facts
    from stockade.sandbox.tree import HostTree

LEFT_OUT = frozenset(
    (
        "proc",
        "dev",
        "sys",
        "run",
        "tmp",
        "home",
        "root",
        "mnt",
        "media",
        "boot",
        "lost+found",
        "init",
        "oldroot",
        "newroot",
    )
)
"""Top-level names of the host that the view has in no form, or only as something of its own."""

SENSITIVE_DIRECTORIES = (
    "/etc/ssl/private", "/etc/sudoers.d", "/etc/kubernetes", "/etc/rancher", "/etc/docker", "/etc/wireguard",
    "/etc/openvpn", "/etc/NetworkManager/system-connections", "/etc/letsencrypt", "/etc/credstore",
    "/etc/credstore.encrypted", "/etc/ipsec.d",
    "/var/backups", "/var/mail", "/var/spool/mail", "/var/spool/cron", "/var/spool/at", "/var/log", "/var/crash",
    "/var/lib/docker", "/var/lib/containerd", "/var/lib/containers", "/var/lib/kubelet", "/var/lib/rancher",
    "/var/lib/k0s", "/var/lib/lxc", "/var/lib/lxd", "/var/lib/incus", "/var/lib/libvirt", "/var/lib/machines",
    "/var/lib/flatpak/repo", "/var/lib/sss", "/var/lib/NetworkManager", "/var/lib/bluetooth", "/var/lib/waydroid",
    "/var/lib/systemd/coredump", "/var/lib/cloud", "/var/lib/private", "/var/lib/tpm", "/var/run",
)  # fmt: skip

SENSITIVE_FILES = (
    "/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers", "/etc/krb5.keytab",
    "/etc/security/opasswd", "/etc/ipsec.secrets", "/etc/machine-secret",
    "/etc/crypttab",
)  # fmt: skip

MINIMAL_ETC = (
    "passwd", "group", "nsswitch.conf", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "timezone",
    "hosts", "host.conf", "resolv.conf", "gai.conf", "services", "protocols", "ssl/certs", "ssl/openssl.cnf",
    "ca-certificates",
    "pki/tls", "pki/ca-trust", "crypto-policies", "mime.types", "os-release", "locale.conf", "inputrc", "profile",
    "bash.bashrc", "magic",
)  # fmt: skip

COVERED = ("/tmp", "/var/tmp", "/run", "/home", "/root", "/mnt", "/media", "/dev/shm")  # noqa: S108
"""Places that the box replaces by its own, beside the caller's home."""

ROOT_ONLY_PLACES = ("/etc", "/var/lib", "/var/cache", "/var", "/opt", "/srv", "/usr/lib", "/usr/local")
"""Where a box that has to keep real root is searched for what only root may read."""


def covered_places(facts: Facts) -> tuple[str, ...]:
    """Directories that the box replaces by its own; none of them can be a workspace as a whole."""
    return (*COVERED, facts.home)


def system_mounts(policy: Resolved, facts: Facts, tree: HostTree) -> list[Mount]:
    root = [Mount(TMPFS, "/", reason="the root of the box", perms=0o755, frozen=True)]
    base = minimal_root(facts, tree) if policy.root == "minimal" else host_root(facts, tree)
    return [*root, *base, *own_places(policy, facts), *keys_cover(facts, tree), *cpu_view(tree)]


def host_root(facts: Facts, tree: HostTree) -> list[Mount]:
    """The host's top-level directories, read-only, with what is sensitive below them covered."""
    mounts = []
    for name in tree.names("/"):
        path = f"/{name}"
        node = tree.node(path)
        if name in LEFT_OUT or node is None:
            continue
        if node.kind == "link":
            mounts.append(Mount(SYMLINK, path, tree.readlink(path), "as on the host"))
        elif node.kind == "dir":
            mounts.append(Mount(BIND_RO, path, path, "the host, read-only"))
    return [*mounts, *covers(facts, tree)]


def covers(facts: Facts, tree: HostTree) -> list[Mount]:
    mounts = [cover(path) for path in SENSITIVE_DIRECTORIES if shows(path, "dir", facts, tree)]
    files = [path for path in (*SENSITIVE_FILES, *host_keys(tree)) if shows(path, "file", facts, tree)]
    mounts += [Mount(MASK, path, reason="sensitive") for path in files]
    if facts.kept_root:
        mounts += root_only(tree)
    return mounts


def shows(path: str, wanted: str, facts: Facts, tree: HostTree) -> bool:
    """Whether a sensitive object is there and the box's user could look into it.

    What its own modes keep from that user needs no mount: the box has no capability to pass them.
    """
    node = tree.node(path)
    if node is None or node.kind != wanted:
        return False
    if facts.kept_root:
        return True
    return bool(node.mode & 0o005) if facts.credentials is not None else tree.may_read(path)


def cover(path: str, reason: str = "sensitive") -> Mount:
    """An empty directory that can't be written: a write that vanished later would be a lie."""
    return Mount(TMPFS, path, reason=reason, size=4096, perms=0o555, frozen=True)


def host_keys(tree: HostTree) -> list[str]:
    return [f"/etc/ssh/{name}" for name in tree.names("/etc/ssh") if name.endswith("_key")]


def root_only(tree: HostTree) -> list[Mount]:
    """Real root owns the host's files, so that file modes protect nothing from it: cover what only root reads.

    /etc is searched to its ends; of the other places only what lies directly in them.
    """
    mounts = []
    waiting = list(ROOT_ONLY_PLACES)
    while waiting:
        place = waiting.pop()
        for name in tree.names(place):
            path = f"{place}/{name}"
            node = tree.node(path)
            if node is None or node.kind == "link":
                continue
            if not node.mode & 0o004:
                why = "only root may read it"
                mounts.append(cover(path, why) if node.kind == "dir" else Mount(MASK, path, reason=why))
            elif node.kind == "dir" and place.startswith("/etc"):
                waiting.append(path)
    return mounts


def minimal_root(facts: Facts, tree: HostTree) -> list[Mount]:
    mounts = [
        Mount(BIND_RO, "/usr", "/usr", "programs and libraries"),
        Mount(TMPFS, "/etc", reason="only what programs need to start", perms=0o755, frozen=True),
    ]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        node = tree.node(f"/{name}")
        if node is not None and node.kind == "link":
            mounts.append(Mount(SYMLINK, f"/{name}", tree.readlink(f"/{name}"), "as on the host"))
        elif node is not None:
            mounts.append(Mount(BIND_RO, f"/{name}", f"/{name}", "programs and libraries"))
    for name in MINIMAL_ETC:
        path = f"/etc/{name}"
        real = tree.real(path)
        if tree.node(real) is not None and not real.startswith("/run/"):
            mounts.append(Mount(BIND_RO, path, real, "programs need it to start"))
    return mounts


def own_places(policy: Resolved, facts: Facts) -> list[Mount]:
    """What the box has of its own: /dev, /proc, temporary directories, HOME."""
    tmp = policy.tmp
    part = None if tmp is None else max(tmp // 4, 1 << 20)
    mounts = [
        Mount(DEV, "/dev", reason="a device directory of its own", frozen=True),
        Mount(TMPFS, "/dev/shm", reason="private", size=part, perms=0o1777),  # noqa: S108
        Mount(TMPFS, "/tmp", reason="private", size=tmp, perms=0o1777),  # noqa: S108
        Mount(TMPFS, "/var/tmp", reason="private", size=part, perms=0o1777),  # noqa: S108
        Mount(TMPFS, "/run", reason="private: no sockets of the host", size=part, perms=0o755),
    ]
    mounts.append(proc(facts))
    if policy.home == "empty":
        mounts.append(Mount(TMPFS, facts.home, reason="an empty HOME", size=tmp, perms=0o700))
    return mounts


def proc(facts: Facts) -> Mount:
    """A fresh /proc, or none: the host's own would show, and give access to, processes outside."""
    if not facts.fresh_proc:
        return cover("/proc", "this host refuses a fresh /proc")
    return Mount(PROC, "/proc", reason="only the box's processes", frozen=facts.kept_root)


def keys_cover(facts: Facts, tree: HostTree) -> list[Mount]:
    """Kernel keys have no namespace: their list would name those of everybody with the uid of the run."""
    if not facts.fresh_proc or tree.node("/proc/keys") is None:
        return []
    return [Mount(MASK, "/proc/keys", reason="it names the caller's kernel keys")]


def cpu_view(tree: HostTree) -> list[Mount]:
    """What of /sys programs look at to count processors; the rest stays out."""
    path = "/sys/devices/system"
    return [Mount(BIND_RO, path, path, "processor and memory topology")] if kind(tree, path) == "dir" else []


def passwd_file(facts: Facts, tree: HostTree) -> list[Mount]:
    """The host's accounts, with the home of the box's user set to its HOME: ``~`` must not lead elsewhere.

    Nothing to mount where the host's own file says so already.
    """
    text = tree.text("/etc/passwd")
    listed = [line.split(":") for line in text.splitlines()]
    if any(len(row) > 5 and row[2] == str(facts.uid) and row[5] == facts.home for row in listed):
        return []
    entry = f"{facts.user}:x:{facts.uid}:{facts.gid}::{facts.home}:/bin/sh"
    lines = [entry] + [
        line
        for line in text.splitlines()
        if line.split(":")[2:3] != [str(facts.uid)] and not line.startswith(f"{facts.user}:")
    ]
    data = "".join(line + "\n" for line in lines).encode("utf-8", "surrogateescape")
    return [Mount(DATA, "/etc/passwd", reason="the home of the user inside is HOME", data=data)]


def name_files(tree: HostTree) -> list[Mount]:
    """Names inside a leased network: only its own resolver, and no hosts file that would answer before it."""
    why = "names are answered by the leased network's resolver"
    resolv = tree.real("/etc/resolv.conf")
    if not resolv.startswith(("/etc/", "/run/")):
        resolv = "/etc/resolv.conf"
    hosts = b"127.0.0.1 localhost stockade\n::1 localhost ip6-localhost ip6-loopback\n"
    return [
        Mount(DATA, resolv, reason=why, data=b"nameserver 127.0.0.1\noptions timeout:5 attempts:2\n"),
        Mount(DATA, tree.real("/etc/hosts"), reason=why, data=hosts),
    ]


def kind(tree: HostTree, path: str) -> str | None:
    node = tree.node(path)
    return None if node is None else node.kind
