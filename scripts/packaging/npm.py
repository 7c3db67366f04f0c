"""The npm packages: `tenure`, which is small, and one for each processor with the binary in it.

npm installs the one that fits, and skips the others: they are optional dependencies that name their system.
"""

import json
from pathlib import Path

from .common import SUMMARY, VERSION, File, Manual, Target, licences, packed, tar

# Takes the place of this process where Node can do that (22.15 or newer), so that signals and `kill` reach the program itself.
# Elsewhere it passes on the signals that can be passed on.
LAUNCHER = """\
#!/usr/bin/env node
"use strict";

const name = `tenure-${process.platform}-${process.arch}`;
let program;
try {
    program = require.resolve(`${name}/bin/tenure`);
} catch {
    console.error(`error: there is no tenure binary for ${process.platform} ${process.arch} here`);
    console.error(`hint: npm installs it as the optional package ${name}; see that optional packages are not turned off`);
    process.exit(2);
}

const words = process.argv.slice(2);
if (typeof process.execve === "function") {
    process.removeAllListeners("warning");
    process.on("warning", () => {});
    process.execve(program, [program, ...words], process.env);
}

const signals = ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"];
const child = require("node:child_process").spawn(program, words, { stdio: "inherit" });
for (const signal of signals) {
    process.on(signal, () => child.kill(signal));
}
child.on("error", (error) => {
    console.error(`error: cannot start ${program}: ${error.message}`);
    process.exit(2);
});
child.on("exit", (code, signal) => {
    if (signal === null) {
        process.exit(code);
    }
    for (const one of signals) {
        process.removeAllListeners(one);
    }
    process.kill(process.pid, signal);
});
"""

README = """\
# tenure

The `tenure` command: a job queue, leader election and daemons on storage you already have. `npx tenure serve` starts a broker on
`http://127.0.0.1:8080`, `npx tenure help` explains the rest.
"""


def make_for(target: Target, binary: bytes, manual: Manual, out: Path) -> Path:
    """The package with the binary for one processor."""
    name = f"tenure-linux-{target.npm}"
    files = [File("package/bin/tenure", binary, 0o755), *manual.files("package/share")]
    return pack(name, {"os": ["linux"], "cpu": [target.npm], "files": ["bin", "share"]}, files, out)


def make(targets: list[Target], out: Path) -> Path:
    """The package that users install, which depends on the packages with binaries."""
    fields = {
        "bin": {"tenure": "bin/tenure.js"},
        "files": ["bin"],
        "engines": {"node": ">=18"},
        "optionalDependencies": {f"tenure-linux-{target.npm}": VERSION for target in targets},
    }
    return pack("tenure", fields, [File("package/bin/tenure.js", LAUNCHER.encode(), 0o755)], out)


def pack(name: str, fields: dict, files: list[File], out: Path) -> Path:
    document = {"name": name, "version": VERSION, "description": f"Tenure: {SUMMARY}", "license": "MIT OR Apache-2.0", **fields}
    files = [
        *files,
        *licences("package"),
        File("package/README.md", README.encode()),
        File("package/package.json", (json.dumps(document, indent=2) + "\n").encode()),
    ]
    path = out / f"{name}-{VERSION}.tgz"
    path.write_bytes(packed(tar(files)))
    return path
