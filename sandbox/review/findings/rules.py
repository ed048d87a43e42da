"""What can be found, as data (pure): how bad it is as a rule, what it means, what to do. The looking is elsewhere."""

from __future__ import annotations

from stockade.policies.record import Record


class Rule(Record):
    """One kind of finding."""

    id: str
    severity: str
    """How bad it is unless the evidence says otherwise."""
    title: str
    meaning: str
    remedy: str


_ALL = (
    Rule(
        "exfiltrates", "critical", "sends a secret away",
        "A token that stood only in a planted credential, or in the environment, was in what it tried to send.",
        "Don't install it. If it ever ran on a machine with real credentials, replace them.",
    ),
    Rule(
        "leaks-secret", "high", "puts a secret where others read it",
        "A token from a planted credential turned up in its output, in a file that it wrote or on a command line: from "
        "there it reaches the model, the transcript, a commit or every user of the machine.",
        "Don't install it before its author can say why; run it confined, where it finds no credentials.",
    ),
    Rule(
        "reads-secrets", "medium", "opens credentials",
        "It opened a file that holds credentials. Nothing in the event asked for that.",
        "Run it confined: HOME is empty there, and filesystem.hide covers .env files.",
    ),
    Rule(
        "contacts-network", "medium", "contacts the network",
        "It tried to reach other machines. Nothing left the review; outside of it, these requests would be sent.",
        "Run it with no network, or with --allow for the hosts that it needs. Ask what is sent, and why.",
    ),
    Rule(
        "asks-metadata", "high", "asks the cloud for credentials",
        "It tried to reach an address at which clouds hand out the credentials of the machine.",
        "Don't install it. A confined run never reaches these addresses.",
    ),
    Rule(
        "writes-outside", "medium", "writes outside of its workspace",
        "It changed files that are neither in the project nor in a temporary directory.",
        "Run it confined: only the workspace can be made writable, and HOME is thrown away.",
    ),
    Rule(
        "deletes-files", "medium", "deletes files of the project",
        "Files of the project that it did not make were gone afterwards.",
        "Run it with a read-only or an overlay workspace.",
    ),
    Rule(
        "changes-files", "medium", "changes files that its event is not about",
        "It wrote into files of the project that the tool call did not name, or that nobody had called a tool for.",
        "Read the difference. Run it with a read-only or an overlay workspace, and look at what it would have written.",
    ),
    Rule(
        "agent-config", "critical", "changes the configuration of agents",
        "What it wrote decides what an agent runs or is told: it can switch other hooks off, add its own, or talk "
        "to the model.",
        "Don't install it. In a confined run these paths can't be written, whatever the workspace is.",
    ),
    Rule(
        "persists", "critical", "makes itself run again",
        "What it wrote is run later by something else: a shell, git, cron, a session or an editor. Removing the hook "
        "does not remove that.",
        "Don't install it. In a confined run these paths can't be written, and HOME is thrown away.",
    ),
    Rule(
        "env-files", "high", "changes files of environment variables",
        "Variables that it wrote there reach the agent's shell or the project's programs: PATH, proxies and preloaded "
        "libraries among them.",
        "Run it confined: .env files are hidden, .envrc is protected and CLAUDE_ENV_FILE is not passed.",
    ),
    Rule(
        "installs-packages", "high", "installs packages when it runs",
        "What a registry delivers at that moment is executed: another version, or another author's code, each time.",
        "Ask for pinned dependencies that are installed beforehand; run it with no network.",
    ),
    Rule(
        "spawns-daemons", "high", "leaves processes behind",
        "Processes went on running when the hook had answered: out of its host's timeout and of anybody's sight.",
        "Run it confined: everything that it started ends with it.",
    ),
    Rule(
        "exhausts", "high", "uses up the machine",
        "It reached a limit of processes, memory or disk that ordinary hooks are far from.",
        "Don't install it; with the limits of a confined run it harms itself alone.",
    ),
    Rule(
        "fails-open", "medium", "lets things happen when it fails",
        "For these events it ended in a way that its host takes for consent, or its text shows that it would.",
        "Run it with `stockade hook`, where a failure is a refusal; ask its author to refuse when in doubt.",
    ),
    Rule(
        "never-blocks", "low", "never refuses anything",
        "It looks like a guard, yet it had no objection to any of the destructive events.",
        "Don't count on it. Try it with `stockade hooks run` and an event that it should refuse.",
    ),
    Rule(
        "approves", "high", "approves destructive events",
        "It does not only not object: it tells the host to go ahead, so that the user is not asked.",
        "Don't install it, unless the host is to run everything without asking.",
    ),
    Rule(
        "hosts-differ", "info", "decides differently across hosts",
        "The same answer is a refusal to some hosts and none to others.",
        "Use it with the host that it was written for; `stockade hooks run --explain` shows what each makes of it.",
    ),
    Rule(
        "not-deterministic", "low", "answers the same event differently",
        "The same event, given twice in the same surroundings, got two answers.",
        "Find out what it depends on: time, chance, or what an earlier run left behind.",
    ),
    Rule(
        "needs-network", "medium", "answers differently when it can reach nothing",
        "Its answer depends on whether its network calls can be made.",
        "Run it with no network only if the answer that it gives then is the safe one.",
    ),
    Rule(
        "looks-around", "medium", "looks whether it is being watched",
        "It asks whether it runs in a sandbox, a container or a CI job: what it did here need not be what it does elsewhere.",
        "Read these lines, and what depends on them. No run can show what it does where it thinks itself alone.",
    ),
    Rule(
        "hides-code", "medium", "runs code that can't be read",
        "It decodes text and executes it, or executes what the network delivers.",
        "Decode it and read it; there is rarely an honest reason.",
    ),
    Rule(
        "odd-answer", "low", "answers in a way that hosts read differently",
        "Its answer has faults that hosts overlook, mend or reject, each in its own way.",
        "Ask its author for one JSON document on stdout, or none.",
    ),
    Rule(
        "times-out", "low", "does not answer in time",
        "It was still running when its time was over.",
        "Find out what it waits for: often the network, which the review does not let it reach.",
    ),
    Rule(
        "denied", "low", "was refused something by the sandbox",
        "It tried what the sandbox does not allow.",
        "Grant it only if the hook needs it: each hint says how.",
    ),
    Rule(
        "static", "low", "has faults that show without running it",
        "`stockade hooks check` found these in its configuration or its text. They are read by patterns.",
        "Each line says what to do.",
    ),
)  # fmt: skip
RULES = {rule.id: rule for rule in _ALL}
"""By id, those that are worst first."""
