"""Which commands fetch code from the network and run it. Pure."""

from __future__ import annotations

from stockade.policies.record import Record
from stockade.sandbox.hooks.words import SHELLS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.sandbox.hooks.shelltext import Command

INSTALLS = {
    "npm": ("install", "i", "ci", "add", "update", "exec", "x", "create", "init"),
    "pnpm": ("install", "i", "add", "dlx", "update", "up", "create"),
    "yarn": ("install", "add", "dlx", "up", "upgrade", "create"),
    "bun": ("install", "i", "add", "x", "update", "create"),
    "pip": ("install", "download"),
    "pip3": ("install", "download"),
    "pipx": ("install", "run", "upgrade"),
    "poetry": ("install", "add", "update"),
    "conda": ("install", "create", "update"),
    "cargo": ("install",),
    "go": ("install", "get"),
    "gem": ("install",),
    "bundle": ("install",),
    "composer": ("install", "require", "update"),
    "apt": ("install", "update", "upgrade"),
    "apt-get": ("install", "update", "upgrade"),
    "apk": ("add",),
    "brew": ("install", "upgrade"),
}
ALWAYS = ("npx", "bunx", "uvx", "pnpx")
OFFLINE = ("--offline", "--no-install", "--no", "--no-index", "--prefer-offline", "--dry-run")
LOADERS = ("curl", "wget", "fetch")
RUNS = (*SHELLS, "python", "python3", "node", "perl", "ruby", "php", "bun", "deno", "sudo")
REMEDY = "Install it once beforehand, in a fixed version, and call what is installed."


class Fetched(Record):
    """What a command fetches."""

    code: str
    severity: str
    text: str
    remedy: str


def fetched(command: Command, before: Command | None) -> Fetched | None:
    """What a command fetches, ``before`` being the one before it in the text; None if it fetches nothing."""
    texts = bare(command.texts())
    if not texts:
        return None
    name = texts[0].rpartition("/")[2]
    if name in RUNS and command.before in ("|", "|&") and before is not None and before.name in LOADERS:
        return remote(f"what {before.name} fetches is run by {name} as it comes")
    if name in (*SHELLS, "eval", "source", ".") and loads(command):
        return remote(f"what is fetched is run by {name} as it comes")
    if any(each in OFFLINE for each in texts):
        return None
    verb = next((each for each in texts[1:] if not each.startswith("-")), "")
    if name in ALWAYS or verb in INSTALLS.get(name, ()):
        return Fetched("network_install", "high", f"{said(name, verb)} fetches code when the hook runs", REMEDY)
    if name.startswith("python") and texts[1:3] == ("-m", "pip") and "install" in texts[3:]:
        return Fetched("network_install", "high", "pip install fetches code when the hook runs", REMEDY)
    if name == "uv" and verb in ("run", "tool", "pip", "sync", "add"):
        return uv(texts, verb)
    if name == "deno" and any(each.startswith(("http://", "https://", "npm:", "jsr:")) for each in texts[1:]):
        return remote("deno runs code from the network")
    return None


def said(name: str, verb: str) -> str:
    return name if name in ALWAYS else f"{name} {verb}"


def remote(text: str) -> Fetched:
    return Fetched("remote_code", "high", text, "Fetch it once, read it, keep it beside the hook.")


def uv(texts: tuple[str, ...], verb: str) -> Fetched | None:
    if "--no-sync" in texts or "--frozen" in texts:
        return None
    severity = "medium" if verb in ("run", "sync") else "high"
    return Fetched("network_install", severity, f"uv {verb} may fetch packages when the hook runs", REMEDY)


def loads(command: Command) -> bool:
    """Whether a substitution in a command's words fetches something: ``sh -c "$(curl ...)"``."""
    inner = (text.lstrip() for word in command.words for text in word.inner)
    return any(text.split(None, 1)[:1] and text.split(None, 1)[0] in LOADERS for text in inner)


def bare(texts: tuple[str, ...]) -> tuple[str, ...]:
    """A command without ``sudo``, ``env`` and the like before it."""
    from stockade.sandbox.hooks.scripts import launched

    if texts and texts[0] == "sudo":
        texts = texts[1:]
    return texts[launched(texts) :] if texts else ()
