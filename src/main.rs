//! The command `toolway`.

fn main() {}
