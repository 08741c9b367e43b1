#!/bin/sh
# Makes the seed corpus of every target from the golden cases.
# fuzz/run calls it.
set -eu
cd "$(dirname "$0")"
for target in fuzz_targets/*.rs; do
    mkdir -p "corpus/$(basename "$target" .rs)"
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
for case in ../golden/tools/*.in.json ../golden/calls/schema_*.in.json; do
    python3 - "$case" "corpus/schema/$(basename "$case" .in.json)" <<'PYTHON'
import json, sys

def schemas(value):
    """Every object that stands where a schema is expected."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("schema", "inputSchema", "input_schema", "parameters") and isinstance(inner, dict):
                yield inner
            yield from schemas(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from schemas(inner)

for at, schema in enumerate(schemas(json.load(open(sys.argv[1])))):
    with open(f"{sys.argv[2]}.{at}", "w") as seed:
        seed.write(json.dumps(schema) + "\n{}")
PYTHON
done
for case in ../golden/eras/*.in.json ../golden/results/*.in.json ../golden/tools/*.in.json; do
    python3 -c 'import json, sys; print(json.dumps({"jsonrpc": "2.0", "id": 1, "result": json.load(sys.stdin)}))' \
        <"$case" >"corpus/mcp/$(basename "$case" .in.json)"
done
cp seeds/mcp/* corpus/mcp/
cp seeds/request/* corpus/request/
cp seeds/events/* corpus/events/
for case in seeds/http/*; do
    { printf '\003\000'; cat "$case"; } >"corpus/http/$(basename "$case")"
done
echo "seeds: $(find corpus -type f | wc -l)"
