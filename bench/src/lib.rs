//! What the mocks and the load generator share: serving HTTP, and looking into JSON without parsing all of it.

use std::{convert::Infallible, future::Future};

use bytes::Bytes;
use hyper::{
    Request, Response,
    body::{Body, Incoming},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use memchr::memmem;
use tokio::net::TcpListener;

/// Runs a program on one thread; it ends with status 1 and the reason if it fails.
pub fn run(program: impl Future<Output = Result<(), String>>) {
    let done = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())
        .and_then(|runtime| runtime.block_on(program));
    if let Err(why) = done {
        eprintln!("{why}");
        std::process::exit(1);
    }
}

/// Serves HTTP/1.1 until the process is ended.
pub async fn serve<A, F, B>(address: &str, answer: A) -> Result<(), String>
where
    A: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| format!("{address}: {error}"))?;
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        // Without it a chunk waits for the acknowledgement of the one before.
        let _ = stream.set_nodelay(true);
        let answer = answer.clone();
        let service = service_fn(move |request| {
            let answered = answer(request);
            async move { Ok::<_, Infallible>(answered.await) }
        });
        tokio::spawn(async move {
            // That the peer goes away in the middle is what it does when its time is up.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

/// What stands behind the first member `name` of any object in `json`, from its first byte to the end of `json`.
///
/// A search and no parse: a quoted name within a text has its quotes escaped, and is not found.
pub fn member<'a>(json: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let quoted = format!("\"{name}\"");
    let mut rest = json;
    loop {
        rest = rest.get(memmem::find(rest, quoted.as_bytes())? + quoted.len()..)?;
        if let Some(value) = rest.trim_ascii_start().strip_prefix(b":") {
            return Some(value.trim_ascii_start());
        }
    }
}

/// The text behind the first member `name`, as it is written; for texts without escapes.
pub fn text_member<'a>(json: &'a [u8], name: &str) -> Option<&'a str> {
    let value = member(json, name)?.strip_prefix(b"\"")?;
    std::str::from_utf8(&value[..memchr::memchr(b'"', value)?]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_found_with_and_without_spaces() {
        assert_eq!(text_member(br#"{"model":"a"}"#, "model"), Some("a"));
        assert_eq!(text_member(br#"{"model" : "a"}"#, "model"), Some("a"));
        assert_eq!(text_member(br#"{"model":1}"#, "model"), None);
    }

    #[test]
    fn a_text_that_is_like_a_name_is_no_member() {
        let json = br#"{"a":"model","b":"\"model\":\"no\"","model":"yes"}"#;
        assert_eq!(text_member(json, "model"), Some("yes"));
    }
}
