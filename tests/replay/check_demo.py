# SPDX-License-Identifier: Apache-2.0
"""usage: check_demo.py WEIR_REPLAY DEMO_TRACE REQUESTS

Replays the first REQUESTS requests (0: all) of the shipped trace with every
policy, layout, number of ranks and batch on CPU devices, verifying every byte,
and compares hits with a model."""

import sys
from collections import OrderedDict

from replay import Failures, first_requests, read_ids, replay, temporary_folder

program, demo, n_requests = sys.argv[1:]
folder = temporary_folder()
demo = first_requests(demo, int(n_requests), folder.name)
failures = Failures()
BLOCK = ("--block-tokens", 16, "--page-tokens", 16)
# Rows of 24 bytes are no power of two; three layers, so that loads overlap.
DEVICE = (*BLOCK, "--device", "cpu", "--verify", "--shape", "3,2,24")
requests = read_ids(demo)
total = sum(map(len, requests))


def lru_hits(capacity):
    """Leading pages that a plain lru cache of so many pages holds."""
    cache = OrderedDict()
    hits = 0
    for ids in requests:
        for page in ids:
            if page not in cache:
                break
            hits += 1
        for page in reversed(ids):
            cache[page] = True
            cache.move_to_end(page)
        while len(cache) > capacity:
            cache.popitem(last=False)
    return hits


def check(counts, text):
    failures.expect(counts["wrong_bytes"] == 0 and counts["races"] == 0, f"{text}: {counts}")
    failures.expect(counts["requests"] == len(requests), f"{text}: requests")
    failures.expect(counts["too_large"] == 0, f"{text}: {counts['too_large']} were too large")
    failures.expect(counts["pages"] == total, f"{text}: pages")
    hits = counts["hit_pages_device"] + counts["hit_pages_host"]
    failures.expect(abs(counts["hit_ratio"] - hits / total) < 1e-9, f"{text}: hit_ratio")


def run(*arguments):
    counts = replay(program, demo, *arguments)
    check(counts, " ".join(map(str, arguments)))
    return counts


# Hits.
distinct = len({page for ids in requests for page in ids})
for device in ((*BLOCK, "--device", "none"), DEVICE):
    counts = run(*device)
    failures.expect(counts["hit_pages_device"] == total - distinct,
                    f"unlimited: {counts['hit_pages_device']} hits, not {total - distinct}")
    failures.expect(counts["evicted_device_pages"] == 0, f"unlimited, but evicts: {counts}")
for pages in (300, 600, 1000):
    counts = run(*BLOCK, "--device", "none", "--device-pages", pages, "--offered", 0)
    expected = lru_hits(pages) / total
    failures.expect(abs(counts["hit_ratio"] - expected) < 0.01,
                    f"lru, {pages} pages: {counts['hit_ratio']}, the model {expected}")
    counts = run(*BLOCK, "--device", "none", "--device-pages", pages, "--host-pages", 20000)
    failures.expect(counts["hit_pages_device"] + counts["hit_pages_host"] == total - distinct,
                    f"{pages} pages and a host tier that holds all: {counts}")
    failures.expect(counts["loaded_pages"] >= counts["hit_pages_host"] > 0, f"loads: {counts}")

# The same calls give the same result.
same = [run(*BLOCK, "--device-pages", 500, "--host-pages", 1500, "--batch", 4) for _ in range(2)]
for counts in same:
    del counts["seconds"]
failures.expect(same[0] == same[1], f"two runs differ: {same}")

# Bytes.
POLICIES = ("lru", "slru", "lfu", "fifo")
WRITE_BACKS = ("write_through", "write_through_selective(2)", "write_back", "never")
LAYOUTS = ("segmented", "layer_first", "page_first", "page_first_direct")
TIERS = ("--device-pages", 500, "--host-pages", 1500)
for policy in POLICIES:
    for write_back in WRITE_BACKS:
        counts = run(*DEVICE, *TIERS, "--policy", policy, "--write-back", write_back)
        failures.expect((counts["loaded_pages"] > 0) == (write_back != "never"),
                        f"{policy}, {write_back}: {counts['loaded_pages']} pages loaded")
for layout in LAYOUTS:
    for ranks in (1, 2):
        for batch in (1, 8):
            counts = run(*DEVICE, "--device-pages", 1000, "--host-pages", 1500, "--host-layout",
                         layout, "--ranks", ranks, "--batch", batch)
            failures.expect(counts["loaded_pages"] > 0, f"{layout}: nothing loaded")

# Decoding, with pages that end neither with a block nor with an answer.
for page_tokens in (1, 7, 16, 40):
    pages = 24000 // page_tokens
    counts = replay(program, demo, "--block-tokens", 16, "--page-tokens", page_tokens, "--device",
                    "cpu", "--verify", "--shape", "1,2,8", "--device-pages", pages, "--host-pages",
                    pages, "--active", 6, "--batch", 2)
    failures.expect(counts["wrong_bytes"] == 0 and counts["races"] == 0 and
                    counts["too_large"] == 0, f"--page-tokens {page_tokens}: {counts}")
    failures.expect(counts["decoded_tokens"] > 20 * len(requests), f"--page-tokens {page_tokens}: {counts}")

# So few pages that sequences wait for one another or are cut short.
counts = run(*DEVICE, "--device-pages", 160, "--host-pages", 300, "--active", 8, "--passes", 2)
failures.expect(counts["cut_short"] < len(requests), f"every answer was cut short: {counts}")

failures.exit()
