"""Devices: the box has its own directory of the few harmless ones."""

from __future__ import annotations

import glob
import os

from stockade.sandbox.attacks.toolbox import Absent, Given, add, any_of, attempt, bound, done, openable

GROUP = "Devices"
OWN_DEV = "a device directory of its own"
KINDS = {
    "disk": ("Open a disk, past every file system", "/dev/vd[a-z]", "/dev/sd[a-z]", "/dev/nvme[0-9]n1",
            "/dev/dm-*", "/dev/xvd[a-z]"),
    "loop": ("Attach a file as a disk", "/dev/loop-control", "/dev/loop0"),
    "virtual-machine": ("Make virtual machines (/dev/kvm)", "/dev/kvm"),
    "tunnel": ("Make a network device (/dev/net/tun)", "/dev/net/tun"),
    "vsock-device": ("Reach the hypervisor (/dev/vsock, /dev/vhost-*)", "/dev/vsock", "/dev/vhost-*"),
    "fuse": ("Serve a file system (/dev/fuse)", "/dev/fuse"),
    "consoles": ("Open the machine's consoles and what they show", "/dev/tty0", "/dev/tty1", "/dev/console",
            "/dev/vcs*"),
    "input": ("Read keyboards, or pretend to be one", "/dev/input/event*", "/dev/uinput", "/dev/hidraw*"),
    "graphics": ("Open graphics, sound and cameras", "/dev/dri/*", "/dev/snd/*", "/dev/video*", "/dev/fb0"),
    "serial": ("Open serial lines, USB and SCSI devices", "/dev/bus/usb/*/*", "/dev/sg[0-9]", "/dev/ttyS0"),
    "latency": ("Keep processors from sleeping, ask the hardware for randomness", "/dev/cpu_dma_latency",
            "/dev/hwrng", "/dev/cpu/*/msr"),
    "mapper": ("Arrange disks anew (device mapper, btrfs, zfs)", "/dev/mapper/control", "/dev/btrfs-control",
            "/dev/zfs"),
}  # fmt: skip


def matching(patterns: tuple[str, ...]) -> list[str]:
    return [path for pattern in patterns for path in glob.glob(pattern)]


def opened(patterns: tuple[str, ...]) -> object:
    if not matching(patterns):
        raise FileNotFoundError(2, "no such device")
    return any_of(openable, matching(patterns))


def outside(patterns: tuple[str, ...]) -> object:
    """Only asked, never opened: that alone has an effect on some."""
    if not matching(patterns):
        raise Absent("this host has no such device")
    return [path for path in matching(patterns) if os.access(path, os.R_OK)]


for _word, (_title, *_patterns) in KINDS.items():
    add(
        __name__, GROUP, _word, _title, bound(lambda given, patterns: opened(patterns), tuple(_patterns)), OWN_DEV,
        control=bound(lambda given, patterns: outside(patterns), tuple(_patterns)),
    )  # fmt: skip


@attempt(OWN_DEV, control=lambda given: [name for name in os.listdir("/dev/pts") if name.isdigit()])
def terminals_of_others(given: Given) -> object:
    """Open a terminal of another program (/dev/pts)"""
    return [name for name in os.listdir("/dev/pts") if name.isdigit() and openable(f"/dev/pts/{name}", os.O_RDWR)]


@attempt(OWN_DEV, control=lambda given: len(os.listdir("/dev")) > 20)
def other_devices(given: Given) -> object:
    """Find any device besides null, zero, full, random, urandom, tty, console and ptmx"""
    harmless = {"null", "zero", "full", "random", "urandom", "tty", "console", "ptmx", "pts", "shm", "fd", "stdin",
                "stdout", "stderr", "core"}  # fmt: skip
    return sorted(set(os.listdir("/dev")) - harmless)


@attempt("read-only mount", control=lambda given: os.access("/dev", os.W_OK) or os.access("/dev/shm", os.W_OK))  # noqa: S108
def plant_in_dev(given: Given) -> object:
    """Replace a device by a file that others will write into"""
    return any_of(lambda path: done(os.symlink, given.beside, path), ("/dev/evil", "/dev/pts/evil"))
