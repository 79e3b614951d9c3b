# SPDX-License-Identifier: Apache-2.0
"""Runs weir-replay for the checks beside this file."""

import json
import os
import subprocess
import sys
import tempfile

SKIP = 77


class Failures:
    """Collects what is wrong, so that one run tells all of it."""

    def __init__(self):
        self.count = 0

    def expect(self, condition, text):
        if not condition:
            self.count += 1
            print("FAILED:", text)

    def exit(self):
        sys.exit(1 if self.count else 0)


def run(program, *arguments):
    """Exit status, standard output, standard error."""
    done = subprocess.run([program, *map(str, arguments)], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def replay(program, trace, *arguments):
    """The JSON of a run that must succeed without a word on standard error."""
    command = [program, trace, *map(str, arguments), "--json", "-"]
    status, out, err = run(*command)
    if status != 0 or err:
        print(" ".join(command), f"\nexit status {status}\n{out}{err}")
        sys.exit(1)
    return json.loads(out)


def public_trace(name):
    """Path of a public trace; the check is skipped if it is not there."""
    here = os.path.dirname(os.path.abspath(__file__))
    beside_checkout = os.path.join(here, "..", "..", "..", "shared", "traces")
    folder = os.environ.get("WEIR_TRACES", beside_checkout)
    path = os.path.normpath(os.path.join(folder, f"mooncake_{name}_trace.jsonl"))
    if not os.path.exists(path):
        print(f"skipped: there is no {path}; WEIR_TRACES names the folder of the public traces")
        sys.exit(SKIP)
    return path


def first_requests(trace, n, folder):
    """A file with a trace's first n requests; the trace itself if n is 0."""
    if not n:
        return trace
    path = os.path.join(folder, f"first-{n}.jsonl")
    with open(trace, encoding="utf-8") as whole, open(path, "w", encoding="utf-8") as part:
        part.writelines(line for _, line in zip(range(n), whole))
    return path


def temporary_folder():
    return tempfile.TemporaryDirectory(prefix="weir-replay-")


def read_ids(trace):
    with open(trace, encoding="utf-8") as lines:
        return [json.loads(line)["hash_ids"] for line in lines]
