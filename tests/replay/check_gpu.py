# SPDX-License-Identifier: Apache-2.0
"""usage: check_gpu.py WEIR_REPLAY DEMO_TRACE

Replays the shipped trace on a GPU with every engine, layout and number of ranks,
verifying every byte. Skipped without a GPU."""

import sys

from replay import SKIP, Failures, read_ids, replay, run

program, demo = sys.argv[1:]
failures = Failures()
requests = read_ids(demo)
BLOCK = ("--block-tokens", 16, "--device", "cuda", "--verify")
LAYOUTS = ("segmented", "layer_first", "page_first", "page_first_direct")

status, _, err = run(program, demo, *BLOCK)
if status == 3 and ("-ENODEV" in err or "-ENOTSUP" in err):
    print(f"skipped: {err}")
    sys.exit(SKIP)
failures.expect(status == 0, f"an unlimited tier: status {status}: {err}")


def check(*arguments):
    counts = replay(program, demo, *BLOCK, *arguments)
    text = " ".join(map(str, arguments))
    failures.expect(counts["wrong_bytes"] == 0 and counts["failed_transfers"] == 0,
                    f"{text}: {counts}")
    failures.expect(counts["requests"] == len(requests), f"{text}: requests")
    failures.expect(counts["loaded_pages"] > 0, f"{text}: nothing loaded")
    print(f"{text}: {counts['loaded_pages']} pages loaded, {counts['seconds']:.2f} s")


# Rows of 24 bytes are none of the tma kernel's; three layers, so that loads overlap.
for shape in ("3,2,24", "3,2,256"):
    for layout in LAYOUTS:
        for engine in ("auto", "tma", "vector", "copy"):
            check("--shape", shape, "--host-layout", layout, "--engine", engine, "--device-pages", 500,
                  "--host-pages", 1500, "--batch", 4)
for ranks in (1, 3):
    check("--shape", "2,2,128", "--ranks", ranks, "--page-tokens", 7, "--device-pages", 3400,
          "--host-pages", 3400, "--active", 6, "--batch", 2, "--passes", 2)
check("--shape", "4,1,1152", "--device-pages", 160, "--host-pages", 300, "--active", 8)

TWO = ("--ranks", 3, "--gpus", 2)
status, _, err = run(program, demo, *BLOCK, *TWO)
if status == 3 and "-ENODEV" in err:
    print("one GPU: nothing over two")
else:
    failures.expect(status == 0, f"two GPUs: status {status}: {err}")
    for engine in ("auto", "tma", "vector", "copy"):
        check("--shape", "2,2,128", "--engine", engine, *TWO, "--device-pages", 160,
              "--host-pages", 700, "--active", 6, "--batch", 2)

failures.exit()
