//! Shows the servers that are still starting, on a terminal.

use std::{
    io::{self, IsTerminal, Write},
    pin::pin,
    time::Duration,
};

use tokio::time::{Instant, interval_at};

use super::terminal;
use crate::gateway::Gateway;
use crate::health::ServerState;

/// How often the line is redrawn.
const TICK: Duration = Duration::from_secs(1);

/// Removes the line.
const CLEAR: &str = "\r\x1b[K";

/// Runs the work. On a terminal, a line on standard error shows the servers it waits for.
pub(super) async fn while_waiting<T>(gateway: &Gateway, work: impl Future<Output = T>) -> T {
    if !io::stderr().is_terminal() {
        return work.await;
    }
    let begun = Instant::now();
    let mut ticks = interval_at(begun + TICK, TICK);
    let mut work = pin!(work);
    let mut is_shown = false;
    let done = loop {
        tokio::select! {
            done = &mut work => break done,
            _ = ticks.tick() => {
                let awaited = gateway.health().into_iter().filter(|it| it.state == ServerState::Starting);
                let awaited: Vec<String> = awaited.map(|it| it.server.to_string()).collect();
                let line = line(&awaited, begun.elapsed().as_secs());
                let line = terminal::brief(&line, terminal::width(&io::stderr()).unwrap_or(80));
                is_shown |= write(&line);
            }
        }
    };
    if is_shown {
        write("");
    }
    done
}

/// Writes the line over the one before. A terminal that is gone is no failure.
fn write(line: &str) -> bool {
    let mut err = io::stderr().lock();
    write!(err, "{CLEAR}{line}")
        .and_then(|()| err.flush())
        .is_ok()
}

fn line(awaited: &[String], seconds: u64) -> String {
    let (number, names) = (terminal::count(awaited.len(), "server"), awaited.join(", "));
    match awaited.is_empty() {
        true => String::new(),
        false => format!("waiting for {number}: {names} ({seconds} s)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_names_the_servers() {
        let names = ["a", "b"].map(str::to_owned);
        assert_eq!(line(&names, 12), "waiting for 2 servers: a, b (12 s)");
        assert_eq!(line(&[], 12), "");
    }
}
