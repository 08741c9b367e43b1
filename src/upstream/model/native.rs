//! Models whose API is not chat completions: requests and answers are translated on their way (`translate::dialect`), so
//! that everything above sees a chat.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{HeaderMap, StatusCode};
use serde_json::Value;

use super::{
    Api, Body, ClientHeaders, HttpError, Incoming, ModelError, Refused, RoundPosition, Upstream,
    uri,
};
use crate::upstream::read_text;
use toolway_core::translate::{
    dialect::{
        AnswerReader, AnswerWriter, Delta, Request, Unsupported, Written, anthropic,
        chat::{self, ChunkWriter},
        gemini, responses,
        sealed_turns::{self, PartsBuilder, SealedTurns},
    },
    ids::Ids,
};
use toolway_protocol::{
    json_size::{MAX_VALUES, check_values},
    openai::ErrorBody,
    segmented_body::SegmentedBody,
    sse::{self, FrameError, Framer, SseEvent},
    tool::JsonObject,
};

/// Most models of which something is remembered.
const MAX_LEARNED: usize = 1000;
/// Longest event of an answer, in bytes.
const MAX_EVENT_BYTES: usize = 16 << 20;
/// Longest whole answer, in bytes.
const MAX_BODY_BYTES: usize = 64 << 20;
/// Room for what one piece of an answer comes to, which most have enough of.
const ROOM: usize = 512;
/// Most bytes of turns with seals that are kept for one upstream.
pub(super) const MAX_SEALED_BYTES: usize = 32 << 20;

/// How a model is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// With the request as it is.
    Chat,
    /// With `reasoning_effort: "none"`, for it takes tools in no other way.
    WithoutReasoning,
    /// As a response; reasoning comes back encrypted if it is `sealed`.
    Responses { sealed: bool },
    /// As a message.
    Anthropic,
    /// With `generateContent`.
    Gemini,
}

/// What was found out about models by asking them.
#[derive(Debug, Default)]
pub(super) struct Learned {
    any: AtomicBool,
    ways: Mutex<HashMap<String, Way>>,
}

impl Learned {
    fn way(&self, model: &str) -> Option<Way> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        // A thread that panicked with it has written whole entries.
        let ways = self.ways.lock().unwrap_or_else(PoisonError::into_inner);
        ways.get(model).copied()
    }

    fn remember(&self, model: &str, way: Way) {
        let mut ways = self.ways.lock().unwrap_or_else(PoisonError::into_inner);
        if ways.len() < MAX_LEARNED || ways.contains_key(model) {
            ways.insert(model.to_owned(), way);
        }
        self.any.store(true, Ordering::Release);
    }
}

/// The turns of one client.
struct TurnsOfClient {
    turns: Arc<Mutex<SealedTurns>>,
    client: u64,
}

impl TurnsOfClient {
    fn keep(&self, answer: PartsBuilder) {
        if let Some(parts) = answer.sealed() {
            self.lock().keep(self.client, parts);
        }
    }

    fn restore(&self, request: &mut Request) {
        sealed_turns::restore(&mut request.turns, |id| self.lock().find(self.client, id));
    }

    /// A thread that panicked with them lost a turn at most.
    fn lock(&self) -> MutexGuard<'_, SealedTurns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Upstream {
    /// Asks for a chat completion, in whatever API the model is to be asked. `headers` are the client's; the upstream's
    /// own key is added here. Sends again what is safe to send again; nothing has been shown to the client of this
    /// answer yet.
    ///
    /// Dropping the future, or the [`Incoming`], ends the call.
    pub async fn chat(
        &self,
        headers: &ClientHeaders,
        model: &str,
        body: &SegmentedBody<'_>,
        round: RoundPosition,
    ) -> Result<Incoming, ModelError> {
        let call = Asking {
            upstream: self,
            headers,
            model,
            round,
        };
        let way = self.way(model);
        if way != Way::Chat {
            return Box::pin(call.ask(way, body)).await;
        }
        let plain = call.without_raw_parts(body);
        let plain = plain.as_deref().map(SegmentedBody::of);
        let plain = plain.as_ref().unwrap_or(body);
        match self.post(&self.chat, headers, plain, round).await {
            Err(ModelError::Refused(refused))
                if self.config.api == Api::Auto && wants_responses(&refused) =>
            {
                Box::pin(call.ask_otherwise(body, refused)).await
            }
            answered => call.warned(Api::Chat, answered),
        }
    }

    /// As far as is known, the model answers with chat completions.
    pub(super) fn is_asked_in_chat(&self, model: &str) -> bool {
        matches!(self.way(model), Way::Chat | Way::WithoutReasoning)
    }

    fn way(&self, model: &str) -> Way {
        self.learned.way(model).unwrap_or(match self.config.api {
            Api::Auto | Api::Chat => Way::Chat,
            Api::Responses => Way::Responses { sealed: true },
            Api::Anthropic => Way::Anthropic,
            Api::Gemini => Way::Gemini,
        })
    }
}

/// One question to a model that does not take it as a chat completion.
struct Asking<'a> {
    upstream: &'a Upstream,
    headers: &'a ClientHeaders,
    model: &'a str,
    round: RoundPosition,
}

impl Asking<'_> {
    /// The body for a model that is asked with a chat, if there is something in it that no chat API takes.
    fn without_raw_parts(&self, body: &SegmentedBody<'_>) -> Option<Vec<u8>> {
        let original = self.headers.original.as_ref();
        original.filter(|original| !original.left_out.is_empty())?;
        let bytes = body.to_bytes();
        read_text(bytes.len(), || {
            let mut body: JsonObject = serde_json::from_slice(&bytes).ok()?;
            chat::remove_raw_parts(&mut body);
            serde_json::to_vec(&body).ok()
        })
    }

    /// Asks a model that has refused a chat completion.
    async fn ask_otherwise(
        &self,
        body: &SegmentedBody<'_>,
        refused: Box<Refused>,
    ) -> Result<Incoming, ModelError> {
        let sealed = Way::Responses { sealed: true };
        match self.ask(sealed, body).await {
            Err(ModelError::Refused(other)) if is_missing_route(&other) => {}
            answered => return answered,
        }
        // What the second refusal says is about a request that the client did not make.
        match self.ask(Way::WithoutReasoning, body).await {
            Err(ModelError::Refused(_)) => Err(ModelError::Refused(refused)),
            answered => answered,
        }
    }

    /// Asks in this way, and remembers it for the model when that works.
    async fn ask(&self, way: Way, body: &SegmentedBody<'_>) -> Result<Incoming, ModelError> {
        let bytes = body.to_bytes();
        let parse = || serde_json::from_slice::<JsonObject>(&bytes);
        let body = read_text(bytes.len(), parse)
            .map_err(|error| self.unsupported(&Unsupported::unreadable(&error)))?;
        match way {
            Way::Responses { sealed } => {
                let request = self.read(body)?;
                let mut answered = self.respond(&request, sealed).await;
                let mut way = way;
                if sealed && matches!(&answered, Err(ModelError::Refused(it)) if is_about_seals(it))
                {
                    way = Way::Responses { sealed: false };
                    answered = self.respond(&request, false).await;
                }
                self.note(way, answered)
            }
            Way::Anthropic => {
                let request = self.read(body)?;
                let mut written = anthropic::write_request(&request);
                if let Some(original) = self.original(Api::Anthropic) {
                    anthropic::restore(&mut written.body, original);
                }
                anthropic::defer(&mut written.body, self.deferred());
                let reader = Box::new(anthropic::EventReader::default());
                let url = &self.upstream.messages;
                let answered = self.ask_native(url, &request, written, reader).await;
                self.warned(Api::Anthropic, answered)
            }
            Way::Gemini => {
                let request = self.read(body)?;
                match self.generate(&request, true).await {
                    Err(ModelError::Refused(it)) if is_about_signatures(&it) => {
                        let answered = self.generate(&request, false).await;
                        self.warned(Api::Gemini, answered)
                    }
                    answered => self.warned(Api::Gemini, answered),
                }
            }
            Way::Chat | Way::WithoutReasoning => {
                let mut body = body;
                body.insert("reasoning_effort".to_owned(), "none".into());
                let mut answered = self.send(&self.upstream.chat, &body).await;
                if let Ok(incoming) = &mut answered {
                    let warning = format!("{} does not think here when it has tools", self.model);
                    incoming.warnings.push(warning);
                }
                let answered = self.warned(Api::Chat, answered);
                self.note(way, answered)
            }
        }
    }

    /// The request of a chat, with what its client may have dropped.
    fn read(&self, body: JsonObject) -> Result<Request, ModelError> {
        let mut request = chat::read_request(body).map_err(|error| self.unsupported(&error))?;
        self.turns().restore(&mut request);
        Ok(request)
    }

    fn turns(&self) -> TurnsOfClient {
        TurnsOfClient {
            turns: Arc::clone(&self.upstream.sealed_turns),
            client: self.headers.client,
        }
    }

    fn note(
        &self,
        way: Way,
        answered: Result<Incoming, ModelError>,
    ) -> Result<Incoming, ModelError> {
        if answered.is_ok() && self.upstream.learned.way(self.model) != Some(way) {
            tracing::info!(
                model = self.model,
                ?way,
                "Found out how the model is to be asked"
            );
            self.upstream.learned.remember(self.model, way);
        }
        answered
    }

    async fn respond(&self, request: &Request, sealed: bool) -> Result<Incoming, ModelError> {
        let mut written = responses::write_request(request, sealed);
        if let Some(original) = self.original(Api::Responses) {
            responses::restore(&mut written.body, original);
        }
        responses::defer(&mut written.body, self.deferred());
        let reader = Box::new(responses::EventReader::default());
        let url = &self.upstream.responses;
        let answered = self.ask_native(url, request, written, reader).await;
        self.warned(Api::Responses, answered)
    }

    /// What the client wrote, if it was in this API.
    fn original(&self, api: Api) -> Option<JsonObject> {
        let original = self.headers.original.as_ref();
        let original = original.filter(|original| original.api == api)?;
        let parse = || serde_json::from_slice(&original.body).ok();
        read_text(original.body.len(), parse)
    }

    /// The tools that the model is to search for.
    fn deferred(&self) -> &[String] {
        let original = self.headers.original.as_ref();
        original.map_or(&[], |original| &original.deferred)
    }

    /// Says what of the client's request a model that is asked in this API is not told.
    fn warned(
        &self,
        api: Api,
        answered: Result<Incoming, ModelError>,
    ) -> Result<Incoming, ModelError> {
        let Some(original) = &self.headers.original else {
            return answered;
        };
        let mut incoming = answered?;
        if original.api != api {
            incoming.warnings.extend(original.warning());
        }
        let searches = matches!(api, Api::Responses | Api::Anthropic);
        if !searches && !original.deferred.is_empty() {
            let warning = format!("{} was asked without: defer_loading", self.model);
            incoming.warnings.push(warning);
        }
        Ok(incoming)
    }

    async fn generate(&self, request: &Request, sealed: bool) -> Result<Incoming, ModelError> {
        let (path, query) = gemini::path(&request.model, request.stream);
        let uri = uri(&self.upstream.url(&path, query));
        let uri = uri.map_err(|_| self.upstream.invalid("to no address of this model"))?;
        let written = gemini::write_request(request, sealed);
        let seed = getrandom::u64().unwrap_or_default();
        let reader = Box::new(gemini::EventReader::new(Ids::new(seed)));
        self.ask_native(&uri, request, written, reader).await
    }

    /// Sends what was written, and translates what is answered.
    async fn ask_native(
        &self,
        uri: &http::Uri,
        request: &Request,
        Written { body, left_out }: Written,
        reader: Box<dyn AnswerReader>,
    ) -> Result<Incoming, ModelError> {
        let incoming = self.send(uri, &body).await?;
        let mut incoming = self.translate(incoming, request, reader).await?;
        if !left_out.is_empty() {
            let names = left_out.join(", ");
            let warning = format!("{} was asked without: {names}", self.model);
            incoming.warnings.push(warning);
        }
        Ok(incoming)
    }

    async fn send(&self, uri: &http::Uri, body: &JsonObject) -> Result<Incoming, ModelError> {
        let body = serde_json::to_vec(body).unwrap_or_default();
        let body = SegmentedBody::of(&body);
        let key = self.upstream.config.api.key_header();
        let moved = key.map(|key| self.headers.with_key_in(&key));
        let headers = moved.as_ref().unwrap_or(self.headers);
        self.upstream.post(uri, headers, &body, self.round).await
    }

    /// The answer as a chat completion.
    async fn translate(
        &self,
        mut incoming: Incoming,
        request: &Request,
        reader: Box<dyn AnswerReader>,
    ) -> Result<Incoming, ModelError> {
        let options = request.rest.get("stream_options");
        let include_usage = options.is_some_and(|options| options["include_usage"] == true);
        if incoming.is_stream {
            let begun = std::mem::replace(&mut incoming.body, Body::Other(stream::empty().boxed()));
            let answer = TranslatedAnswer {
                body: begun,
                framer: Framer::new(MAX_EVENT_BYTES),
                reader,
                writer: ChunkWriter::new(include_usage, now()),
                parts: PartsBuilder::default(),
                turns: self.turns(),
                is_over: false,
            };
            incoming.body = Body::Other(answer.into_stream());
            return Ok(incoming);
        }
        let headers: HeaderMap = std::mem::take(&mut incoming.headers);
        let body = incoming.read_all(MAX_BODY_BYTES).await?;
        let chat = read_text(body.len(), || whole(&body, reader, &self.turns()));
        let pieces = stream::iter([Ok(Bytes::from(chat))]).boxed();
        Ok(self.upstream.incoming(Body::Other(pieces), headers))
    }

    /// An error like those of an upstream, about a request that cannot be made of the client's.
    fn unsupported(&self, error: &Unsupported) -> ModelError {
        let mut body = ErrorBody::new(
            "invalid_request_error",
            "unsupported_parameter",
            error.message.clone(),
        );
        body.param = Some(error.param.clone());
        ModelError::Refused(Box::new(Refused {
            upstream: self.upstream.config.name.clone(),
            status: StatusCode::BAD_REQUEST,
            error: body,
            headers: HeaderMap::new(),
        }))
    }
}

/// The model does not take the request as a chat completion, and names the API that it wants.
fn wants_responses(refused: &Refused) -> bool {
    matches!(refused.status.as_u16(), 400 | 404) && refused.error.message.contains("v1/responses")
}

/// The upstream has no Responses API: a 404 that does not speak of the model.
fn is_missing_route(refused: &Refused) -> bool {
    let is_of_model = refused
        .error
        .code
        .as_ref()
        .is_some_and(|code| code == "model_not_found");
    matches!(refused.status.as_u16(), 404 | 405 | 501) && !is_of_model
}

/// The model does not think, so it has nothing to encrypt.
fn is_about_seals(refused: &Refused) -> bool {
    let ErrorBody { param, message, .. } = &refused.error;
    refused.status == StatusCode::BAD_REQUEST
        && (param.as_deref() == Some("include") || message.contains("content is not supported"))
}

/// Another model, project or key made the signatures that went back.
fn is_about_signatures(refused: &Refused) -> bool {
    let message = refused.error.message.to_ascii_lowercase();
    refused.status == StatusCode::BAD_REQUEST && message.contains("thought signature")
}

/// A whole answer as the body of a chat completion.
fn whole(body: &[u8], mut reader: Box<dyn AnswerReader>, turns: &TurnsOfClient) -> Vec<u8> {
    let deltas: Vec<Delta> = if sse::is_begun_by(body) {
        let mut framer = Framer::new(body.len());
        framer.push(Bytes::copy_from_slice(body));
        let events = std::iter::from_fn(|| framer.next());
        let mut deltas: Vec<Delta> = events.flat_map(|event| read(event, &mut *reader)).collect();
        deltas.extend(reader.end());
        deltas
    } else {
        match parse(body) {
            Ok(answer) => reader.read_whole(answer),
            Err(failed) => vec![*failed],
        }
    };
    let mut parts = PartsBuilder::default();
    deltas.iter().for_each(|delta| parts.add(delta));
    turns.keep(parts);
    match chat::write_answer(deltas, now()) {
        Ok(answer) => Value::Object(answer).to_string().into_bytes(),
        Err(error) => error.to_json(),
    }
}

/// What an event adds to the answer.
fn read(event: Result<SseEvent, FrameError>, reader: &mut dyn AnswerReader) -> Vec<Delta> {
    match event {
        Ok(event) => match event.data() {
            Some(data) if !data.trim().is_empty() && data.trim() != "[DONE]" => {
                if let Some(deltas) = reader.read_quickly(&event) {
                    return deltas;
                }
                match parse(data.as_bytes()) {
                    Ok(event) => reader.read(event),
                    Err(failed) => vec![*failed],
                }
            }
            _ => Vec::new(),
        },
        Err(error) => vec![invalid(&error.to_string())],
    }
}

fn parse(text: &[u8]) -> Result<JsonObject, Box<Delta>> {
    check_values(text, MAX_VALUES).map_err(|error| Box::new(invalid(&error.to_string())))?;
    serde_json::from_slice(text).map_err(|error| {
        // Google puts some errors into a list.
        let named = ErrorBody::in_ok_body(text).map(|(error, _)| Delta::Failed(error));
        Box::new(named.unwrap_or_else(|| invalid(&error.to_string())))
    })
}

fn invalid(why: &str) -> Delta {
    let message = format!("the upstream sent something that cannot be read: {why}");
    Delta::Failed(ErrorBody::new(
        "server_error",
        "upstream_invalid_response",
        message,
    ))
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// A streamed answer that is translated while it arrives.
struct TranslatedAnswer {
    body: Body,
    framer: Framer,
    reader: Box<dyn AnswerReader>,
    writer: ChunkWriter,
    /// What the answer says so far.
    parts: PartsBuilder,
    turns: TurnsOfClient,
    is_over: bool,
}

impl TranslatedAnswer {
    fn into_stream(self) -> stream::BoxStream<'static, Result<Bytes, HttpError>> {
        // In a box, because it is moved for every piece.
        stream::unfold(Box::new(self), |mut answer| async {
            let piece = answer.next().await?;
            Some((piece, answer))
        })
        .boxed()
    }

    /// What the next piece of the upstream's answer comes to. A comment where it comes to nothing: the model is at work,
    /// and who waits should know.
    async fn next(&mut self) -> Option<Result<Bytes, HttpError>> {
        if self.is_over {
            // Whatever follows the end is read, so that the connection can be used again.
            while self.body.next().await?.is_ok() {}
            return None;
        }
        let mut out = Vec::with_capacity(ROOM);
        match self.body.next().await {
            Some(Ok(piece)) => {
                self.framer.push(piece);
                loop {
                    if self.write_alike(&mut out) {
                        continue;
                    }
                    let Some(event) = self.framer.next() else {
                        break;
                    };
                    self.write(event, &mut out);
                }
            }
            Some(Err(error)) => return Some(Err(error)),
            None => {
                let rest = self.framer.finish();
                if let Some(event) = rest {
                    self.write(event, &mut out);
                }
                let end = self.reader.end();
                self.add(end, &mut out);
                self.is_over = true;
                if out.is_empty() {
                    return None;
                }
            }
        }
        if out.is_empty() {
            out.extend_from_slice(b":\n\n");
        }
        Some(Ok(out.into()))
    }

    fn write(&mut self, event: Result<SseEvent, FrameError>, out: &mut Vec<u8>) {
        let deltas = read(event, &mut *self.reader);
        self.add(deltas, out);
    }

    /// Reads the next event if only its text differs from an earlier one, as of most it does.
    fn write_alike(&mut self, out: &mut Vec<u8>) -> bool {
        let alike = self.reader.alike();
        let Some((raw, text)) = alike.and_then(|alike| alike.peek(&mut self.framer)) else {
            return false;
        };
        let (length, text) = (raw.len(), text.into_owned());
        self.framer.skip(length);
        if !text.is_empty() {
            self.add_one(Delta::Text(text), out);
        }
        true
    }

    fn add_one(&mut self, delta: Delta, out: &mut Vec<u8>) {
        self.parts.add(&delta);
        self.writer.write(delta, out);
    }

    fn add(&mut self, deltas: Vec<Delta>, out: &mut Vec<u8>) {
        let is_end = |delta: &Delta| matches!(delta, Delta::Finish(_) | Delta::Failed(_));
        let ends = deltas.iter().any(is_end);
        for delta in deltas {
            self.add_one(delta, out);
        }
        if ends {
            self.turns.keep(std::mem::take(&mut self.parts));
            self.writer.finish(out);
            self.is_over = true;
        }
    }
}
