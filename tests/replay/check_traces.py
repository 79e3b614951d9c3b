# SPDX-License-Identifier: Apache-2.0
"""usage: check_traces.py WEIR_REPLAY hits|runs|bytes REQUESTS

Replays the public traces: `hits` compares hit ratios with known ones, `runs`
the length of the runs that loads find, `bytes` every byte on CPU devices, of
the first REQUESTS requests (0: all, with batches and two ranks the first 2000).
Skipped where the traces are absent."""

import sys

from replay import Failures, first_requests, public_trace, replay, temporary_folder

program, what, n_requests = sys.argv[1:]
failures = Failures()


def near(counts, name, value, tolerance, text):
    print(f"{text}: {name} {counts[name]:.4f} (expected {value} ± {tolerance})")
    failures.expect(abs(counts[name] - value) <= tolerance, f"{text}: {name} is {counts[name]}")


def check_hits():
    one_tier = ("--offered", 0, "--device", "none", "--policy", "lru")
    for trace, pages, ratio, tolerance in (("conversation", 10000, 0.212, 0.006),
                                           ("conversation", 30000, 0.326, 0.006),
                                           ("conversation", 0, 0.366, 0.002),
                                           ("synthetic", 10000, 0.424, 0.008),
                                           ("synthetic", 0, 0.640, 0.002)):
        counts = replay(program, public_trace(trace), *one_tier, "--device-pages", pages)
        near(counts, "hit_ratio", ratio, tolerance, f"{trace}, {pages} pages")
    # The best of LRU, S3-FIFO and ARC at this size, less a hundredth.
    for trace, least in (("conversation", 0.215), ("synthetic", 0.426)):
        for policy in ("slru", "cost"):
            counts = replay(program, public_trace(trace), "--offered", 0, "--device", "none",
                            "--policy", policy, "--device-pages", 10000)
            print(f"{trace}, {policy}: hit_ratio {counts['hit_ratio']:.4f} (at least {least})")
            failures.expect(counts["hit_ratio"] >= least, f"{trace}, {policy}: hits are few")
    counts = replay(program, public_trace("conversation"), "--device", "none", "--device-pages",
                    3000, "--host-pages", 30000, "--write-back", "write_through")
    near(counts, "hit_ratio", 0.326, 0.01, "two tiers")
    near(counts, "hit_ratio_device", 0.065, 0.01, "two tiers")


def check_runs():
    tiers = ("--page-tokens", 64, "--device-pages", 24000, "--host-pages", 240000, "--write-back",
             "write_through", "--active", 40, "--passes", 8, "--device", "none")
    trace = public_trace("conversation")
    offered = replay(program, trace, *tiers)
    exact = replay(program, trace, *tiers, "--offered", 0)
    print(f"mean run {offered['mean_run_pages']:.2f}, hit ratio {offered['hit_ratio']:.4f}; "
          f"with no window {exact['mean_run_pages']:.2f}, {exact['hit_ratio']:.4f}; "
          f"{offered['seconds']:.1f} s a pass")
    failures.expect(offered["mean_run_pages"] >= 12, "runs are short")
    failures.expect(offered["hit_ratio"] >= exact["hit_ratio"] - 0.005, "the window costs hits")


def check_bytes():
    with temporary_folder() as folder:
        for name in ("conversation", "synthetic"):
            for batch, ranks, part in ((1, 1, int(n_requests)), (8, 2, int(n_requests) or 2000)):
                trace = first_requests(public_trace(name), part, folder)
                counts = replay(program, trace, "--device", "cpu", "--verify", "--shape", "2,2,8",
                                "--device-pages", 3000, "--host-pages", 12000, "--batch", batch,
                                "--ranks", ranks)
                print(f"{name}, batch {batch}, ranks {ranks}: {counts['loaded_pages']} pages "
                      f"loaded, {counts['wrong_bytes']} wrong bytes, {counts['races']} races, "
                      f"{counts['seconds']:.1f} s")
                failures.expect(counts["loaded_pages"] > 0, f"{name}: nothing was loaded")


{"hits": check_hits, "runs": check_runs, "bytes": check_bytes}[what]()
failures.exit()
