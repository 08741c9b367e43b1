//! The whole gateway over real sockets, with scripted models and servers.

mod harness;
mod model;
mod tools;

/// What a client sees of a streamed tool loop.
mod streamed;
