#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles each kernel for each GPU and looks at what came out.

    check.py NVCC FILE GPU,GPU,... [flag ...]

For each GPU one line a kernel: registers, spilled bytes, shared memory, and how
many bulk copies its code has. Fails if
  - anything is spilled, or a kernel has a stack: a stack is memory of every
    thread that the GPU can hold
  - the code calls the driver (__cuda_syscall), for the same reason
  - a TMA kernel has no bulk copy

The compiler is asked for bare code (-cubin): a compressed container could hide
the name. TAP on standard output."""

import pathlib
import re
import struct
import subprocess
import sys
import tempfile

BULK_COPY = 0x3BA  # the low 12 bits of the instruction


def code_of(cubin):
    """name: bytes of each kernel's code section."""
    (offset,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, offset + i * size) for i in range(count)]
    names = sections[names_index][4]
    found = {}
    for name, _, _, _, start, length in sections:
        text = cubin[names + name : cubin.index(b"\0", names + name)].decode()
        if text.startswith(".text."):
            found[text[len(".text.") :]] = cubin[start : start + length]
    return found


def bulk_copies(code):
    return sum(struct.unpack_from("<H", code, at)[0] & 0xFFF == BULK_COPY for at in range(0, len(code), 16))


def resources(text):
    """kernel: (stack, spilled, registers, shared) from ptxas -v."""
    found = {}
    for block in re.split(r"Compiling entry function ", text)[1:]:
        name = re.match(r"'(\w+)'", block).group(1)
        stack, stores, loads = map(int, re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+)", block).groups())
        registers = int(re.search(r"Used (\d+) registers", block).group(1))
        shared = re.search(r"(\d+) bytes smem", block)
        found[name] = (stack, stores + loads, registers, int(shared.group(1)) if shared else 0)
    return found


def check(nvcc, source, gpu, flags, folder):
    """The troubles of one compilation."""
    out = folder / f"{gpu}.cubin"
    command = [nvcc, "-cubin", f"-arch=sm_{gpu}", "-Xptxas", "-v", *flags, "-o", str(out), source]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return [done.stderr.strip()]
    cubin = out.read_bytes()
    troubles = ["calls the driver: __cuda_syscall"] if b"__cuda_syscall" in cubin else []
    code = code_of(cubin)
    found = resources(done.stderr)
    if not found:
        troubles.append("no kernel")
    for name, (stack, spilled, registers, shared) in sorted(found.items()):
        bulk = bulk_copies(code[name])
        print(f"# sm_{gpu} {name}: {registers} registers, {spilled} bytes spilled, "
              f"{stack} of stack, {shared} of static shared memory, {bulk} bulk copies")
        if stack or spilled:
            troubles.append(f"{name}: {stack} bytes of stack, {spilled} spilled")
        if name.endswith("_tma") and bulk == 0:
            troubles.append(f"{name}: no bulk copy")
    return troubles


def main():
    nvcc, source, gpus, *flags = sys.argv[1:]
    gpus = gpus.split(",")
    print(f"1..{len(gpus)}")
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, gpu in enumerate(gpus, 1):
            troubles = check(nvcc, source, gpu, flags, pathlib.Path(folder))
            print(f"{'not ok' if troubles else 'ok'} {number} - {pathlib.Path(source).name} for sm_{gpu}")
            for trouble in troubles:
                print("#  ", trouble.replace("\n", "\n#   "))
            failed += bool(troubles)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
