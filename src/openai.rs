//! OpenAI's wire format: what clients send and what upstreams answer, unknown fields kept.

pub mod request;
