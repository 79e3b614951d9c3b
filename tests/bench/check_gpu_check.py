# SPDX-License-Identifier: Apache-2.0
"""usage: check_gpu_check.py GPU_CHECK WEIR_BENCH

Runs scripts/gpu-check over programs that pass, fail and skip, and over a
benchmark on the CPU device."""

import json
import os
import subprocess
import sys
import tempfile

failures = 0


def expect(condition, text):
    global failures
    if not condition:
        failures += 1
        print("FAILED:", text)


def run(script, *arguments):
    done = subprocess.run(["sh", script, *arguments], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines(), done.stderr


def make_program(folder, name, text):
    path = os.path.join(folder, "tests", name)
    with open(path, "w", encoding="utf-8") as program:
        program.write("#!/bin/sh\n" + text)
    os.chmod(path, 0o755)


def main(script, weir_bench):
    weir_bench = os.path.abspath(weir_bench)
    with tempfile.TemporaryDirectory(prefix="weir-gpu-check-") as build:
        out = os.path.join(build, "out")
        os.mkdir(os.path.join(build, "tests"))
        os.mkdir(os.path.join(build, "bench"))
        os.symlink(weir_bench, os.path.join(build, "bench", "weir-bench"))
        make_program(build, "gpu_good", "echo ${CUDA_LAUNCH_BLOCKING-unset}\n")
        make_program(build, "gpu_bad", "echo it broke; exit 3\n")
        make_program(build, "gpu_absent", "exit 77\n")
        pin = "pin --device cpu --repeats 1 --warm-up 0 --mib 1 --threads 1"

        status, lines, _ = run(script, build, out, "gpu_good", "gpu_absent", pin)
        expect(status == 0 and lines[-1] == "2 passed, 0 failed, 1 skipped", lines)
        with open(os.path.join(out, "3-pin.json"), encoding="utf-8") as file:
            expect(json.load(file)["benchmark"] == "pin", "the results of pin")

        status, lines, _ = run(script, "--variants", build, out, "gpu_good", pin)
        expect(status == 0 and lines[-1] == "4 passed, 0 failed, 0 skipped", lines)
        for log, text in (("1-gpu_good.log", "unset\n"),
                          ("1-gpu_good-CUDA_LAUNCH_BLOCKING.log", "1\n")):
            with open(os.path.join(out, log), encoding="utf-8") as file:
                expect(file.read() == text, log)

        status, lines, _ = run(script, build, out, "gpu_bad", "gpu_good")
        expect(status == 1 and lines[-1] == "1 passed, 1 failed, 0 skipped", lines)
        expect("    it broke" in lines, lines)
        status, lines, _ = run(script, build, out, "gpu_absent")
        expect(status == 1 and lines[-1] == "0 passed, 0 failed, 1 skipped", lines)
        status, _, err = run(script, build, out, "speed")
        expect(status == 2 and "speed" in err, err)
        status, _, err = run(script, build, out)
        expect(status == 2 and err.startswith("usage: "), err)


main(*sys.argv[1:])
sys.exit(1 if failures else 0)
