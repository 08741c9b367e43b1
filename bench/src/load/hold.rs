//! Many streams held open side by side, to see what one of them costs in memory.

use std::time::Duration;

use memchr::memmem;
use serde_json::json;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::http::{Connection, Target};

/// Between the beginnings of two streams.
const PAUSE: Duration = Duration::from_millis(1);

/// Longest wait for all streams to have begun.
const LONGEST_OPENING: Duration = Duration::from_secs(30);

/// Opens the streams, says so on a line, reads them for a while, and says how many were still alive.
pub(crate) async fn hold(
    target: &Target,
    body: &[u8],
    expect: &str,
    streams: usize,
    time: Duration,
) -> Result<(), String> {
    let mut tasks = JoinSet::new();
    let begun = watch::Sender::new(0);
    let request = target.post(body);
    for _ in 0..streams {
        let (target, request) = (target.clone(), request.clone());
        let (begun, expect) = (begun.clone(), expect.to_owned());
        tasks.spawn(async move { read(&target, &request, &expect, &begun).await });
        sleep(PAUSE).await;
    }
    let deadline = Instant::now() + LONGEST_OPENING;
    while *begun.borrow() < streams && Instant::now() < deadline && tasks.len() == streams {
        sleep(PAUSE).await;
        if let Some(ended) = tasks.try_join_next() {
            return Err(why(ended));
        }
    }
    println!("{}", json!({"open": *begun.borrow()}));
    sleep(time).await;
    let mut ended = Vec::new();
    while let Some(task) = tasks.try_join_next() {
        ended.push(why(task));
    }
    let open = *begun.borrow() - ended.len().min(*begun.borrow());
    println!(
        "{}",
        json!({"right": open, "wrong": streams - open, "first_wrong": ended.first()})
    );
    Ok(())
}

/// Reads one stream as long as it lasts, which is longer than anybody wants to know.
async fn read(
    target: &Target,
    request: &[u8],
    expect: &str,
    begun: &watch::Sender<usize>,
) -> Result<(), String> {
    let mut connection = Connection::open(target).await?;
    let mut first = true;
    let watch = |body: &[u8]| {
        if first && memmem::find(body, expect.as_bytes()).is_some() {
            first = false;
            begun.send_modify(|count| *count += 1);
        }
    };
    connection.watched_exchange(request, watch).await?;
    Err("a stream ended".to_owned())
}

fn why(ended: Result<Result<(), String>, tokio::task::JoinError>) -> String {
    match ended {
        Ok(Ok(())) => "a stream ended".to_owned(),
        Ok(Err(why)) => why,
        Err(error) => error.to_string(),
    }
}
