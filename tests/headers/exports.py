#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds three lists of the public functions against each other: those that the
headers declare, those that the version script names, those that the library
exports. Also: no public header is left uninstalled or out of weir/weir.h.

usage: exports.py INCLUDE_DIR MAP LIBRARY NM HEADER...

HEADERs are the names that are installed. The result is written as TAP.
"""
import pathlib
import re
import subprocess
import sys


def declared(text):
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"^[ \t]*#(?:.*\\\n)*.*$", "", text, flags=re.M)
    return re.findall(r"WEIR_API\b[^;{]*?\b(weir_\w+)\s*\(", text)


def mapped(text):
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    node, exported, hidden = re.fullmatch(r"\s*(\w+) \{\s*global:(.*?)local:(.*?)\};\s*", text, flags=re.S).groups()
    if hidden.strip() != "*;":
        raise ValueError("the version script must end with local: *")
    return node, re.findall(r"(\S+);", exported)


def exported(nm, library):
    run = subprocess.run([nm, "-D", "--defined-only", library], check=True, text=True, stdout=subprocess.PIPE)
    return [fields[-1] for fields in map(str.split, run.stdout.splitlines())]


def included(public, header):
    """The headers that `header` brings with it, itself among them."""
    found, waiting = set(), [header]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += re.findall(r"#include <weir/(\S+)>", (public / name).read_text())
    return found


def main():
    include_dir, map_file, library, nm, *headers = sys.argv[1:]
    public = pathlib.Path(include_dir, "weir")
    in_headers = [name for header in headers for name in declared((public / header).read_text())]
    node, in_map = mapped(pathlib.Path(map_file).read_text())
    # The node itself shows up as an absolute symbol of its own name.
    in_library = [name for name in exported(nm, library) if name != node]

    checks = [
        ("every function is declared once", [n for n in in_headers if in_headers.count(n) > 1]),
        ("every function of the headers is in the map", set(in_headers) - set(in_map)),
        ("every function of the map is in a header", set(in_map) - set(in_headers)),
        ("every function of the map is exported", {f"{n}@@{node}" for n in in_map} - set(in_library)),
        ("nothing else is exported", set(in_library) - {f"{n}@@{node}" for n in in_map}),
        ("the map is sorted and has no duplicates", [] if in_map == sorted(set(in_map)) else in_map),
        ("every public header is installed", {path.name for path in public.glob("*.h")} ^ set(headers)),
        ("weir.h brings every other header", set(headers) ^ included(public, "weir.h")),
    ]
    print(f"1..{len(checks)}")
    for number, (name, wrong) in enumerate(checks, 1):
        print(f"{'not ok' if wrong else 'ok'} {number} - {name}")
        for item in sorted(set(wrong)):
            print(f"# {item}")
            print(f"{name}: not so for {item}", file=sys.stderr)


if __name__ == "__main__":
    main()
