# SPDX-License-Identifier: Apache-2.0
"""usage: check_input.py WEIR_REPLAY WEIR_TRACE_GEN DEMO_TRACE

Bad input ends with status 2 and says what and where; good input gives a table
and a JSON file."""

import json
import os
import sys

from replay import Failures, run, temporary_folder

program, generator, demo = sys.argv[1:]
failures = Failures()


def refuse(says, command, *arguments):
    status, out, err = run(command, *arguments)
    failures.expect(status == 2, f"{arguments}: status {status}, not 2: {err}")
    failures.expect(says in err, f"{arguments}: does not say '{says}' but: {err}")
    failures.expect(out == "", f"{arguments}: wrote to standard output: {out}")


refuse("no trace", program)
refuse("more than one trace", program, demo, demo)
refuse("No such file", program, "/nowhere/at.all")
refuse("unrecognized option", program, demo, "--nonsense")
refuse("there are: lru, ", program, demo, "--policy", "random")
refuse("lfu, fifo, mru, filo, priority, cost, or all", program, demo, "--policy", "ALL")
refuse("never, adaptive, or all", program, demo, "--write-back", "sometimes")
refuse("write_through_selective", program, demo, "--write-back", "write_through_selective(0)")
refuse("there are: segmented, layer_first, page_first, page_first_direct", program, demo,
       "--host-layout", "sideways")
refuse("there are: cpu, cuda, none", program, demo, "--device", "abacus")
refuse("there are: auto, tma, vector, copy", program, demo, "--device", "cuda", "--engine", "steam")
refuse("--gpus needs --device", program, demo, "--device", "cpu", "--ranks", "2", "--gpus", "2")
refuse("--gpus 2 needs", program, demo, "--device", "cuda", "--gpus", "2")
refuse("--engine needs", program, demo, "--device", "cpu", "--engine", "tma")
refuse("--verify", program, demo, "--verify", "--device", "none")
refuse("from 0 to 50", program, demo, "--offered", "51")
refuse("from 0 to 50", program, demo, "--offered", "nan")
for shape in ("", "2", "2,2", "2,2,16,1", "0,2,16", "2,33,16", "2,2,65537", "2,2,x"):
    refuse("LAYERS,TENSORS,ROW_BYTES", program, demo, "--shape", shape)
for option, limit in (("--page-tokens", 1024), ("--block-tokens", 1 << 20), ("--batch", 4096),
                      ("--ranks", 64), ("--passes", 1000)):
    for value in ("0", "-1", "x", "", "1.5", limit + 1, 1 << 70):
        refuse(f"{option} must be an integer from 1 to {limit}", program, demo, option, value)
for option in ("--device-pages", "--host-pages"):
    refuse(f"{option} must be", program, demo, option, (1 << 30) + 1)
refuse("--page-tokens is needed", program, demo, "--block-tokens", "2048")
refuse("--seed", generator, "--seed", "x")
refuse("--requests", generator, "--requests", "0")
refuse("unexpected argument", generator, "more")

GOOD = '{"timestamp": 0, "input_length": 17, "output_length": 2, "hash_ids": [0, 1]}\n'
with temporary_folder() as folder:
    trace = os.path.join(folder, "trace.jsonl")
    result = os.path.join(folder, "result.json")

    def write(text):
        with open(trace, "w", encoding="utf-8") as file:
            file.write(text)

    for text, says in ((GOOD + "oops\n", ":2: "), (GOOD * 6 + '{"timestamp": 0}\n', ":7: "),
                       ("\n", "holds no request")):
        write(text)
        refuse(f"{trace}{says}" if says.startswith(":") else says, program, trace,
               "--block-tokens", "16")

    # more tokens than a sequence can have: known only with the options
    write(GOOD.replace("[0, 1]", str(list(range(2048)))))
    refuse(f"{trace}:1: ", program, trace, "--block-tokens", 1 << 20, "--page-tokens", 1024)

    write(GOOD * 3)
    status, out, err = run(program, trace, "--block-tokens", "16", "--json", result)
    failures.expect(status == 0, f"a good trace: status {status}: {err}")
    failures.expect(err == "", f"a good trace: {err}")
    failures.expect("hit_ratio_device" in out, f"no table: {out}")
    with open(result, encoding="utf-8") as file:
        counts = json.load(file)
    for name, value in (("requests", 3), ("pages", 6), ("hit_pages_device", 4),
                        ("hit_pages_host", 0), ("loaded_pages", 0), ("written_pages", 0),
                        ("evicted_device_pages", 0), ("evicted_host_pages", 0),
                        ("mean_run_pages", 0), ("wrong_bytes", 0), ("races", 0),
                        ("hit_ratio_host", 0)):
        failures.expect(counts.get(name) == value, f"{name} is {counts.get(name)}, not {value}")
    for name in ("hit_ratio", "hit_ratio_device"):
        failures.expect(abs(counts[name] - 4 / 6) < 1e-9, f"{name} is {counts[name]}")
    failures.expect(counts["seconds"] >= 0, "seconds is negative")
    failures.expect(counts["parameters"]["page_tokens"] == 16, "the default of --page-tokens")

    # all policies: a table of all of them, an array; the same as one by one
    write("".join(GOOD.replace("[0, 1]", f"[{i}, {i + 1}]") for i in (0, 5, 0, 7, 5, 0, 9, 7)))
    common = ("--block-tokens", "16", "--device-pages", "4", "--host-pages", "3", "--offered", "0")
    POLICIES = ("lru", "slru", "lfu", "fifo", "mru", "filo", "priority", "cost")
    WRITES = ("write_through", "write_through_selective", "write_back", "never", "adaptive")
    for policies, writes in ((POLICIES, WRITES), (POLICIES, ("write_back",)), (("fifo",), WRITES)):
        policy = policies[0] if len(policies) == 1 else "all"
        write_back = writes[0] if len(writes) == 1 else "all"
        status, out, err = run(program, trace, *common, "--policy", policy, "--write-back",
                               write_back, "--json", result)
        failures.expect(status == 0 and err == "", f"all policies: status {status}: {err}")
        expected = [[p, w] for p in policies for w in writes]
        lines = [line.split() for line in out.splitlines()]
        failures.expect([line[:2] for line in lines[1:]] == expected, f"all policies: {out}")
        with open(result, encoding="utf-8") as file:
            array = json.load(file)
        failures.expect(isinstance(array, list) and len(array) == len(expected) and
                        [[o["parameters"]["policy"], o["parameters"]["write_back"]]
                         for o in array] == expected, f"all policies: {array}")
        for counts, line in zip(array, lines[1:]):
            status, alone, err = run(program, trace, *common, "--policy", line[0], "--write-back",
                                     line[1], "--json", "-")
            failures.expect(status == 0, f"{line}: status {status}: {err}")
            alone = json.loads(alone)
            alone["seconds"] = counts["seconds"]
            failures.expect(alone == counts, f"{line}: {counts} but alone: {alone}")
            failures.expect(line[2:] == [f"{counts[name]:.4f}" for name in
                                         ("hit_ratio", "hit_ratio_device", "hit_ratio_host")] +
                            [str(counts[name]) for name in
                             ("loaded_pages", "written_pages", "evicted_device_pages",
                              "evicted_host_pages")], f"the table says {line}")
    failures.expect(len({(c["hit_pages_device"], c["written_pages"]) for c in array}) > 1,
                    f"the policies make no difference: {array}")

    # a prompt larger than the tier is counted, and the others go on
    write(GOOD + GOOD.replace("[0, 1]", "[0, 1, 2, 3, 4]").replace("17", "80") + GOOD)
    status, out, err = run(program, trace, "--block-tokens", "16", "--device-pages", "4",
                           "--json", result)
    failures.expect(status == 0, f"a request that never fits: status {status}: {err}")
    with open(result, encoding="utf-8") as file:
        counts = json.load(file)
    failures.expect((counts["too_large"], counts["requests"], counts["hit_pages_device"]) ==
                    (1, 3, 2), f"a request that never fits: {counts}")

    refuse("No such file", program, "--json", "/nowhere/at.all", "/nowhere/either")
    status, _, err = run(program, trace, "--block-tokens", "16", "--json", "/nowhere/at.all")
    failures.expect(status == 2 and "/nowhere/at.all" in err, f"a JSON file that cannot be: {err}")

    # the warning about another block size
    status, _, err = run(program, trace, "--block-tokens", "32")
    failures.expect(status == 0 and f"{trace}:1: warning" in err, f"no warning: {err}")

failures.exit()
