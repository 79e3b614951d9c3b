# SPDX-License-Identifier: Apache-2.0
"""usage: check_bench.py WEIR_BENCH copy|overlap|pin|launch|index|options

Runs weir-bench on the CPU device with tiny sizes: that the JSON holds what was
asked for, that bytes are verified, that damage is found. No time is looked at."""

import json
import os
import subprocess
import sys
import tempfile

failures = 0

SUBJECTS = {
    "copy": ["--bytes", "100000", "--layers", "3", "--page-tokens", "4", "--row-bytes", "128,132",
             "--layouts", "segmented,page_first", "--runs", "1,2", "--link-gbps", "0"],
    "overlap": ["--layers", "3", "--pages", "8", "--page-tokens", "4", "--row-bytes", "128",
                "--ms", "0.6", "--chain", "20", "--runs", "1,4", "--link-gbps", "0"],
    "pin": ["--mib", "1,2", "--threads", "1,2"],
    "gather": ["--row-bytes", "4096,512,16", "--experts", "1,3", "--ms", "0.5", "--batch", "2",
               "--link-gbps", "0"],
    "launch": ["--layers", "2,3", "--pages", "1,4", "--link-gbps", "0"],
    "index": ["--pages", "1000,3000", "--page-tokens", "16,64", "--leaves", "5000", "--seqs", "9"],
}
FEW = ["--device", "cpu", "--repeats", "2", "--warm-up", "1"]
QUANTITY = {"median", "p5", "p95", "p99", "spread", "n"}


def expect(condition, text):
    global failures
    if not condition:
        failures += 1
        print("FAILED:", text)


def run(program, *arguments):
    done = subprocess.run([program, *arguments], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def result(program, subject, *arguments, status=0):
    command = [subject, *FEW, *SUBJECTS[subject], *arguments, "--json", "-"]
    got, out, err = run(program, *command)
    if got != status or err:
        print(" ".join(command), f"\nexit status {got}, must be {status}\n{out}{err}")
        sys.exit(1)
    return json.loads(out)


def check_common(subject, found):
    expect(found["benchmark"] == subject, "benchmark")
    expect(found["date"].endswith("Z") and len(found["date"]) == 20, f"date {found['date']}")
    expect(found["machine"]["device"] == "cpu", "device")
    expect(found["machine"]["cpus"] >= 1, "cpus")
    expect(found["settings"]["repeats"] == 2, "repeats")
    expect(found["settings"]["verified"] is True, "verified by default")
    expect(found["results"], "results")
    for row in found["results"]:
        expect(row.get("wrong_bytes", 0) == 0, f"wrong bytes in {row}")
        for value in row.values():
            if isinstance(value, dict):
                expect(set(value) == QUANTITY, f"{value} is no quantity")
                expect(value["n"] == 2 and value["p5"] <= value["median"] <= value["p95"],
                       f"quantiles of {value}")


def check_planted(program, subject, *arguments):
    found = result(program, subject, *arguments, "--plant-error", status=1)
    rows = [row for row in found["results"] if "wrong_bytes" in row]
    expect(rows and all(row["wrong_bytes"] > 0 for row in rows), f"planted errors of {subject}")


def check_copy(program):
    found = result(program, "copy")
    check_common("copy", found)
    rows = found["results"]
    points = {(row["engine"], row["direction"], row["layout"], row["row_bytes"], row["run_pages"])
              for row in rows}
    expect(len(points) == len(rows) == 2 * 2 * 2 * 2 * 2, f"{len(rows)} rows")
    for row in rows:
        whole = row["engine"] == "auto" or row["row_bytes"] == 128
        expect(("gbps" in row) == whole, f"measured or skipped: {row}")
        page = row["row_bytes"] * 4 * 3 * 2
        expect(row["bytes"] % page == 0 and 100000 - 2 * page < row["bytes"] <= 100000,
               f"bytes of {row}")
    check_planted(program, "copy", "--engines", "auto,register")
    queued = result(program, "copy", "--queued", "3")
    check_common("copy", queued)
    expect(queued["settings"]["queued"] == 3, "calls in a row")
    kernels = result(program, "copy", "--engines", "tma,vector,copy", "--ctas", "1,2",
                     "--rings", "6x32768,3x16384")["results"]
    expect(all("skipped" in row for row in kernels), "the CPU device has no engines")
    one = [row for row in kernels if row["layout"] == "segmented" and row["row_bytes"] == 128
           and row["run_pages"] == 1 and row["direction"] == "load"]
    expect(sorted((row["engine"], row["ctas"], row["ring"]) for row in one) ==
           [("copy", 0, "default")] +
           [("tma", ctas, ring) for ctas in (1, 2) for ring in ("3x16384", "6x32768")] +
           [("vector", 1, "default"), ("vector", 2, "default")], "CTAs and rings")


def check_overlap(program):
    found = result(program, "overlap", "--victims", "1")
    check_common("overlap", found)
    rows = found["results"]
    modes = ["forward alone", "load all, then forward",
             "register 2 x 1024 threads, a launch a layer",
             "register 6 x 1024 threads, a launch a layer", "auto, runs of 1", "auto, runs of 4"]
    for shape in ("big", "short", "memory", "cooperative"):
        for when in ("own", "previous"):
            some = [row for row in rows if row["shape"] == shape and row.get("enqueued") == when]
            expect([row["mode"] for row in some] == modes, f"modes of {shape}, {when}")
            expect(all("efficiency" in row and "enqueue_us" in row for row in some[1:]),
                   f"columns of {shape}, {when}")
        links = [row for row in rows if row["shape"] == shape and row["mode"] == "copy engine alone"]
        expect(len(links) == 2, f"the link beside {shape}")
    expect(any("victim_p99_us" in row for row in rows), "victims")
    decode = [row for row in rows if row["shape"] == "decode"]
    expect([row["mode"] for row in decode] == ["chain alone"] + modes[2:], "modes of decode")
    expect(all("factor" in row and "gbps" in row for row in decode[1:]), "columns of decode")
    check_planted(program, "overlap", "--shapes", "big,decode", "--enqueued", "own")


def check_pin(program):
    found = result(program, "pin")
    check_common("pin", found)
    points = [(row["bytes"], row["threads"], row["huge_pages"]) for row in found["results"]]
    expect(points == [(mib << 20, threads, huge) for mib in (1, 2) for threads in (1, 2)
                      for huge in ("yes", "no")], f"points {points}")
    check_planted(program, "pin")


def check_launch(program):
    found = result(program, "launch")
    check_common("launch", found)
    rows = found["results"]
    expect([(row["layers"], row["pages"]) for row in rows if row["mode"] == "auto"] ==
           [(2, 1), (2, 4), (3, 1), (3, 4)], "sizes")
    expect(all(("p50_us" in row) == (row["mode"] == "auto") for row in rows), "modes")
    check_planted(program, "launch")


def check_index(program):
    found = result(program, "index")
    expect(found["benchmark"] == "index" and found["machine"]["device"] == "none", "no device")
    expect(found["settings"]["wrong_answers"] == 0, "wrong answers")
    rows = found["results"]
    expect(len({(row["what"], row["pages"], row["page_tokens"]) for row in rows}) == len(rows),
           "each row once")
    samples = {"match": 128, "insert": 128, "evict": 128, "match 128K tokens": 40,
               "reserve a page, evicting a leaf": 4000, "poll, idle": 20,
               "step of 9 that decode": 256}
    for tokens in (16, 64):
        some = [row for row in rows if row["page_tokens"] == tokens]
        expect([row["what"] for row in some if "ns" in row] ==
               2 * ["match", "insert", "evict"] + list(samples)[3:], f"rows of {tokens} tokens")
        trees = [row["pages"] for row in some if row["what"] == "match"]
        expect(all(abs(got - asked) < 100 for got, asked in zip(trees, (1000, 3000))),
               f"trees of {trees} pages")
        for row in some:
            if "ns" in row:
                expect(set(row["ns"]) == QUANTITY and row["ns"]["n"] == samples[row["what"]],
                       f"samples of {row}")
                expect(0 < row["p50_ns"] <= row["p95_ns"] <= row["p99_ns"], f"quantiles of {row}")
            else:
                expect(row["bytes_page"] > 4 * tokens and
                       abs(row["bytes_page"] - 4 * tokens - row["beside_tokens"]) < 1, f"{row}")
        one = [row for row in some if "match_128k_ns" in row]
        expect(len(one) == 1 and one[0]["pages"] == 131072 // tokens and
               set(one[0]["memcmp_128k_ns"]) == QUANTITY and one[0]["ratio"] > 0, "128K tokens")
    expect(sum("beside_tokens" in row for row in rows) == 2 * 3, "bytes")
    planted = result(program, "index", "--plant-error", status=1)
    expect(planted["settings"]["wrong_answers"] > 0, "planted errors")


def check_gather(program):
    found = result(program, "gather", "--ctas", "2,4", "--rings", "4x16384")
    check_common("gather", found)
    rows = found["results"]
    expect(found["settings"]["expert_bytes"] == 4096 + 512 + 16, "bytes of an expert")
    modes = ["plain loads", "auto", "vector", "copy engine, a copy a row",
             "tma, 2 ctas, 4x16384", "tma, 4 ctas, 4x16384"]
    expect([(row["experts"], row["mode"]) for row in rows] ==
           [(experts, mode) for experts in (1, 3) for mode in modes], "modes and sizes")
    for row in rows:
        measured = row["mode"] in ("plain loads", "auto")
        expect(all((key in row) == measured
                   for key in ("gbps", "of_plain_percent", "gbps_beside", "pass_slower_percent")),
               f"measured or skipped: {row}")
    odd = result(program, "gather", "--row-bytes", "200,1", "--ms", "0")["results"]
    expect(["skipped" in row for row in odd[:2]] == [True, False], "odd rows")
    expect(all("gbps_beside" not in row for row in odd), "nothing beside")
    check_planted(program, "gather")


def check_options(program):
    for arguments, text in (
            ([], "no subject given"),
            (["speed"], "there is no subject speed"),
            (["copy", "--device", "tpu"], "--device tpu is unknown"),
            (["copy", "--engines", "tma,warp"], "--engines: warp is unknown"),
            (["copy", "--rings", "6"], "--rings must be STAGESxBYTES"),
            (["copy", "--row-bytes", "0"], "--row-bytes must be integers from 1"),
            (["copy", "--bytes", "many"], "--bytes must be an integer"),
            (["copy", "--no-verify", "--plant-error"], "--plant-error needs"),
            (["copy", "extra"], "extra is no option"),
            (["overlap", "--shapes", "round"], "--shapes: round is unknown"),
            (["overlap", "--ms", "-1"], "--ms must be a number from 0"),
            (["overlap", "--gemm", "own"], "--gemm own is unknown"),
            (["overlap", "--layout", "odd"], "--layout odd is unknown"),
            (["pin", "--threads", "65"], "--threads must be integers from 1 to 64"),
            (["gather", "--row-bytes", "1,2,3,4,5,6,7,8,9"], "--row-bytes: more than 8 banks"),
            (["gather", "--ms", "-1"], "--ms must be a number from 0"),
            (["launch", "--pages", ","], "--pages must be integers"),
            (["index", "--pages", "99"], "--pages must be integers from 100"),
            (["index", "more"], "more is no option"),
    ):
        status, _, err = run(program, *arguments)
        expect(status == 2 and text in err, f"{arguments}: {status} {err}")
    status, out, err = run(program, "--help")
    expect(status == 0 and all(subject in out for subject in SUBJECTS), "help")
    table = run(program, "pin", *FEW, "--mib", "1", "--threads", "1")[1]
    expect("GB/s" in table and "weir-bench pin" in table, "the table")
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder:
        path = os.path.join(folder, "pin.json")
        status, out, err = run(program, "pin", *FEW, "--mib", "1", "--threads", "1", "--no-verify",
                               "--json", path)
        expect(status == 0 and "GB/s" in out, "table and file")
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        expect(found["settings"]["verified"] is False, "--no-verify")
        status, _, _ = run(program, "pin", *FEW, "--mib", "1", "--json", folder)
        expect(status == 3, "a file that cannot be written")


CHECKS = {"copy": check_copy, "overlap": check_overlap, "pin": check_pin, "launch": check_launch,
          "index": check_index,
          "gather": check_gather,
          "options": check_options}
CHECKS[sys.argv[2]](sys.argv[1])
sys.exit(1 if failures else 0)
