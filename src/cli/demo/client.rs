//! The demo's client: asks one question as any OpenAI client would, and shows what comes and what happened.

use std::{io::Write, net::SocketAddr, time::Duration};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::model;
use crate::cli::terminal;
use toolway_protocol::sse::Framer;

/// The question. It needs two tools.
const QUESTION: &str = "What is 19 x 23, and how many letters has \"gateway\"?";

/// Asks the question and prints the answer as it arrives, then what happened underneath.
pub(super) async fn ask(address: SocketAddr) -> Result<()> {
    let mut out = anstream::stdout();
    writeln!(out, "toolway listens on http://{address}")?;
    writeln!(
        out,
        "Its model is a demo of a few rules, its tools are in a built-in MCP server.\n"
    )?;
    writeln!(out, "{} {QUESTION}", terminal::bold("you  "))?;
    write!(out, "{} ", terminal::bold("model"))?;
    out.flush()?;
    let seen = read(address, |text| {
        write!(out, "{text}")?;
        out.flush()?;
        Ok(())
    })
    .await?;
    writeln!(out, "\n\nWhat happened underneath:")?;
    for line in &seen.lines {
        writeln!(out, "  {line}")?;
    }
    writeln!(
        out,
        "  first word after {} ms, whole answer after {} ms\n",
        seen.first.as_millis(),
        seen.whole.as_millis()
    )?;
    Ok(())
}

/// What was received besides the text.
struct DemoTrace {
    lines: Vec<String>,
    first: Duration,
    whole: Duration,
}

async fn read(address: SocketAddr, mut show: impl FnMut(&str) -> Result<()>) -> Result<DemoTrace> {
    let body = json!({"model": model::NAME, "stream": true, "messages": [{"role": "user", "content": QUESTION}]});
    let begun = Instant::now();
    let client = reqwest::Client::builder().no_proxy().build()?;
    let request = client
        .post(format!("http://{address}/v1/chat/completions"))
        .header("content-type", "application/json")
        .header("x-toolway-progress", "on")
        .body(body.to_string());
    let mut response = request
        .send()
        .await
        .context("the gateway does not answer")?;
    if !response.status().is_success() {
        bail!(
            "the gateway answered {}: {}",
            response.status(),
            response.text().await?
        );
    }
    let mut seen = DemoTrace {
        lines: Vec::new(),
        first: Duration::ZERO,
        whole: Duration::ZERO,
    };
    let mut framer = Framer::new(1 << 20);
    let mut arguments = std::collections::HashMap::new();
    while let Some(bytes) = response.chunk().await? {
        framer.push(bytes);
        while let Some(event) = framer.next() {
            let event = event?;
            let Some(chunk) = event
                .data()
                .and_then(|data| serde_json::from_str::<Value>(&data).ok())
            else {
                continue;
            };
            if let Some(error) = chunk["error"]["message"].as_str() {
                bail!("the answer ended in an error: {error}");
            }
            if let Some(text) = chunk["choices"][0]["delta"]["content"]
                .as_str()
                .filter(|text| !text.is_empty())
            {
                if seen.first.is_zero() {
                    seen.first = begun.elapsed();
                }
                show(text)?;
            }
            note(&chunk["toolway"], &mut arguments, &mut seen.lines);
        }
    }
    seen.whole = begun.elapsed();
    Ok(seen)
}

/// Records a call that has ended.
fn note(
    note: &Value,
    arguments: &mut std::collections::HashMap<String, String>,
    lines: &mut Vec<String>,
) {
    let text = |name: &str| note[name].as_str().unwrap_or_default().to_owned();
    match text("type").as_str() {
        "call_started" => {
            arguments.insert(text("id"), note["arguments"].to_string());
        }
        "call_finished" => {
            let given = arguments.remove(&text("id")).unwrap_or_default();
            lines.push(format!(
                "the model called {} with {given}: tool `{}` of MCP server `{}`, {} after {} ms",
                text("name"),
                text("tool"),
                text("server"),
                text("status"),
                note["duration_ms"]
            ));
        }
        _ => {}
    }
}

/// Prints how to ask the same from outside, while it serves or, when it is over, for the next time.
pub(super) fn say_how(address: SocketAddr, is_over: bool) -> Result<()> {
    let mut out = anstream::stdout();
    if is_over {
        writeln!(
            out,
            "Without `--once` the demo goes on serving, and these lines ask the same.\n"
        )?;
    }
    let name = model::NAME;
    writeln!(out, "The same with curl:\n")?;
    let body =
        json!({"model": name, "stream": true, "messages": [{"role": "user", "content": QUESTION}]});
    writeln!(
        out,
        "curl -N http://{address}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'\n"
    )?;
    let question = json!(QUESTION);
    writeln!(out, "with Python (pip install openai):\n")?;
    writeln!(out, "from openai import OpenAI")?;
    writeln!(
        out,
        "client = OpenAI(base_url=\"http://{address}/v1\", api_key=\"none\")"
    )?;
    writeln!(
        out,
        "for chunk in client.chat.completions.create(model=\"{name}\", stream=True, messages=[{{\"role\": \"user\", \"content\": {question}}}]):"
    )?;
    writeln!(
        out,
        "    print(chunk.choices[0].delta.content or \"\", end=\"\", flush=True)\n"
    )?;
    writeln!(
        out,
        "with Node (npm install openai; in a file that ends in .mjs):\n"
    )?;
    writeln!(out, "import OpenAI from \"openai\";")?;
    writeln!(
        out,
        "const client = new OpenAI({{ baseURL: \"http://{address}/v1\", apiKey: \"none\" }});"
    )?;
    writeln!(
        out,
        "const stream = await client.chat.completions.create({{ model: \"{name}\", stream: true, messages: [{{ role: \"user\", content: {question} }}] }});"
    )?;
    writeln!(
        out,
        "for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content ?? \"\");\n"
    )?;
    if !is_over {
        writeln!(
            out,
            "http://{address}/health tells how the servers are, http://{address}/tools what models are offered."
        )?;
        writeln!(out, "Ctrl-C ends the demo.")?;
    }
    out.flush()?;
    Ok(())
}
