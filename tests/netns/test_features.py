"""What a host offers for leased networks, found by looking at the thing itself; pure but for the real device."""

from __future__ import annotations

import errno
import os
import stat

import pytest

from stockade.netns import features
from stockade.policies.capability import CONNECTORS, EGRESS, settle

EVERYTHING = {"slirp4netns": "/usr/bin/slirp4netns", "pasta": "/usr/bin/pasta", "nft": "/usr/sbin/nft"}
NAMES = ("slirp4netns", "pasta", "nftables", "tun")
PACKAGES = {"slirp4netns": "slirp4netns", "pasta": "passt", "nftables": "nftables"}


@pytest.fixture
def device(tmp_path, monkeypatch):
    """A stand-in for the tun device that may be taken away and closed."""
    path = tmp_path / "tun"
    path.touch()
    monkeypatch.setattr(features, "TUN", str(path))
    monkeypatch.setattr(features, "why_not_tun", lambda _fd: "")
    return path


def states(found):
    return {each.name: each.state for each in found}


@pytest.mark.parametrize(
    ("absent", "missing"),
    [
        ((), ()),
        (("slirp4netns",), ("slirp4netns",)),
        (("pasta",), ("pasta",)),
        (("nft",), ("nftables",)),
        (("slirp4netns", "pasta", "nft"), ("slirp4netns", "pasta", "nftables")),
    ],
)
def test_each_tool_is_looked_for(device, absent, missing):
    asked = []

    def find(name):
        asked.append(name)
        return None if name in absent else EVERYTHING[name]

    found = features.tool_capabilities(find)
    assert states(found) == {name: "missing" if name in missing else "ok" for name in NAMES}
    assert asked == list(EVERYTHING)
    for each in found:
        if each.state == "ok":
            assert each.remedy == ""
        else:
            assert "is not installed" in each.detail
            assert each.remedy == f"Install the package {PACKAGES[each.name]}."


def test_found_tools_are_shown_with_their_place(device):
    found = {each.name: each.detail for each in features.tool_capabilities(EVERYTHING.get)}
    assert (found["slirp4netns"], found["nftables"]) == ("/usr/bin/slirp4netns", "/usr/sbin/nft")


def test_device_that_can_be_opened(device):
    found = features.tun_capability()
    assert (found.name, found.state, found.remedy) == ("tun", "ok", "")


def test_device_that_is_not_there(device):
    device.unlink()
    found = features.tun_capability()
    assert (found.state, found.detail) == ("missing", f"{device} does not exist")
    assert "modprobe tun" in found.remedy


@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero"])
def test_device_that_another_lies_over(monkeypatch, path):
    monkeypatch.setattr(features, "TUN", path)
    found = features.tun_capability()
    assert (found.state, found.detail) == (
        "missing",
        f"{path} is not the tun device: inappropriate ioctl for device",
    )
    assert "mknod" in found.remedy


@pytest.mark.user
@pytest.mark.parametrize("mode", [0o000, 0o200, 0o400])
def test_device_that_may_not_be_opened(device, mode):
    device.chmod(mode)
    found = features.tun_capability()
    assert found.state == "disabled"
    assert found.detail == f"{device} can't be opened (mode {mode:04o}): permission denied"
    assert f"chmod 0666 {device}" in found.remedy


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENODEV, errno.EACCES])
def test_device_that_the_kernel_refuses(device, monkeypatch, code):
    """As in a container whose device rules leave it out, or without the module."""

    def refuse(path, flags):
        assert flags & os.O_RDWR
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr(features.os, "open", refuse)
    found = features.tun_capability()
    assert found.state == "disabled"
    assert os.strerror(code).lower() in found.detail
    assert found.remedy


@pytest.mark.kernel
def test_the_device_of_this_host():
    found = features.tun_capability()
    usable = os.path.exists("/dev/net/tun") and os.access("/dev/net/tun", os.R_OK | os.W_OK)
    assert (found.state == "ok") == usable
    if usable:
        assert stat.S_ISCHR(os.stat("/dev/net/tun").st_mode)


@pytest.mark.parametrize("egress", EGRESS)
@pytest.mark.parametrize("absent", [(), ("slirp4netns",), ("pasta",), ("slirp4netns", "pasta"), ("nft",)])
def test_only_what_a_kind_needs_is_asked_of_the_host(device, egress, absent):
    """Recording lets nothing out: it needs no device."""
    device.unlink()
    found = features.tool_capabilities(lambda name: None if name in absent else EVERYTHING[name])
    wanted = dict.fromkeys(set(EGRESS[egress]) - {"leased-network"}, "required")
    missing = {each.name for each in settle({each.name: each for each in found}, wanted).missing}
    gone = {"tun", "nftables"} if "nft" in absent else {"tun"}
    assert missing == (
        gone if egress in ("allow", "open") else gone & {"nftables"} if egress == "record" else set()
    )


@pytest.mark.parametrize(
    ("absent", "lacking"),
    [
        ((), ()),
        (("slirp4netns",), ()),
        (("pasta",), ()),
        (("slirp4netns", "pasta"), ("slirp4netns or pasta",)),
        (("nft",), ("nftables",)),
        (("nft", "slirp4netns", "pasta"), ("slirp4netns or pasta", "nftables")),
    ],
)
def test_one_connector_is_enough(device, absent, lacking):
    found = features.tool_capabilities(lambda name: None if name in absent else EVERYTHING[name])
    assert features.lacking(found) == lacking


@pytest.mark.parametrize(
    ("asked", "absent", "missing"),
    [
        ("auto", (), ()),
        ("auto", ("slirp4netns",), ()),
        ("auto", ("pasta",), ()),
        ("auto", ("slirp4netns", "pasta"), ("slirp4netns",)),
        ("slirp4netns", ("pasta",), ()),
        ("slirp4netns", ("slirp4netns",), ("slirp4netns",)),
        ("pasta", ("slirp4netns",), ()),
        ("pasta", ("pasta",), ("pasta",)),
    ],
)
def test_the_connector_that_is_asked_for(device, asked, absent, missing):
    found = features.tool_capabilities(lambda name: None if name in absent else EVERYTHING[name])
    settled = settle({each.name: each for each in found}, {CONNECTORS[asked]: "required"})
    assert tuple(each.name for each in settled.missing) == missing
    if missing:
        remedies = {
            "auto": "Install the package slirp4netns. Or use pasta: Install the package passt.",
            "slirp4netns": "Install the package slirp4netns.",
            "pasta": "Install the package passt.",
        }
        assert settled.missing[0].remedy == remedies[asked]
