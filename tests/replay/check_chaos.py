# SPDX-License-Identifier: Apache-2.0
"""usage: check_chaos.py WEIR_REPLAY DEMO_TRACE SECONDS DEVICE

Serves a trace on bad days, several seeds and shapes: no wrong byte, no race,
and what is to happen does happen."""

import sys

from replay import SKIP, Failures, run

program, demo, seconds, device = sys.argv[1:]
failures = Failures()
always = ("completed", "abandoned", "failed_calls", "loaded_pages", "written_pages")
# What is drawn seldom, and must have come up in so many steps.
MANY_STEPS = 15000
seldom = ("aborted_steps", "stalled_copies", "checks", "forgets", "resets", "drains", "forks", "cuts")
cases = (
    (1, "--ranks", 2, "--shape", "4,2,16", "--policy", "slru"),
    (2, "--ranks", 1, "--shape", "2,1,48", "--write-back", "write_back"),
    (3, "--ranks", 2, "--shape", "3,2,16", "--host-layout", "page_first", "--offered", 0),
)
for seed, *options in cases:
    status, out, err = run(program, demo, "--block-tokens", 16, "--device-pages", 120, "--host-pages", 700,
                           "--device", device, "--chaos", seed, "--seconds", seconds, *options)
    if status == 3 and ("-ENODEV" in err or "-ENOTSUP" in err):
        print(f"skipped: {err}")
        sys.exit(SKIP)
    counts = {line.split()[0]: float(line.split()[1]) for line in out.splitlines()}
    failures.expect(status == 0, f"seed {seed}: status {status}\n{out}{err}")
    happens = always + (seldom if counts.get("steps", 0) > MANY_STEPS else ())
    for name in happens:
        failures.expect(counts.get(name, 0) > 0, f"seed {seed}: {name} is {counts.get(name)}")
failures.exit()
