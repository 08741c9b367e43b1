# What one does with this project. `just` alone lists it; `.ci/run` is what a change has to pass.

_:
    @just --list

# Format, lint, test, docs, dependencies: what should be green before a commit.
check: && test doc deny
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings

# Every test that needs only Rust.
test *args:
    cargo test {{args}}

# The documentation, with broken links as errors.
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# Licences, advisories and bans of the dependencies (needs cargo-deny).
deny:
    cargo deny check

# Write the golden files anew; look at the difference before you commit it.
golden:
    UPDATE_GOLDEN=1 cargo test -p toolway-core golden
    UPDATE_GOLDEN=1 cargo test --test gateway cells
    git diff --stat golden

# Write the generated parts of the documents anew.
docs:
    UPDATE_DOCS=1 cargo test --test cli

# Fuzz every target for 20 s, or those that are named; `just fuzz --help` says more (needs a C++ compiler).
fuzz *args:
    fuzz/run {{args}}

# Bad clients, bad servers and bad ends of the process against the release binary; `--quick` takes a minute.
chaos *args:
    cargo build --release
    scripts/chaos {{args}}

# OpenAPI documents that others wrote, from npm.
specs *args:
    scripts/specs {{args}}

# Time the hot paths with criterion: all, or those whose name holds a text.
micro *args:
    cargo bench --package toolway-benches --bench micro -- {{args}}

# Count the instructions of the hot paths and compare with benches/instructions.json (needs valgrind).
instructions *args:
    scripts/instructions {{args}}

# Real clients and real servers against the release binary.
interop *args:
    cargo build --release
    scripts/interop {{args}}

# The MCP conformance suite against the release binary, as a server and as a client.
conformance *args:
    scripts/conformance {{args}}

# toolway beside nginx, as a table; `just bench --help` says how to run less of it.
bench *args:
    bench/run {{args}}
