//! What servers say without being asked.

use serde_json::Value;

use crate::tool::ServerId;

/// What a server said without being asked, and not to one caller alone.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerEvent {
    /// `notifications/resources/updated`: a watched resource, or one below it, changed.
    ResourceUpdated {
        /// Whose resource.
        server: ServerId,
        /// Which.
        uri: String,
        /// The notification's params as they came.
        params: Value,
    },
    /// `notifications/message`: a line of the server's log that belongs to no single request.
    Log {
        /// Whose log.
        server: ServerId,
        /// The notification's params as they came.
        params: Value,
    },
    /// Any other notification that is not toolway's own business.
    Other {
        /// Who says so.
        server: ServerId,
        /// The notification's method.
        method: String,
        /// Its params as they came; `null` if there are none.
        params: Value,
    },
}
