//! `toolway approvals`, `approve` and `deny`: the calls that wait for a person, asked for at the running gateway.

use anyhow::{Context, Result, bail};
use reqwest::{Method, Response};
use serde_json::{Value, json};

use super::terminal;
use crate::{config::Config, server::APPROVAL_TOKEN};

/// Most columns of the arguments.
const ARGUMENTS: usize = 60;

/// The gateway that runs with a configuration.
pub(super) struct Running {
    base: String,
    key: Option<String>,
    /// What a decision has to bring.
    token: Option<String>,
    http: reqwest::Client,
}

/// Which later calls are approved as well.
pub(super) struct Remembered {
    /// `call` or `tool`.
    pub(super) what: &'static str,
    /// `session` or `forever`.
    pub(super) until: &'static str,
}

impl Running {
    /// The gateway at `url`, or where the configuration says; `key` is the name of the key, in place of the first.
    pub(super) fn new(config: &Config, url: Option<&str>, key: Option<&str>) -> Result<Running> {
        crate::upstream::install_tls();
        let mut address = config.server.bind;
        if address.ip().is_unspecified() {
            address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
        }
        let keys = &config.server.api_keys;
        let key = match key {
            None => keys.first(),
            Some(name) => {
                let found = keys.iter().find(|it| it.name == name);
                Some(found.with_context(|| format!("there is no key `{name}`"))?)
            }
        };
        Ok(Running {
            base: url.map_or_else(
                || format!("http://{address}"),
                |url| url.trim_end_matches('/').to_owned(),
            ),
            key: key.map(|it| it.secret.expose().to_owned()),
            token: config
                .server
                .approval_token
                .as_ref()
                .map(|it| it.expose().to_owned()),
            // The audit names it so.
            http: reqwest::Client::builder()
                .no_proxy()
                .user_agent(concat!("toolway/", env!("CARGO_PKG_VERSION")))
                .build()?,
        })
    }

    /// The calls that wait, as text or as JSON.
    pub(super) async fn list(&self, as_json: bool) -> Result<String> {
        let list = self.pending().await?;
        if as_json {
            return Ok(format!("{:#}\n", json!({"confirmations": list})));
        }
        if list.is_empty() {
            return Ok("no call waits for approval\n".to_owned());
        }
        let rows: Vec<Vec<String>> = list.iter().map(row).collect();
        Ok(terminal::columns(&rows))
    }

    /// What is approved for later calls, as text or as JSON.
    pub(super) async fn grants(&self, as_json: bool) -> Result<String> {
        let answer = self.ask(Method::GET, "/grants", None).await?;
        let Some(grants) = answer["grants"].as_array().filter(|_| !as_json) else {
            return Ok(format!("{answer:#}\n"));
        };
        if grants.is_empty() {
            return Ok("nothing is approved for later calls\n".to_owned());
        }
        let row = |grant: &Value| {
            let text = |name: &str| terminal::safe(grant[name].as_str().unwrap_or_default());
            let arguments = match &grant["arguments"] {
                Value::Null => "every call".to_owned(),
                arguments => terminal::safe(&terminal::brief(&arguments.to_string(), ARGUMENTS)),
            };
            vec![text("id"), text("name"), arguments, text("until")]
        };
        Ok(terminal::columns(
            &grants.iter().map(row).collect::<Vec<_>>(),
        ))
    }

    /// Takes an approval for later calls back.
    pub(super) async fn revoke(&self, id: &str) -> Result<String> {
        let path = format!("/grants/{id}");
        self.ask(Method::DELETE, &path, None).await?;
        Ok(format!("{} is revoked\n", terminal::safe(id)))
    }

    /// Decides on the call whose id begins so.
    pub(super) async fn decide(
        &self,
        start: &str,
        confirms: bool,
        remember: Option<Remembered>,
        as_json: bool,
    ) -> Result<String> {
        let pending = self.pending().await?;
        let is_meant = |it: &&Value| {
            it["confirmation_id"]
                .as_str()
                .is_some_and(|id| id.starts_with(start))
        };
        let meant: Vec<&Value> = pending.iter().filter(is_meant).collect();
        let [meant] = meant[..] else {
            match meant.len() {
                0 => bail!(
                    "no call waits for approval as `{start}`; `toolway approvals` lists those that do"
                ),
                many => bail!("`{start}` is the beginning of {many} ids; write more of it"),
            }
        };
        let mut body = json!({"confirm": confirms});
        if let Some(Remembered { what, until }) = remember {
            body["remember"] = json!({"what": what, "until": until});
        }
        let id = meant["confirmation_id"].as_str().unwrap_or_default();
        let path = format!("/confirmations/{id}");
        let answer = self.ask(Method::POST, &path, Some(body)).await?;
        if as_json {
            return Ok(format!("{answer:#}\n"));
        }
        let name = terminal::bold(meant["name"].as_str().unwrap_or_default());
        Ok(match confirms {
            true => format!("approved: one call of {name}\n"),
            false => format!("denied: {name}\n"),
        })
    }

    async fn pending(&self) -> Result<Vec<Value>> {
        let path = "/confirmations?state=pending";
        let mut answer = self.ask(Method::GET, path, None).await?;
        match answer["confirmations"].take() {
            Value::Array(list) => Ok(list),
            _ => bail!("what answers at {} is no toolway with approvals", self.base),
        }
    }

    /// The JSON of an answer.
    ///
    /// # Errors
    /// When no gateway answers, or it answers with an error.
    pub(super) async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Value> {
        let text = self.send(method, path, body).await?.text().await?;
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    /// An answer, see [`Running::ask`].
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Response> {
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        if let Some(token) = &self.token {
            request = request.header(APPROVAL_TOKEN, token);
        }
        if let Some(body) = body {
            let request_body = body.to_string();
            request = request
                .header("content-type", "application/json")
                .body(request_body);
        }
        let sent = request.send().await;
        let unreachable = || {
            format!(
                "no gateway answers at {}; `toolway serve` starts one",
                self.base
            )
        };
        let response = sent.with_context(unreachable)?;
        let status = response.status();
        if !status.is_success() {
            let answer = response.text().await?;
            let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
            let error = &answer["error"];
            let message = error.as_str().or_else(|| error["message"].as_str());
            bail!(
                "the gateway answered {status}: {}",
                message.unwrap_or_default()
            );
        }
        Ok(response)
    }
}

/// Id, tool, arguments, rule and end of a call that waits.
fn row(confirmation: &Value) -> Vec<String> {
    let text = |name: &str| terminal::safe(confirmation[name].as_str().unwrap_or_default());
    let arguments = confirmation["arguments"].to_string();
    let why = confirmation["reason"].as_str();
    let why = why.unwrap_or_else(|| confirmation["rule"].as_str().unwrap_or_default());
    vec![
        text("confirmation_id"),
        text("name"),
        terminal::safe(&terminal::brief(&arguments, ARGUMENTS)),
        terminal::safe(why),
        format!("until {}", text("expires_at")),
    ]
}
