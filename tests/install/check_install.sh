#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: check_install.sh cmake|pkgconfig MESON BUILD_DIR PREFIX LIBDIR VERSION
#
# Installs the build into a temporary DESTDIR, builds the program of the folder
# named by the first argument against that installation and nothing else, runs
# it and compares what it prints. Exit 77 where the tool that it needs is absent.
set -eu
consumer=$1 meson=$2 build=$3 prefix=$4 libdir=$5 version=$6
source=$(cd "$(dirname "$0")" && pwd)/$consumer

case $consumer in
cmake) tool=cmake ;;
pkgconfig) tool=pkg-config ;;
esac
if ! command -v "$tool" >/dev/null || { [ "$consumer" = cmake ] && [ -z "$CXX" ]; }; then
    echo "skipped: no $tool or no compiler for it"
    exit 77
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
DESTDIR=$work/root "$meson" install -C "$build" --no-rebuild --quiet
root=$work/root$prefix
LD_LIBRARY_PATH=$root/$libdir
export LD_LIBRARY_PATH

case $consumer in
cmake)
    cmake -S "$source" -B "$work/build" -DCMAKE_PREFIX_PATH="$root" -DCMAKE_CXX_FLAGS="$WEIR_TEST_FLAGS" \
        -DWEIR_WANTED="$version"
    cmake --build "$work/build" --verbose
    program=$work/build/hello
    # The next major version's ABI is another one: it must not be found.
    if cmake -S "$source" -B "$work/other" -DCMAKE_PREFIX_PATH="$root" \
        -DWEIR_WANTED="$((${version%%.*} + 1)).0" >/dev/null 2>&1; then
        echo "find_package accepted a version that it must refuse" >&2
        exit 1
    fi
    ;;
pkgconfig)
    PKG_CONFIG_LIBDIR=$root/$libdir/pkgconfig
    PKG_CONFIG_SYSROOT_DIR=$work/root
    PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1
    PKG_CONFIG_ALLOW_SYSTEM_LIBS=1
    unset PKG_CONFIG_PATH
    export PKG_CONFIG_LIBDIR PKG_CONFIG_SYSROOT_DIR PKG_CONFIG_ALLOW_SYSTEM_CFLAGS PKG_CONFIG_ALLOW_SYSTEM_LIBS
    test "$(pkg-config --modversion weir)" = "$version"
    test "$(pkg-config --variable=weir_has_cuda weir)" = 1
    program=$work/hello
    # Unquoted: lists of words.
    # shellcheck disable=SC2046,SC2086
    $CC -std=c11 -Wall -Wextra -Wpedantic -Werror $WEIR_TEST_FLAGS "$source/hello.c" -o "$program" \
        $(pkg-config --cflags --libs weir)
    ;;
esac

test "$("$program")" = "weir $version"
readelf -d "$program" | grep -q "NEEDED.*\[libweir\.so\.${version%%.*}\]"
