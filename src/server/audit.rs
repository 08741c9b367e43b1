//! `GET /audit`: the records of calls, decisions and servers, in pages or as they come.
//!
//! Who may change servers sees all of them, a client with another key those of its key.

use std::{
    collections::HashSet,
    convert::Infallible,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    Json,
    body::{Body, Bytes},
    extract::{Query, State},
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use futures::{Stream, StreamExt, stream};
use serde_json::json;
use tokio::{
    sync::broadcast::{Receiver, error::RecvError},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use url::form_urlencoded;

use super::{App, guard, places::HeldPlace, request_log::Lasting, servers::RestError};
use crate::audit::{AuditPage, AuditQuery};
use toolway_core::audit::{AuditFilter, AuditRecord, csv, params::AuditParams};
use toolway_protocol::tool::millis;

/// Records of a page, unless the reader says how many.
const PAGE: usize = 100;

/// Most records of a page.
const MAX_PAGE: usize = 1000;

/// Most records of a page of lines, and how many it has unless the reader says so.
const MAX_LINES: usize = 10_000;

/// The form of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AuditForm {
    Json,
    Lines,
    Csv,
    Follow,
}

/// Answers `GET /audit`.
pub(super) async fn list(
    State(app): State<Arc<App>>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, RestError> {
    let invalid = |message: String| RestError::new(StatusCode::BAD_REQUEST, message);
    let params = Query::<AuditParams>::try_from_uri(&uri);
    let Query(params) = params.map_err(|error| invalid(error.body_text()))?;
    let form = form(&params, &headers).map_err(invalid)?;
    let filter = params.filter(now()).map_err(invalid)?;
    let filter = allowed(&app, &headers, filter)?;
    if form == AuditForm::Follow {
        return follow(&app, uri.path(), &headers, filter).await;
    }
    let most = match form {
        AuditForm::Json | AuditForm::Follow => MAX_PAGE,
        AuditForm::Lines | AuditForm::Csv => MAX_LINES,
    };
    let limit = match (params.limit, form) {
        (Some(limit), _) if (1..=most).contains(&limit) => limit,
        (Some(_), _) => return Err(invalid(format!("`limit` must be between 1 and {most}"))),
        (None, AuditForm::Json) => PAGE,
        (None, _) => most,
    };
    let query = AuditQuery {
        filter,
        cursor: params.cursor.clone(),
        limit,
    };
    let page = app.gateway.audit().page(query).await;
    let page = page.map_err(|_| invalid("`cursor` must be `next` of a page".to_owned()))?;
    Ok(written(form, &page, &uri))
}

/// What the query asks for, or `Accept` does.
fn form(params: &AuditParams, headers: &HeaderMap) -> Result<AuditForm, String> {
    if params.follow == Some(true) {
        return Ok(AuditForm::Follow);
    }
    match params.format.as_deref() {
        Some("json") => return Ok(AuditForm::Json),
        Some("jsonl") => return Ok(AuditForm::Lines),
        Some("csv") => return Ok(AuditForm::Csv),
        Some(other) => {
            return Err(format!(
                "`format` must be json, jsonl or csv, not `{other}`"
            ));
        }
        None => {}
    }
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|it| it.to_str().ok())
        .unwrap_or_default();
    let kinds = [
        ("text/event-stream", AuditForm::Follow),
        ("text/csv", AuditForm::Csv),
        ("application/x-ndjson", AuditForm::Lines),
        ("application/jsonl", AuditForm::Lines),
    ];
    let asked = kinds.iter().find(|(kind, _)| accept.contains(kind));
    Ok(asked.map_or(AuditForm::Json, |(_, form)| *form))
}

/// The filter, for records that the client may see.
fn allowed(app: &App, headers: &HeaderMap, filter: AuditFilter) -> Result<AuditFilter, RestError> {
    if guard::administers(&app.config, headers) {
        return Ok(filter);
    }
    let forbidden = |message: &str| Err(RestError::new(StatusCode::FORBIDDEN, message));
    let client = guard::client(&app.config, headers, "rest");
    let Some(own) = app.gateway.origin_of(&client).key else {
        return forbidden("The audit is for keys with `admin = true`, or for clients on loopback");
    };
    match &filter.key {
        Some(key) if *key != own => {
            forbidden("The records of other keys are for keys with `admin = true`")
        }
        _ => Ok(AuditFilter {
            key: Some(own),
            ..filter
        }),
    }
}

fn written(form: AuditForm, page: &AuditPage, uri: &Uri) -> Response {
    let link = page.next.as_ref().and_then(|next| link(uri, next));
    let mut response = match form {
        AuditForm::Json | AuditForm::Follow => {
            Json(json!({"records": page.records, "next": page.next})).into_response()
        }
        AuditForm::Lines => {
            let lines = page.records.iter().map(line);
            typed("application/jsonl", lines.collect())
        }
        AuditForm::Csv => {
            let lines = page.records.iter().map(csv::line);
            let table = std::iter::once(csv::head()).chain(lines).collect();
            typed("text/csv; charset=utf-8; header=present", table)
        }
    };
    if let Some(link) = link {
        response.headers_mut().insert(header::LINK, link);
    }
    response
}

fn typed(content_type: &'static str, text: String) -> Response {
    ([(header::CONTENT_TYPE, content_type)], text).into_response()
}

fn line(record: &AuditRecord) -> String {
    serde_json::to_string(record).unwrap_or_default() + "\n"
}

/// Where the next page is (RFC 8288).
fn link(uri: &Uri, next: &str) -> Option<HeaderValue> {
    let mut query = form_urlencoded::Serializer::new(String::new());
    let asked = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    query.extend_pairs(asked.filter(|(name, _)| name != "cursor"));
    query.append_pair("cursor", next);
    let (path, query) = (uri.path(), query.finish());
    HeaderValue::try_from(format!("<{path}?{query}>; rel=\"next\"")).ok()
}

/// The records since the time that is asked for, at most a page, and then each as it comes.
async fn follow(
    app: &Arc<App>,
    path: &str,
    headers: &HeaderMap,
    filter: AuditFilter,
) -> Result<Response, RestError> {
    let holder = guard::holder_of(&app.config, path, headers);
    let place = HeldPlace::of(app.mcp.streams(), holder)?;
    let Some(live) = app.gateway.audit().follow() else {
        return Err(RestError::new(
            StatusCode::NOT_FOUND,
            "The audit is switched off",
        ));
    };
    // What comes meanwhile is in both.
    let before = match filter.since {
        None => AuditPage::default(),
        Some(_) => {
            let query = AuditQuery {
                filter: filter.clone(),
                cursor: None,
                limit: MAX_PAGE,
            };
            app.gateway.audit().page(query).await.unwrap_or_default()
        }
    };
    let following = Following {
        seen: before.records.iter().map(|it| it.id.clone()).collect(),
        live,
        filter,
        keepalive: app.gateway.keepalive(),
        stopping: app.mcp.stopping().clone(),
        _place: place,
    };
    let first = before.records.iter().rev().map(event);
    let first: String = std::iter::once(": connected\n\n".to_owned())
        .chain(first)
        .collect();
    let pieces = stream::once(async { Ok(Bytes::from(first)) }).chain(following.into_stream());
    let mut response = typed("text/event-stream", String::new());
    *response.body_mut() = Body::from_stream(pieces);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response.extensions_mut().insert(Lasting);
    Ok(response)
}

/// A client that hears of records as they come.
struct Following {
    live: Receiver<Arc<AuditRecord>>,
    filter: AuditFilter,
    /// Ids of the records that it got before.
    seen: HashSet<String>,
    keepalive: Duration,
    stopping: CancellationToken,
    _place: HeldPlace,
}

impl Following {
    fn into_stream(self) -> impl Stream<Item = Result<Bytes, Infallible>> {
        stream::unfold(self, |mut this| async move {
            let stopping = this.stopping.clone();
            let text = stopping.run_until_cancelled(this.next()).await??;
            Some((Ok(Bytes::from(text)), this))
        })
    }

    /// The next event, or a comment when there was none for a while; `None` at the end.
    async fn next(&mut self) -> Option<String> {
        let waiting = async {
            loop {
                match self.live.recv().await {
                    Ok(record) if self.filter.matches(&record) && !self.seen.remove(&record.id) => {
                        return Some(event(&record));
                    }
                    Ok(_) => {}
                    Err(RecvError::Lagged(missed)) => {
                        let missed = json!({"missed": missed});
                        return Some(format!("event: missed\ndata: {missed}\n\n"));
                    }
                    Err(RecvError::Closed) => return None,
                }
            }
        };
        match timeout(self.keepalive, waiting).await {
            Ok(event) => event,
            Err(_) => Some(": keep-alive\n\n".to_owned()),
        }
    }
}

/// JSON has no line breaks of its own.
fn event(record: &AuditRecord) -> String {
    format!("id: {}\nevent: record\ndata: {}\n", record.id, line(record))
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, millis)
}
