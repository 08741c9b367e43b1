//! `toolway audit`: the records of calls, decisions and servers, from the running gateway or from the files.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use reqwest::Method;
use serde_json::Value;
use url::form_urlencoded;

use super::{approvals::Running, args::AuditArgs, terminal};
use crate::{
    audit::{self, AuditPage, AuditQuery},
    config::Config,
    printable,
};
use toolway_core::audit::{AuditEvent, AuditRecord, csv, params::AuditParams};
use toolway_protocol::{sse::Framer, tool::millis};

/// Records of one request.
const PAGE: usize = 1000;

/// Longest record, in bytes.
const MAX_EVENT: usize = 16 << 20;

/// How records are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordStyle {
    Text,
    Json,
    Csv,
}

/// Prints what is asked for; with `follow` until it is stopped.
pub(super) async fn run(config: &Config, asked: &AuditArgs) -> Result<()> {
    let style = match (asked.json, asked.csv) {
        (true, _) => RecordStyle::Json,
        (_, true) => RecordStyle::Csv,
        (false, false) => RecordStyle::Text,
    };
    let (url, key) = (asked.url.as_deref(), asked.own_key.as_deref());
    let gateway = Running::new(config, url, key)?;
    let params = asked.params()?;
    if asked.follow {
        return follow(&gateway, &params, style).await;
    }
    let limit = usize::try_from(asked.limit).unwrap_or(PAGE);
    let asking = pages(limit, async |cursor, limit| {
        from_gateway(&gateway, &params, cursor, limit).await
    });
    let records = match asking.await {
        Err(error) if url.is_none() && is_unreachable(&error) => {
            let filter = params.filter(now()).map_err(anyhow::Error::msg)?;
            let read = pages(limit, async |cursor, limit| {
                let filter = filter.clone();
                let query = AuditQuery {
                    filter,
                    cursor,
                    limit,
                };
                let page = audit::read_files(&config.audit, &config.data, query);
                page.await.context("the files cannot be read")
            });
            read.await.map_err(|_| error)?
        }
        records => records?,
    };
    let lines = records.iter().rev().map(|it| line(it, style));
    let text = match style {
        RecordStyle::Text if records.is_empty() => "no records\n".to_owned(),
        RecordStyle::Text => terminal::columns(&records.iter().rev().map(row).collect::<Vec<_>>()),
        RecordStyle::Csv => std::iter::once(csv::head()).chain(lines).collect(),
        RecordStyle::Json => lines.collect(),
    };
    show(text, style).await
}

/// The newest records, page by page.
async fn pages(
    limit: usize,
    mut ask: impl AsyncFnMut(Option<String>, usize) -> Result<AuditPage>,
) -> Result<Vec<AuditRecord>> {
    let mut records = Vec::new();
    let mut cursor = None;
    loop {
        let page = ask(cursor, PAGE.min(limit - records.len())).await?;
        records.extend(page.records);
        cursor = page.next;
        if cursor.is_none() || records.len() >= limit {
            return Ok(records);
        }
    }
}

async fn from_gateway(
    gateway: &Running,
    params: &AuditParams,
    cursor: Option<String>,
    limit: usize,
) -> Result<AuditPage> {
    let params = AuditParams {
        cursor,
        limit: Some(limit),
        ..params.clone()
    };
    let mut page = gateway.ask(Method::GET, &path(&params)?, None).await?;
    Ok(AuditPage {
        next: page["next"].as_str().map(str::to_owned),
        records: serde_json::from_value(page["records"].take())
            .context("what answers is no toolway with an audit")?,
    })
}

async fn follow(gateway: &Running, params: &AuditParams, style: RecordStyle) -> Result<()> {
    let params = AuditParams {
        follow: Some(true),
        ..params.clone()
    };
    let response = gateway.send(Method::GET, &path(&params)?, None).await?;
    let mut pieces = response.bytes_stream();
    let mut framer = Framer::new(MAX_EVENT);
    while let Some(piece) = pieces.next().await {
        framer.push(piece?);
        while let Some(event) = framer.next() {
            let event = event?;
            let Some(data) = event.data() else { continue };
            let record: Value = serde_json::from_str(&data).unwrap_or_default();
            match serde_json::from_value::<AuditRecord>(record.clone()) {
                Ok(record) if !record.id.is_empty() => show(line(&record, style), style).await?,
                _ => tracing::warn!("{} records were missed", record["missed"]),
            }
        }
    }
    bail!("the gateway has ended")
}

fn path(params: &AuditParams) -> Result<String> {
    let mut query = form_urlencoded::Serializer::new(String::new());
    if let Value::Object(members) = serde_json::to_value(params)? {
        for (name, value) in members {
            let text = match value {
                Value::String(text) => text,
                other => other.to_string(),
            };
            query.append_pair(&name, &text);
        }
    }
    Ok(format!("/audit?{}", query.finish()))
}

fn is_unreachable(error: &anyhow::Error) -> bool {
    let mut causes = error.chain();
    causes.any(|it| it.downcast_ref().is_some_and(reqwest::Error::is_connect))
}

fn line(record: &AuditRecord, style: RecordStyle) -> String {
    match style {
        RecordStyle::Text => row(record).join("  ") + "\n",
        RecordStyle::Json => serde_json::to_string(record).unwrap_or_default() + "\n",
        RecordStyle::Csv => csv::line(record),
    }
}

/// Time, key, face, verdict, what it is about, how it ended, how long it took, why.
fn row(record: &AuditRecord) -> Vec<String> {
    let or_dash = |text: Option<&str>| terminal::safe(text.unwrap_or("-"));
    let verdict = record.verdict.and_then(|it| serde_json::to_value(it).ok());
    let verdict = verdict.as_ref().and_then(Value::as_str).unwrap_or("-");
    let verdict = match verdict {
        "denied" | "refused" => terminal::bad(verdict),
        "asked" | "expired" => terminal::odd(verdict),
        other => other.to_owned(),
    };
    let about = match record.event {
        AuditEvent::Server => format!("server {}", record.server.as_deref().unwrap_or_default()),
        AuditEvent::Dropped => format!("{} records were lost", record.dropped.unwrap_or_default()),
        AuditEvent::Call | AuditEvent::Approval => record.tool.clone().unwrap_or_default(),
    };
    let outcome = match record.outcome.as_deref() {
        Some("ok") => terminal::good("ok"),
        other => or_dash(other.or(record.confirmation.as_deref())),
    };
    let duration = record.duration_ms.map(|it| format!("{it} ms"));
    let why = match record.event {
        AuditEvent::Call if record.error.is_none() => "",
        _ => record
            .error
            .as_deref()
            .or(record.rule.as_deref())
            .unwrap_or_default(),
    };
    vec![
        terminal::safe(&record.time),
        or_dash(record.key.as_deref()),
        or_dash(record.face.as_deref()),
        verdict,
        terminal::bold(&about),
        outcome,
        duration.unwrap_or_else(|| "-".to_owned()),
        terminal::safe(why),
    ]
}

async fn show(text: String, style: RecordStyle) -> Result<()> {
    let text = match style {
        RecordStyle::Json => printable::json(&text).into_owned(),
        RecordStyle::Text => printable::line(&text).into_owned(),
        RecordStyle::Csv => return super::show_raw(text).await,
    };
    super::show(text, String::new()).await
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, millis)
}
