//! The model providers: the rules for each, and the rules between them.

use std::{collections::BTreeMap, time::Duration};

use http::{HeaderName, HeaderValue};
use url::Url;

use super::{
    check::Check,
    keys::unknown,
    raw::{RawModel, RawUpstream},
    values::Origin,
};
use crate::secret::Secret;
use crate::upstream::model;
use toolway_core::translate::stream::TextCalls;

/// Where requests go when no upstream is configured.
const DEFAULT_BASE_URL: &str = "https://api.openai.com/v1";

/// Headers that belong to the connection and cannot be configured.
const RESERVED_HEADERS: [&str; 6] = [
    "connection",
    "content-length",
    "expect",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// The forms of tool calls in plain text, as they are written in the configuration.
const TEXT_FORMS: [&str; 5] = [
    "tool_call_tags",
    "fenced_json",
    "python_tag",
    "mistral",
    "harmony",
];

/// The upstream for `--upstream URL`.
pub(super) fn from_url(written: &str) -> RawUpstream {
    RawUpstream {
        base_url: Some(written.to_owned()),
        ..RawUpstream::default()
    }
}

impl Check<'_> {
    /// All upstreams; without any, OpenAI with the client's own key.
    ///
    /// A client's key is for one provider. With one upstream it is that one. With several the configuration has to name
    /// it, because the key does not show which provider it is for.
    pub(super) fn upstreams(
        &mut self,
        raw: Vec<RawUpstream>,
        models: &BTreeMap<String, RawModel>,
    ) -> Vec<model::Config> {
        let raw = if raw.is_empty() {
            vec![from_url(DEFAULT_BASE_URL)]
        } else {
            raw
        };
        let is_only = raw.len() == 1;
        let with_client_key = raw
            .iter()
            .enumerate()
            .filter(|(_, raw)| raw.client_key == Some(true));
        let with_client_key: Vec<usize> = with_client_key.map(|(i, _)| i).collect();
        if let [first, others @ ..] = &with_client_key[..] {
            for i in others {
                self.problem(
                    format_args!("upstreams[{i}].client_key"),
                    format_args!("upstreams[{first}] has it already; a client's key goes to one upstream only"),
                );
            }
        }
        let numbered = raw.into_iter().enumerate();
        let unnamed = numbered.clone().filter(|(_, raw)| raw.name.is_none());
        let unnamed: Vec<usize> = unnamed.map(|(i, _)| i).collect();
        let all: Vec<_> = numbered
            .filter_map(|(i, raw)| {
                let upstream = self.upstream(&format!("upstreams[{i}]"), raw, is_only)?;
                Some((i, upstream))
            })
            .collect();
        for (at, (i, upstream)) in all.iter().enumerate() {
            for (first, earlier) in &all[..at] {
                if earlier.name == upstream.name {
                    let advice = match unnamed.contains(first) || unnamed.contains(i) {
                        true => {
                            "; without `name` the host of `base_url` is the name, so add `name = \"…\"` to one of them"
                        }
                        false => "",
                    };
                    let message = format!(
                        "`{}` is already the name of upstreams[{first}]{advice}",
                        earlier.name
                    );
                    self.problem(format_args!("upstreams[{i}].name"), message);
                } else if covers(earlier, upstream) && !is_behind_a_name(upstream, models) {
                    self.warn(
                        format_args!("upstreams[{i}].models"),
                        format_args!(
                            "never gets a request: upstreams[{first}] (`{}`) takes all its models first",
                            earlier.name
                        ),
                    );
                    break;
                }
            }
        }
        all.into_iter().map(|(_, upstream)| upstream).collect()
    }

    fn upstream(&mut self, path: &str, raw: RawUpstream, is_only: bool) -> Option<model::Config> {
        let key = |key: &str| format!("{path}.{key}");
        let name = raw.name.map(|name| self.upstream_name(&key("name"), name));
        let api_key = raw
            .api_key
            .as_deref()
            .map(|written| self.key(&key("api_key"), written));
        let headers = self.headers(&key("headers"), raw.headers, &Origin::Toml);
        if api_key.is_some()
            && headers
                .iter()
                .any(|(name, _)| name == http::header::AUTHORIZATION)
        {
            self.problem(
                key("headers.Authorization"),
                "`api_key` already sets this header",
            );
        }
        let (images, audio) = self.modalities(path, raw.modalities.as_deref().unwrap_or_default());
        let seconds = Duration::from_secs;
        let api = self.api(&key("api"), raw.api.as_deref());
        let base_url = self.base_url(&key("base_url"), raw.base_url.as_deref(), api);
        let mut config = model::Config {
            name: String::new(),
            base_url: base_url
                .clone()
                .unwrap_or(Url::parse(DEFAULT_BASE_URL).ok()?),
            api,
            api_key: api_key.flatten(),
            client_key: raw.client_key.unwrap_or(is_only),
            headers,
            models: self.models(path, raw.models),
            max_tools: self.number(key("max_tools"), raw.max_tools, 1..=10_000, 128),
            text_tool_calls: self.text_calls(path, raw.text_tool_calls.as_deref()),
            think_tags: raw.think_tags.unwrap_or(false),
            send_reasoning: raw.send_reasoning.unwrap_or(true),
            images,
            audio,
            skip_invalid_events: raw.skip_invalid_events.unwrap_or(false),
            connect_timeout: self.time(key("connect_timeout"), raw.connect_timeout, seconds(10)),
            first_byte_timeout: self.time(
                key("first_byte_timeout"),
                raw.first_byte_timeout,
                seconds(300),
            ),
            silence_timeout: self.time(key("silence_timeout"), raw.silence_timeout, seconds(120)),
            retries: self.number(key("retries"), raw.retries, 0..=10, 2),
        };
        if config.has_own_key() {
            if raw.client_key == Some(true) {
                self.problem(
                    key("client_key"),
                    "the upstream has a key of its own; leave out one of the two",
                );
            }
            config.client_key = false;
        }
        let host = base_url?.host_str()?.to_owned();
        Some(model::Config {
            name: name.unwrap_or(host),
            ..config
        })
    }

    fn upstream_name(&mut self, path: &str, name: String) -> String {
        let odd = |c: char| c.is_control() || c.is_whitespace();
        if name.is_empty() {
            self.problem(path, "must not be empty");
        } else if name.len() > 64 || name.contains(odd) {
            self.problem(path, "a name has at most 64 characters and no spaces");
        }
        name
    }

    fn base_url(&mut self, path: &str, written: Option<&str>, api: model::Api) -> Option<Url> {
        let Some(written) = written else {
            self.problem(
                path,
                "is missing; write for example \"http://127.0.0.1:11434/v1\"",
            );
            return None;
        };
        let mut url = self.url(path, written)?;
        let trimmed = url.path().trim_end_matches('/').to_owned();
        if let Some(base) = trimmed.strip_suffix("/chat/completions") {
            self.problem(
                path,
                format_args!("ends one step too late; write it up to `{base}`"),
            );
        }
        if url.query().is_some() {
            self.problem(
                path,
                "must not have a `?` part, since paths are added to it",
            );
        }
        let is_root_meant = written.trim().ends_with("/.");
        match trimmed.is_empty() && !is_root_meant {
            true if api == model::Api::Gemini => url.set_path("/v1beta"),
            true => url.set_path("/v1"),
            false => url.set_path(&trimmed),
        }
        Some(url)
    }

    /// A URL of a server that speaks HTTP.
    pub(super) fn url(&mut self, path: &str, written: &str) -> Option<Url> {
        let written = written.trim();
        if !written.starts_with("http://") && !written.starts_with("https://") {
            self.problem(path, "must begin with http:// or https://");
            return None;
        }
        let mut url = match Url::parse(written) {
            Ok(url) => url,
            Err(error) => {
                self.problem(path, format_args!("is no URL: {error}"));
                return None;
            }
        };
        if !url.username().is_empty() || url.password().is_some() {
            self.problem(
                path,
                "must not hold a name or password; use a header for that",
            );
        }
        url.set_fragment(None);
        Some(url)
    }

    /// Headers to send: names that exist, values that can be sent. The values stay secret.
    pub(super) fn headers(
        &mut self,
        path: &str,
        written: Option<BTreeMap<String, String>>,
        origin: &Origin,
    ) -> Vec<(HeaderName, Secret)> {
        let mut headers: Vec<(HeaderName, Secret)> = Vec::new();
        for (written, value) in written.unwrap_or_default() {
            let path = format!("{path}.{written}");
            let Ok(name) = HeaderName::from_bytes(written.as_bytes()) else {
                self.problem(path, "is no name of a header");
                continue;
            };
            if RESERVED_HEADERS.contains(&name.as_str()) {
                self.problem(path, "is set by the connection itself");
                continue;
            }
            if headers.iter().any(|(earlier, _)| *earlier == name) {
                self.problem(path, "stands here twice");
                continue;
            }
            let Some(value) = self.value(&path, &value, origin) else {
                continue;
            };
            if HeaderValue::from_str(&value).is_err() {
                self.problem(path, "holds a character that a header cannot carry");
                continue;
            }
            headers.push((name, Secret::new(value)));
        }
        headers
    }

    fn models(&mut self, path: &str, written: Option<Vec<String>>) -> Vec<String> {
        let Some(models) = written else {
            return Vec::new();
        };
        if models.is_empty() {
            self.problem(
                format_args!("{path}.models"),
                "is empty; leave it out for every model",
            );
        }
        for (i, pattern) in models.iter().enumerate() {
            let at = format!("{path}.models[{i}]");
            if pattern.is_empty() {
                self.problem(at, "must not be empty");
            } else if let Some(c) = pattern.chars().find(|c| "?[]{}\\".contains(*c)) {
                self.problem(at, format_args!("`{c}` means nothing here; only `*` does"));
            } else if pattern.contains(|c: char| c.is_whitespace() || c.is_control()) {
                self.problem(at, "no model has a space in its name");
            }
        }
        models
    }

    fn modalities(&mut self, path: &str, written: &[String]) -> (bool, bool) {
        for (i, word) in written.iter().enumerate() {
            if word != "image" && word != "audio" && word != "text" {
                let message = unknown("modality", word, &["image", "audio"]);
                self.problem(format_args!("{path}.modalities[{i}]"), message);
            }
        }
        let has = |wanted: &str| written.iter().any(|word| word == wanted);
        (has("image"), has("audio"))
    }

    fn api(&mut self, path: &str, written: Option<&str>) -> model::Api {
        let Some(written) = written else {
            return model::Api::default();
        };
        model::Api::parse(written).unwrap_or_else(|| {
            self.problem(path, unknown("API", written, &model::API_NAMES));
            model::Api::default()
        })
    }

    fn text_calls(&mut self, path: &str, written: Option<&[String]>) -> TextCalls {
        let mut forms = TextCalls::default();
        for (i, word) in written.unwrap_or_default().iter().enumerate() {
            match word.as_str() {
                "tool_call_tags" => forms.tool_call_tags = true,
                "fenced_json" => forms.fenced_json = true,
                "python_tag" => forms.python_tag = true,
                "mistral" => forms.mistral = true,
                "harmony" => forms.harmony = true,
                other => self.problem(
                    format_args!("{path}.text_tool_calls[{i}]"),
                    unknown("form", other, &TEXT_FORMS),
                ),
            }
        }
        forms
    }
}

/// Requests for some name of one's own reach it.
fn is_behind_a_name(upstream: &model::Config, models: &BTreeMap<String, RawModel>) -> bool {
    let mut targets = models
        .values()
        .filter_map(|it| it.targets.as_ref())
        .flatten();
    targets.any(|it| it.starts_with(&format!("{}/", upstream.name)))
}

/// Every model that `later` takes is one that `earlier` takes.
fn covers(earlier: &model::Config, later: &model::Config) -> bool {
    let everything = ["*".to_owned()];
    let patterns = |of: &model::Config| {
        if of.models.is_empty() {
            everything.to_vec()
        } else {
            of.models.clone()
        }
    };
    let earlier = patterns(earlier);
    patterns(later)
        .iter()
        .all(|later| earlier.iter().any(|earlier| is_within(later, earlier)))
}

/// Everything that `narrow` matches is matched by `wide`; a `*` in `narrow` fits only a `*` in `wide`.
fn is_within(narrow: &str, wide: &str) -> bool {
    let Some((start, rest)) = wide.split_once('*') else {
        return narrow == wide;
    };
    let Some(mut left) = narrow.strip_prefix(start) else {
        return false;
    };
    let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    for piece in middle.split('*') {
        match left.split_once(piece) {
            Some((_, after)) => left = after,
            None => return false,
        }
    }
    left.ends_with(end)
}
