"""Which setting of the host refuses a namespace: from errno and what the settings say."""

from __future__ import annotations

import errno

import pytest

from stockade.policies.capability import Capability
from stockade.sandbox import userns

CLONE = "/proc/sys/kernel/unprivileged_userns_clone"
APPARMOR = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
MOST = "/proc/sys/user/max_user_namespaces"


def explain(name, code, **settings):
    return userns.explain(name, code, "bwrap said something", read=lambda path: settings.get(path, ""))


@pytest.mark.parametrize(
    ("name", "code", "settings", "state", "detail", "remedy"),
    [
        (
            "user",
            errno.ENOSPC,
            {MOST: "0"},
            "disabled",
            "user.max_user_namespaces = 0",
            "sysctl user.max_user_namespaces",
        ),
        ("user", errno.ENOSPC, {MOST: "31231"}, "disabled", "this is a box already", "outside of the sandbox"),
        ("user", errno.ENOSPC, {}, "disabled", "user.max_user_namespaces = unknown", "sysctl"),
        ("net", errno.ENOSPC, {}, "disabled", "no more net namespaces", "user.max_net_namespaces"),
        ("pid", errno.ENOSPC, {}, "disabled", "user.max_pid_namespaces", "user.max_pid_namespaces"),
        (
            "user",
            errno.EPERM,
            {CLONE: "0"},
            "disabled",
            "unprivileged_userns_clone = 0",
            "unprivileged_userns_clone=1",
        ),
        ("user", errno.EPERM, {CLONE: "1", APPARMOR: "1"}, "disabled", "AppArmor", "bwrap-userns-restrict"),
        ("user", errno.EPERM, {APPARMOR: "0"}, "disabled", "(EPERM)", "seccomp=unconfined"),
        ("user", errno.EPERM, {}, "disabled", "(EPERM)", "seccomp=unconfined"),
        ("mnt", errno.EPERM, {}, "disabled", "making a mnt namespace", "seccomp=unconfined"),
        ("user", errno.ENOSYS, {}, "disabled", "(ENOSYS)", "seccomp=unconfined"),
        ("user", errno.EINVAL, {}, "disabled", "(EINVAL)", "outside"),
        ("user", 4711, {}, "disabled", "(4711)", "outside"),
        ("user", errno.EAGAIN, {}, "unknown", "too many processes", "ulimit -u"),
        ("user", errno.EAGAIN, {CLONE: "0"}, "disabled", "unprivileged_userns_clone", "sysctl"),
    ],
)
def test_explain(name, code, settings, state, detail, remedy):
    found = explain(name, code, **settings)
    assert (found.name, found.state) == ("user-namespaces", state)
    assert detail in found.detail
    assert remedy in found.remedy


def test_a_full_table_outranks_the_other_settings():
    assert "max_user_namespaces" in explain("user", errno.ENOSPC, **{CLONE: "0", APPARMOR: "1"}).detail


@pytest.mark.parametrize("code", sorted(errno.errorcode))
def test_every_refusal_has_a_remedy_and_one_line(code):
    for name in userns.LIMITS:
        found = explain(name, code)
        assert found.state != "ok"
        assert found.remedy
        assert "\n" not in found.detail + found.remedy


def test_when_namespaces_can_be_made_the_words_of_bwrap_are_quoted(monkeypatch):
    monkeypatch.setattr(userns, "first_refused", lambda: None)
    monkeypatch.setattr(userns, "short_of_processes", lambda: False, raising=False)
    monkeypatch.setattr(userns, "setting", lambda path: "")
    assert "bwrap: no\\x1b" in userns.why_not("bwrap: no\x1b").detail
    assert "said nothing" in userns.why_not("").detail
    monkeypatch.setattr(userns, "setting", lambda path: "1")
    assert "AppArmor" in userns.why_not("bwrap: setting up uid map: Permission denied").detail


def test_a_setting_that_is_not_there_is_empty():
    assert userns.setting("/proc/sys/kernel/no-such-setting") == ""
    assert userns.setting("/proc/sys/kernel/ostype") == "Linux"


@pytest.mark.kernel
def test_this_host_makes_every_namespace():
    assert userns.first_refused() is None


def test_the_answer_is_a_capability():
    assert isinstance(explain("user", errno.EPERM), Capability)
