"""Drives one target with atheris: ``drive.py TARGET WORKDIR [libFuzzer options]``, or ``--list``. Started by scripts/fuzz.

Coverage guides it: the packages under test are instrumented as they are imported, the checkers beside the targets
are not. New inputs go to WORKDIR, inputs that fail to WORKDIR as ``crash-...``, ``timeout-...`` or ``oom-...``.
"""

from __future__ import annotations

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
BOUNDS = {"-max_total_time": "120", "-timeout": "5", "-max_len": "4096", "-rss_limit_mb": "2048"}
"""What holds unless the caller says otherwise: seconds in all, seconds for an input, bytes, MiB."""


def dictionary(words: tuple[bytes, ...], folder: str) -> str:
    """libFuzzer's file of words for a target."""
    path = os.path.join(folder, ".words")
    with open(path, "w") as file:
        for word in words:
            file.write('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n')
    return path


def main(arguments: list[str]) -> None:
    import atheris

    sys.path.insert(0, HERE)
    with atheris.instrument_imports(include=["stockade", "tomllib"]):
        from targets import TARGETS
    if arguments == ["--list"]:
        print("\n".join(TARGETS))
        return
    name, folder, *given = arguments
    if name not in TARGETS:
        sys.exit(f"could not fuzz {name!r}: there is no such target\nuse one of {', '.join(TARGETS)}")
    target = TARGETS[name]
    os.makedirs(folder, exist_ok=True)
    seeds = os.path.join(HERE, "corpus", name)
    options = [
        f"{key}={value}" for key, value in BOUNDS.items() if not any(each.startswith(f"{key}=") for each in given)
    ]
    if target.words:
        options.append(f"-dict={dictionary(target.words, folder)}")
    options.append(f"-artifact_prefix={folder}/")
    atheris.Setup([sys.argv[0], folder, *([seeds] if os.path.isdir(seeds) else []), *options, *given], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
