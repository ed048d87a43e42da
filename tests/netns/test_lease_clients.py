"""Programs that people use, inside a lease: they reach what is listed, fail at once where it is not, and are recorded."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest
import rig
from rig import EVIL, FIRST, GOOD

pytestmark = pytest.mark.kernel

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
INDEX, REGISTRY, FORGE = "index.example", "registry.example", "forge.example"

CURL = "curl --fail --silent --show-error --max-time 20"
NODE = """
require("http").get("http://HOST/", (answer) => {
    answer.pipe(process.stdout)
    if (answer.statusCode != 200) process.exitCode = 4
})
    .on("error", (error) => { console.error(error.code); process.exit(3) })
"""


def needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program, path=PATH) is None:
            pytest.skip(f"{program} is not installed")


def python_with_pip():
    """The interpreter of the system, or else the one that runs the tests."""
    for python in (rig.plain_python(), sys.executable):
        if subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode == 0:
            return python
    return None


# --- what the servers have ---------------------------------------------------------------------------------


def serve_repository(world):
    """A repository over plain HTTP, file by file."""
    top = os.path.join(world.top, "repository")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "init.defaultBranch=main"]
    for words in (["init", "--quiet", top], ["-C", top, "commit", "--quiet", "--allow-empty", "-m", "the first"]):
        subprocess.run(["git", *identity, *words], check=True, capture_output=True)
    subprocess.run(["git", "-C", top, "update-server-info"], check=True, capture_output=True)
    for directory, _subdirectories, files in os.walk(os.path.join(top, ".git")):
        for name in files:
            path = os.path.join(directory, name)
            with open(path, "rb") as file:
                world.pages["/repository" + path.removeprefix(f"{top}/.git")] = ("text/plain", file.read())


def serve_index(world):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as wheel:
        info = "demo-1.0.dist-info"
        wheel.writestr("demo.py", "VALUE = 42\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    name = "demo-1.0-py3-none-any.whl"
    page = f'<!DOCTYPE html><html><body><a href="/files/{name}">{name}</a></body></html>'
    world.pages |= {
        "/simple/demo/": ("text/html", page.encode()),
        f"/files/{name}": ("application/zip", content.getvalue()),
    }


def serve_registry(world):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, text in {
            "package.json": '{"name": "demo", "version": "1.0.0"}',
            "index.js": "module.exports = 42\n",
        }.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    data = content.getvalue()
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
    dist = {"tarball": f"http://{REGISTRY}/demo/-/demo-1.0.0.tgz", "integrity": integrity}
    versions = {"1.0.0": {"name": "demo", "version": "1.0.0", "dist": dist}}
    packument = {"name": "demo", "dist-tags": {"latest": "1.0.0"}, "versions": versions}
    world.pages["/demo"] = ("application/json", json.dumps(packument).encode())
    world.pages["/demo/-/demo-1.0.0.tgz"] = ("application/octet-stream", data)


# --- runs --------------------------------------------------------------------------------------------------


def start(world):
    for name in ("good", "secure", INDEX.partition(".")[0], REGISTRY.partition(".")[0], FORGE.partition(".")[0]):
        world.zone[f"{name}.example"] = [f"A {GOOD}"]
    world.zone["evil.example"] = [f"A {EVIL}"]


def thrice(world, command, host, **options):
    """Listed, not listed, recorded."""
    limits = {"memory": "none", "processes": "none"}
    return {
        "allow": world.run(command, allow=[host], limits=limits, **options),
        "refused": world.run(command, allow=["other.example"], limits=limits, **options),
        "record": world.run(command, egress="record", limits=limits, **options),
    }


def curl(world):
    start(world)
    return {
        "http": thrice(world, f"{CURL} http://good.example/", "good.example:80"),
        "https": thrice(world, f"{CURL} --insecure https://secure.example/", "secure.example"),
        "address": thrice(world, f"{CURL} http://{EVIL}/", f"{EVIL}:80"),
        "untrusted": world.run(f"{CURL} https://secure.example/", allow=["secure.example"]),
    }


def git(world):
    start(world)
    serve_repository(world)
    clone = f"rm -rf got; git clone --quiet http://{FORGE}/repository got && git -C got log --format=%s"
    return thrice(world, clone, f"{FORGE}:80")


def pip(world, python):
    start(world)
    serve_index(world)
    words = [python, "-I", "-m", "pip", "--disable-pip-version-check", "--isolated", "download", "--no-deps"]
    words += ["--retries=0", "--no-cache-dir", "--dest=out", f"--index-url=http://{INDEX}/simple/"]
    words += [f"--trusted-host={INDEX}", "demo"]
    read = {"filesystem": {"read": [os.path.dirname(os.path.dirname(python))]}} if "/usr/" not in python else {}
    found = thrice(world, words, f"{INDEX}:80", **read)
    return {**found, "files": sorted(os.listdir(os.path.join(world.place, "out")))}


def npm(world):
    start(world)
    serve_registry(world)
    command = "rm -rf node_modules; echo '{}' > package.json; npm install --no-audit --no-fund"
    command += (
        f" --no-update-notifier --fetch-retries=0 --registry=http://{REGISTRY}/ demo && node -p 'require(\"demo\")'"
    )
    return thrice(world, command, f"{REGISTRY}:80")


def node(world):
    start(world)
    return thrice(world, ["node", "-e", NODE.replace("HOST", "good.example")], "good.example:80")


def check(found, host, port, via, *, stdout=None):
    """A client that worked where its host is listed, and nowhere else; with what is on record."""
    allowed, refused, recorded = found["allow"], found["refused"], found["record"]
    assert (allowed["outcome"], allowed["code"]) == ("exited", 0), allowed["stderr"]
    assert stdout is None or allowed["stdout"].strip().endswith(stdout)
    assert rig.egress_of(allowed, host=host, port=port, allowed=True)
    assert allowed["denials"] == []
    assert ["tcp", GOOD, port] in allowed["wire"]
    assert refused["code"] not in (0, None), refused["reason"]
    assert rig.denied(refused, host)
    assert recorded["code"] not in (0, None), recorded["reason"]
    attempts = rig.egress_of(recorded, host=host, port=port, allowed=False)
    assert attempts[0]["via"] == via
    assert refused["wire"] == recorded["wire"] == recorded["asked"] == []
    return attempts[0]


# --- tests -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=FIRST)
def curled(request):
    needs("curl")
    return rig.run(curl, request.param)


def test_curl(curled):
    attempt = check(curled["http"], "good.example", 80, "http", stdout=f"tag {GOOD} 80 good.example")
    assert attempt["data"].startswith("GET / HTTP/1.1\nHost: good.example\nUser-Agent: curl/")


def test_curl_with_tls(curled):
    attempt = check(curled["https"], "secure.example", 443, "tls", stdout=f"tag {GOOD} 443 secure.example")
    assert "server name secure.example" in attempt["data"]


def test_curl_sees_the_certificate_of_the_server(curled):
    """Nothing stands between: the server's own certificate is judged, and here found untrusted."""
    run = curled["untrusted"]
    assert run["code"] == 60
    assert rig.egress_of(run, host="secure.example", allowed=True)
    assert run["denials"] == []


def test_curl_to_an_address(curled):
    found = curled["address"]
    assert found["allow"]["stdout"].strip() == f"tag {EVIL} 80 {EVIL}"
    assert found["refused"]["code"] == 7
    assert rig.denied(found["refused"], f"{EVIL}:80")
    (attempt,) = rig.egress_of(found["record"], host=EVIL, port=80)
    assert attempt["via"] == "http"


@pytest.mark.parametrize("identity", FIRST)
def test_git(identity):
    needs("git")
    attempt = check(rig.run(git, identity), FORGE, 80, "http", stdout="the first")
    assert attempt["data"].startswith("GET /repository/info/refs?service=git-upload-pack")


@pytest.mark.parametrize("identity", FIRST)
def test_pip(identity):
    python = python_with_pip()
    if python is None:
        pytest.skip("pip is not installed")
    found = rig.run(pip, identity, python)
    assert found["files"] == ["demo-1.0-py3-none-any.whl"]
    assert check(found, INDEX, 80, "http")["data"].startswith("GET /simple/demo/ HTTP/1.1")


@pytest.mark.parametrize("identity", FIRST)
def test_npm(identity):
    needs("npm", "node")
    assert check(rig.run(npm, identity), REGISTRY, 80, "http", stdout="42")["data"].startswith("GET /demo HTTP/1.1")


@pytest.mark.parametrize("identity", FIRST)
def test_node(identity):
    needs("node")
    check(rig.run(node, identity), "good.example", 80, "http", stdout=f"tag {GOOD} 80 good.example")
