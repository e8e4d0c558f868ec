#!/bin/sh
# A C compiler that compiles the C engine once: tests of packaging build the same sources again and again.
# usage: as cc, in a checkout's root; FINDLEAKS_TEST_CC_CACHE is a folder that keeps outputs
#
# The key is made of all words but the output's name and include paths, of which the C engine needs none, and of all inputs.
set -eu

output=
before=
for word; do
    [ "$before" != -o ] || output=$word
    before=$word
done
[ -n "$output" ] || exec cc "$@"

inputs() {
    for word; do
        case $word in
        "$output" | -I*) ;;
        *)
            echo "$word"
            [ ! -f "${word#@}" ] || cat "${word#@}"
            ;;
        esac
    done
    cat common/native/*.h
}

kept=$FINDLEAKS_TEST_CC_CACHE/$(inputs "$@" | sha256sum | cut -d ' ' -f 1)
if [ ! -f "$kept" ]; then
    cc "$@"
    cp "$output" "$kept.$$"
    mv "$kept.$$" "$kept"
fi
cp "$kept" "$output"
