#!/bin/sh
# Makes the seed corpus of every target from the golden cases.
#   fuzz/seeds.sh && cargo +nightly fuzz run stream
set -eu
cd "$(dirname "$0")"
for target in sse stream completion arguments names openapi; do
    mkdir -p "corpus/$target"
done
for case in ../golden/quirks/*.in.sse; do
    name=$(basename "$case" .in.sse)
    # libFuzzer's `arbitrary` takes the leading number from the front of the input.
    { printf '\001'; cat "$case"; } >"corpus/sse/$name"
    { printf '\377'; cat "$case"; } >"corpus/stream/$name.loop"
    { printf '\000'; cat "$case"; } >"corpus/stream/$name.pass"
done
for case in ../golden/quirks/*.in.json ../golden/quirks/*.in.html ../golden/quirks/*.in.txt; do
    cp "$case" "corpus/completion/$(basename "$case")"
done
for case in ../golden/calls/*.in.json; do
    cp "$case" "corpus/arguments/$(basename "$case")"
done
for case in ../golden/names/*.in.json; do
    # A server's name, a space and a tool's name on each line.
    tr -d '[]{}",' <"$case" | tr ':' '\n' | sed 's/^ */files /' >"corpus/names/$(basename "$case" .in.json)"
done
cp ../openapi.yaml ../examples/openapi/*.yaml corpus/openapi/
for case in ../golden/openapi/*.in.json; do
    python3 -c 'import json, sys; print(json.dumps(json.load(sys.stdin).get("document")))' \
        <"$case" >"corpus/openapi/$(basename "$case" .in.json)"
done
echo "seeds: $(find corpus -type f | wc -l)"
