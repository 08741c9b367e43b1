//! Where a request comes from, as the records of the audit name it.

use http::HeaderValue;

/// Of one request.
#[derive(Clone, Debug, Default)]
pub struct RequestSource {
    /// Its id.
    pub request: Option<HeaderValue>,
    /// What its client calls itself.
    pub client: Option<HeaderValue>,
}

/// Longest name of a client, in bytes.
const MAX_CLIENT: usize = 200;

impl RequestSource {
    /// The id of the request.
    pub(super) fn request_id(&self) -> Option<String> {
        self.request.as_ref().map(text)
    }

    /// What the client calls itself, shortened.
    pub(super) fn client_name(&self) -> Option<String> {
        self.client.as_ref().map(text)
    }
}

fn text(value: &HeaderValue) -> String {
    let bytes = value.as_bytes();
    String::from_utf8_lossy(bytes.get(..MAX_CLIENT).unwrap_or(bytes)).into_owned()
}
