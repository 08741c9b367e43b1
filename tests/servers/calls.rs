//! Calls: what comes back, what goes wrong, and what the server hears of it.
