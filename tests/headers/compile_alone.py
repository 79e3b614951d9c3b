#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles each public header by itself, as C11 and as C++17, twice included.

usage: compile_alone.py INCLUDE_DIR C_COMPILER CXX_COMPILER HEADER...

HEADERs are names in INCLUDE_DIR/weir. An empty CXX_COMPILER skips C++. The
result is written as TAP, one test a header and language.
"""
import shlex
import subprocess
import sys

STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]


def compile_alone(compiler, language, standard, include_dir, header):
    source = f"#include <weir/{header}>\n#include <weir/{header}>\n"
    command = shlex.split(compiler) + [f"-std={standard}", *STRICT, "-I", include_dir, "-x", language, "-"]
    return subprocess.run(command, input=source, text=True, stderr=subprocess.PIPE)


def main():
    include_dir, c_compiler, cxx_compiler, *headers = sys.argv[1:]
    languages = [(c_compiler, "c", "c11"), (cxx_compiler, "c++", "c++17")]
    print(f"1..{len(headers) * len(languages)}")
    number = 0
    for header in headers:
        for compiler, language, standard in languages:
            number += 1
            name = f"{number} - weir/{header} as {standard}"
            if not compiler:
                print(f"ok {name} # SKIP no compiler for {language}")
                continue
            run = compile_alone(compiler, language, standard, include_dir, header)
            print(f"ok {name}" if run.returncode == 0 else f"not ok {name}")
            sys.stderr.write(run.stderr)


if __name__ == "__main__":
    main()
