//! The client's headers that go on to an upstream, and which of them only one upstream may see.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::{Api, Config};

/// Headers that carry a client's key, for a provider or a gateway before it, or name the account that the key belongs
/// to.
const CREDENTIALS: [&str; 15] = [
    "authorization",
    "api-key",
    "x-api-key",
    "x-goog-api-key",
    "x-goog-user-project",
    "ocp-apim-subscription-key",
    "cf-aig-authorization",
    "helicone-auth",
    "x-litellm-api-key",
    "x-portkey-api-key",
    "x-portkey-virtual-key",
    "x-amz-security-token",
    "x-auth-token",
    "openai-organization",
    "openai-project",
];

/// What tokens of OAuth begin with, at Anthropic and at Google.
const OAUTH: [&[u8]; 2] = [b"sk-ant-oat", b"ya29."];

/// The header is one of a client's credentials: it goes to the upstream with `client_key` and to no other.
pub fn is_credential(name: &HeaderName) -> bool {
    CREDENTIALS.contains(&name.as_str())
}

/// The same for a name as a configuration has it.
pub fn is_credential_name(name: &str) -> bool {
    let mut all = CREDENTIALS.iter();
    all.any(|it| it.eq_ignore_ascii_case(name))
}

pub(super) fn remove_credentials(headers: &mut HeaderMap) {
    for name in CREDENTIALS {
        headers.remove(name);
    }
}

/// What the client of another API than chat completions wrote, of which the chat holds what every API can say.
#[derive(Clone, Debug)]
pub struct Original {
    /// The client's API.
    pub api: Api,
    /// The body of its request.
    pub body: Bytes,
    /// What other APIs do not understand of it.
    pub left_out: Vec<String>,
    /// The tools that the model is to search for, with the names that it knows.
    pub deferred: Vec<String>,
}

impl Original {
    /// Says what is left out for another API.
    pub fn warning(&self) -> Option<String> {
        let names = self.left_out.join(", ");
        (!names.is_empty()).then(|| format!("not understood and left out: {names}"))
    }
}

/// The client's headers for a request that toolway writes.
#[derive(Debug, Default)]
pub struct ClientHeaders {
    /// The credentials come first.
    list: Box<[(HeaderName, HeaderValue)]>,
    /// What tells the client from others.
    pub(super) client: u64,
    /// What the headers came with.
    pub(super) original: Option<Box<Original>>,
}

impl ClientHeaders {
    /// With what tells the client from others, so that what is kept of its conversations reaches nobody else.
    pub fn with_client(self, client: u64) -> ClientHeaders {
        ClientHeaders { client, ..self }
    }

    /// With what the client wrote in its own API.
    pub fn with_original(self, original: Original) -> ClientHeaders {
        let original = Some(Box::new(original));
        ClientHeaders { original, ..self }
    }

    /// Adds tools that the model is to search for.
    pub fn defer(&mut self, names: impl Iterator<Item = String>) {
        if let Some(original) = &mut self.original {
            original.deferred.extend(names);
        }
    }

    /// The headers that this upstream may see.
    pub(super) fn shown_to(&self, upstream: &Config) -> &[(HeaderName, HeaderValue)] {
        if upstream.client_key {
            return &self.list;
        }
        let others = self.list.iter().position(|(name, _)| !is_credential(name));
        &self.list[others.unwrap_or(self.list.len())..]
    }
}

impl ClientHeaders {
    /// With the client's key in the header in which the upstream expects it. Tokens of OAuth stay where they are.
    pub(super) fn with_key_in(&self, header: &HeaderName) -> ClientHeaders {
        let is_token = |key: &[u8]| OAUTH.iter().any(|start| key.starts_with(start));
        let moved = self.list.iter().map(|(name, value)| {
            let key = value.as_bytes().strip_prefix(b"Bearer ");
            let key = key.filter(|key| *name == header::AUTHORIZATION && !is_token(key));
            match key.and_then(|key| HeaderValue::from_bytes(key).ok()) {
                Some(mut key) => {
                    key.set_sensitive(true);
                    (header.clone(), key)
                }
                None => (name.clone(), value.clone()),
            }
        });
        moved.collect()
    }
}

impl FromIterator<(HeaderName, HeaderValue)> for ClientHeaders {
    fn from_iter<T: IntoIterator<Item = (HeaderName, HeaderValue)>>(headers: T) -> ClientHeaders {
        let mut list = Vec::new();
        let mut credentials = 0;
        for header in headers {
            if is_credential(&header.0) {
                list.insert(credentials, header);
                credentials += 1;
            } else {
                list.push(header);
            }
        }
        ClientHeaders {
            list: list.into(),
            client: 0,
            original: None,
        }
    }
}
