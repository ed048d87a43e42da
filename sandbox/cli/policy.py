"""``stockade policy``: list, show, check and explain."""

from __future__ import annotations

import os
import sys

from stockade.policies.errors import PolicyError
from stockade.sandbox.cli import exits, shared
from stockade.sandbox.cli.document import render
from stockade.sandbox.cli.options import UsageError, parse, render_help
from stockade.sandbox.cli.style import colour_on, escape, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE = "stockade policy list | show NAME|FILE | check FILE... | explain [OPTIONS]"
SUMMARY = "Look at policies. `explain` takes the policy options of `run` and shows which layer set each field."
OPTIONS = (*shared.POLICY_OPTIONS, shared.JSON, shared.HELP)
ABOUT = {
    "read-only": "the host read-only, no network, an empty HOME; the default of run",
    "workspace-write": "the same, and the workspace can be written",
    "hook": "for an agent's hooks: read-only, ten seconds",
    "build": "for builds and installs: workspace writable, larger limits",
    "full-access": "no confinement at all; foreign code is warned about",
}


def main(argv: Sequence[str]) -> int:
    parsed = parse(OPTIONS, argv, rest="args")
    if parsed.values["help"] or not parsed.rest:
        sys.stdout.write(render_help(USAGE, SUMMARY, OPTIONS, ""))
        return exits.OK if parsed.values["help"] else exits.FAILED
    verb, *names = parsed.rest
    as_json = shared.as_document(parsed.values)
    if verb == "list" and not names:
        return list_presets(as_json=as_json)
    if verb == "show" and len(names) == 1:
        return show(names[0], as_json=as_json)
    if verb == "check" and names:
        return check(names, as_json=as_json)
    if verb == "explain" and not names:
        return explain(parsed.values, as_json=as_json)
    raise UsageError(f"could not understand `policy {escape(' '.join(parsed.rest))}`", remedy=f"Usage: {USAGE}")


def list_presets(*, as_json: bool) -> int:
    from stockade.policies.presets import preset_names

    rows = [[name, ABOUT.get(name, "")] for name in preset_names()]
    if as_json:
        sys.stdout.write(
            render(
                {
                    "schema": "stockade.presets/1",
                    "presets": [{"name": name, "about": about} for name, about in rows],
                }
            )
        )
    else:
        sys.stdout.write(table(rows, colour_on(sys.stdout)))
    return exits.OK


def show(name: str, *, as_json: bool) -> int:
    from stockade.policies.explain import to_dict, to_toml
    from stockade.policies.resolve import resolve

    found = resolve(
        base=name,
        workspace="/usr",
        environ={},
        system_file="/nonexistent",
        user_file="/nonexistent",
        discover_project=False,
    )
    sys.stdout.write(render(to_dict(found.resolved)) if as_json else to_toml(found.resolved))
    return exits.OK


def check(paths: Sequence[str], *, as_json: bool) -> int:
    from stockade.policies.resolve import load_policy

    found = []
    for path in paths:
        try:
            load_policy(path)
            found.append({"file": path, "ok": True, "message": "", "remedy": ""})
        except PolicyError as error:
            found.append({"file": path, "ok": False, "message": error.message, "remedy": error.remedy})
    if as_json:
        sys.stdout.write(render({"schema": "stockade.check/1", "policies": found}))
    else:
        for each in found:
            text = "ok" if each["ok"] else "\n    ".join(filter(None, (str(each["message"]), str(each["remedy"]))))
            sys.stdout.write(f"{escape(str(each['file']))}: {text}\n")
    return exits.OK if all(each["ok"] for each in found) else exits.NOT_GOOD


def explain(values: dict[str, object], *, as_json: bool) -> int:
    from stockade.policies.explain import explain as rows_of
    from stockade.policies.explain import routes
    from stockade.sandbox import policycache
    from stockade.sandbox.request import directory

    cwd = values["cwd"]
    workspace = directory(None if cwd is None else os.fspath(str(cwd)))
    named = None if values["policy"] is None else str(values["policy"])
    resolved, sources, _markers = policycache.work_out(named, None, workspace, shared.policy_layer(values))
    rows, ways = rows_of(resolved), routes(resolved)
    if as_json:
        fields = [{"key": key, "value": value, "layer": layer} for key, value, layer in rows]
        document = {"fields": fields, "routes": [way.as_dict() for way in ways], "looked_at": list(sources)}
        sys.stdout.write(render({"schema": "stockade.explain/1", **document}))
    else:
        coloured = colour_on(sys.stdout)
        sys.stdout.write(table([["key", "value", "set by"], *map(list, rows)], coloured, header=True))
        if ways:
            shown = [[way.entry, way.kind, way.way] for way in ways]
            sys.stdout.write(table([["host", "listed in", "goes"], *shown], coloured, header=True))
        from stockade.sandbox import cgrouptrial

        found = cgrouptrial.capability(tried=False)
        sys.stdout.write(f"cgroup {found.state}: {escape(found.detail)}\n")
    return exits.OK
