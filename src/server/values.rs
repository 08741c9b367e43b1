//! Reads a request's body into values: within the byte budget, and long bodies off the runtime's threads.

use axum::body::Bytes;

use super::{App, body, error::Refusal};
use crate::byte_budget::{ByteBudget, Reservation};
use toolway_protocol::json_size::{BYTES_PER_VALUE, MAX_VALUES, measure};

/// A longer body is read on a thread of its own, in bytes: building its values may take longer than other requests
/// should wait.
const LONG: usize = 256 << 10;

/// Long bodies that are read at one time.
pub(super) const AT_ONCE: usize = 2;

/// Reads a body with `read`, which builds values from it. A short body reserves nothing.
///
/// # Errors
/// [`Refusal::OverBudget`] where the budget has no room for the values.
pub(super) async fn read<T: Send + 'static>(
    app: &App,
    bytes: Bytes,
    read: impl FnOnce(&[u8]) -> T + Send + 'static,
) -> Result<(T, Option<Reservation>), Refusal> {
    if bytes.len() <= body::SHORT {
        return Ok((read(&bytes), None));
    }
    if bytes.len() <= LONG {
        return within(&app.bodies, &bytes, read);
    }
    // Boxed, because it is rare and would enlarge the future of every request.
    Box::pin(async move {
        let parsing = app.parsing.clone().acquire_owned().await;
        let budget = app.bodies.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let _parsing = parsing;
            within(&budget, &bytes, read)
        });
        reading.await.unwrap_or(Err(Refusal::Internal))
    })
    .await
}

fn within<T>(
    budget: &ByteBudget,
    bytes: &[u8],
    read: impl FnOnce(&[u8]) -> T,
) -> Result<(T, Option<Reservation>), Refusal> {
    let values = measure(bytes).values;
    // Of too many none is built.
    let bytes_built = match values > MAX_VALUES {
        true => 0,
        false => values * BYTES_PER_VALUE + bytes.len(),
    };
    let reservation = budget.take(bytes_built);
    let reservation = reservation.ok_or(Refusal::OverBudget)?;
    Ok((read(bytes), Some(reservation)))
}
