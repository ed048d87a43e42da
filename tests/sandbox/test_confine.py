"""``confine``: what is built there has the same box as a run, or is refused."""

from __future__ import annotations

import os
import subprocess

import pytest

import stockade
from stockade.policies.errors import RequestError

pytestmark = pytest.mark.kernel

NETWORK = "readlink /proc/self/ns/net; tail -n +3 /proc/net/dev | cut -d: -f1"


def policy_file(tmp_path, egress):
    path = tmp_path / f"{egress}.toml"
    allow = 'allow = ["api.example"]\n' if egress == "allow" else ""
    path.write_text(f'extends = "read-only"\n[network]\negress = "{egress}"\n{allow}')
    return path


@pytest.mark.parametrize("egress", ["record", "allow", "open"])
def test_a_leased_network_is_refused(tmp_path, egress):
    """Nobody would join the lease, and the box would be in the network of the caller."""
    with pytest.raises(RequestError, match="a leased network needs one"):
        stockade.confine(["true"], policy=policy_file(tmp_path, egress), cwd="/usr")


def test_the_network_is_the_boxs_own(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # nothing that only the caller can reach
    with stockade.confine(["sh", "-c", NETWORK], policy=policy_file(tmp_path, "none"), cwd="/usr") as start:
        done = subprocess.run(start.argv, env=start.env, pass_fds=start.fds, capture_output=True, text=True)
        assert start.classify(done.returncode).outcome == "exited", done.stderr
    namespace, *links = done.stdout.split()
    assert namespace != os.readlink("/proc/self/ns/net")
    assert links == ["lo"]
