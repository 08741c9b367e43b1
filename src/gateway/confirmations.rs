//! The one list of calls that wait for a person, whatever face they came through.
//!
//! A call that the policy asks about is kept as a [`Confirmation`] in the store. It waits here for a decision, or ends with
//! an error that names the confirmation; the same call goes through when it is made again after the approval, once. Which
//! calls are asked about is for `policy` to say, and `calls` has them settled here before they run.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use ring::digest::{Context, SHA256};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{random::unguessable, source::RequestSource};
use crate::audit::Audit;
use crate::store::{
    Principal, StoreEntries,
    confirmations::{Confirmation, ConfirmationState, Grant},
};
use toolway_core::{
    audit::{AuditEvent, AuditRecord, AuditVerdict},
    catalog::Offered,
    policy::{Admitted, Asked},
    route::cache::canonical,
};
use toolway_protocol::tool::{CallError, JsonObject, millis};

/// How often a call that waits looks for decisions of other processes on the same store.
const LOOK: Duration = Duration::from_secs(1);

/// How long a client can answer a question that is a part of its conversation: as long as that is kept.
const QUESTION: Duration = Duration::from_secs(24 * 60 * 60);

/// What the model reads where a person has denied a call.
const REFUSED: &str = "a person has refused this call";

/// How approvals are asked for (`[approvals]` in the configuration).
#[derive(Clone, Debug)]
pub struct Config {
    /// What a chat does with a call that has to be approved. Default: it waits.
    pub chat: WhenAsked,
    /// How long it waits. Default: 60 s.
    pub wait: Duration,
    /// How long a call can be approved, and then made. Default: 10 min.
    pub expires: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            chat: WhenAsked::Waits,
            wait: Duration::from_secs(60),
            expires: Duration::from_secs(600),
        }
    }
}

/// What a request does while a person is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenAsked {
    /// It waits for a while.
    Waits,
    /// It goes on at once, and reads that the call waits.
    Ends,
}

/// Who makes a call, as the list names it.
#[derive(Clone, Debug)]
pub struct CallOrigin {
    /// Whose call it is.
    pub principal: Principal,
    /// The name of the client's key.
    pub key: Option<String>,
    /// The face.
    pub face: &'static str,
    /// The session of the request.
    pub session: Option<String>,
    /// What the request does meanwhile.
    pub when_asked: WhenAsked,
    /// Where the request comes from.
    pub source: RequestSource,
}

impl CallOrigin {
    /// A record of it.
    pub(super) fn record(&self) -> AuditRecord {
        AuditRecord {
            request: self.source.request_id(),
            key: self.key.clone(),
            face: Some(self.face.into()),
            client: self.source.client_name(),
            ..AuditRecord::default()
        }
    }
}

/// Whose confirmations may be seen and decided on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those of one client.
    Own(Principal),
    /// Those of all clients.
    All,
}

/// Which later calls are approved as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remember {
    /// Every call of the tool, not only the same one.
    pub whole_tool: bool,
    /// Not only in the session of the request.
    pub for_ever: bool,
}

/// Why a decision has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undecided {
    /// There is no such confirmation, or it was decided on before.
    Unknown,
    /// It has expired.
    Expired,
    /// It is to be remembered for a session, and the request had none.
    NoSession,
}

/// The list.
#[derive(Debug, Default)]
pub struct Confirmations {
    config: Config,
    entries: Arc<StoreEntries>,
    audit: Audit,
    /// Grows with every decision of this process.
    decided: watch::Sender<u64>,
}

impl Confirmations {
    /// The list in this store.
    pub(super) fn new(config: Config, entries: Arc<StoreEntries>, audit: Audit) -> Confirmations {
        Confirmations {
            config,
            entries,
            audit,
            decided: watch::Sender::new(0),
        }
    }

    /// What is recorded of calls.
    pub(super) fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Records what was decided on a call, or that a person is asked; `by` is whose request that is, if it is one's.
    fn note(&self, by: Option<&CallOrigin>, confirmation: &Confirmation, verdict: AuditVerdict) {
        self.audit.record(|| AuditRecord {
            event: AuditEvent::Approval,
            server: Some(confirmation.server.clone()),
            tool: Some(confirmation.name.clone()),
            verdict: Some(verdict),
            rule: Some(confirmation.rule.clone()),
            confirmation: Some(confirmation.id.clone()),
            ..match by {
                Some(by) => by.record(),
                None => AuditRecord {
                    key: confirmation.key.clone(),
                    face: Some(confirmation.face.clone().into()),
                    ..AuditRecord::default()
                },
            }
        });
    }

    /// What chats do while a person is asked.
    pub(super) fn of_chats(&self) -> WhenAsked {
        self.config.chat
    }

    /// Returns when the call may be made, once. `announce` hears of the confirmation that is waited for.
    ///
    /// Dropping the future leaves the confirmation in the list.
    ///
    /// # Errors
    /// [`CallError::Denied`], or [`CallError::WaitingForApproval`] where nobody has decided in time.
    pub(super) async fn settle<A: Future<Output = ()>>(
        &self,
        origin: &CallOrigin,
        tool: &Admitted,
        arguments: &JsonObject,
        mut announce: impl FnMut(Confirmation) -> A,
    ) -> Result<(), CallError> {
        let until = match origin.when_asked {
            WhenAsked::Waits => Instant::now() + self.config.wait,
            WhenAsked::Ends => Instant::now(),
        };
        let mut decided = self.decided.subscribe();
        let mut announced = None;
        loop {
            decided.borrow_and_update();
            let pending = match self.look(origin, tool, arguments).await? {
                Looked::Approved => return Ok(()),
                Looked::Pending(pending) => pending,
            };
            if announced.as_ref() != Some(&pending.id) {
                announced = Some(pending.id.clone());
                announce((*pending).clone()).await;
            }
            let now = Instant::now();
            if now >= until {
                return Err(waiting(&pending));
            }
            tokio::select! {
                biased;
                _ = decided.changed() => {}
                () = sleep_until(until.min(now + LOOK)) => {}
            }
        }
    }

    /// How long a person is waited for.
    pub(super) fn wait(&self) -> Duration {
        self.config.wait
    }

    /// Uses up what approves the call, or gives the confirmation that it waits for, a new one if there is none.
    ///
    /// # Errors
    /// [`CallError::Denied`].
    pub(super) async fn look(
        &self,
        origin: &CallOrigin,
        tool: &Admitted,
        arguments: &JsonObject,
    ) -> Result<Looked, CallError> {
        let hashes = Hashes::of_call(tool, arguments);
        if self.has_grant(origin, &hashes).await {
            return Ok(Looked::Approved);
        }
        match self.decision(origin.principal, &hashes.call).await? {
            Decision::Approved => Ok(Looked::Approved),
            Decision::Pending(pending) => Ok(Looked::Pending(pending)),
            Decision::None => {
                let opened = self.open(origin, tool, arguments, true).await?;
                Ok(Looked::Pending(Box::new(opened)))
            }
        }
    }

    /// Takes the answer that a client gave for its own call, which is made by this request if it is approved.
    ///
    /// # Errors
    /// [`CallError::Denied`], also where the confirmation is for another call, or not known any more.
    pub(super) async fn answer(
        &self,
        origin: &CallOrigin,
        id: &str,
        (tool, arguments): (&Admitted, &JsonObject),
        confirms: bool,
    ) -> Result<(), CallError> {
        let denied = |reason: &str| CallError::Denied {
            reason: reason.to_owned(),
        };
        let scope = Scope::Own(origin.principal);
        let found = self.find(scope, id).await;
        let call = Hashes::of_call(tool, arguments).call;
        if found.is_none_or(|it| it.call != call) {
            return Err(denied(
                "the approval is for another call; this one was not made",
            ));
        }
        let state = match confirms {
            true => ConfirmationState::Used,
            false => ConfirmationState::Denied,
        };
        match (self.decide(origin, scope, id, state, None).await, confirms) {
            (Ok(_), true) => Ok(()),
            (Ok(_), false) => Err(denied(REFUSED)),
            // It was decided on elsewhere meanwhile.
            (Err(_), _) => match self.decision(origin.principal, &call).await? {
                Decision::Approved if confirms => Ok(()),
                _ => Err(denied(
                    "the approval was used or has expired; make the call again",
                )),
            },
        }
    }

    /// A server asks for more input before it carries an approved call out: the call that brings it is approved as well.
    pub(super) async fn let_continue(
        &self,
        origin: &CallOrigin,
        tool: &Admitted,
        arguments: &JsonObject,
    ) {
        // Without randomness the person is asked again.
        if let Ok(opened) = self.add(origin, tool, arguments, true).await {
            let approved = ConfirmationState::Approved;
            self.entries.change_confirmation(&opened, approved).await;
        }
    }

    /// What was decided on a call. An approval is used up by this.
    async fn decision(&self, principal: Principal, call: &str) -> Result<Decision, CallError> {
        let now = now();
        let all = self.entries.confirmations_of(principal, call).await;
        let (live, over): (Vec<_>, Vec<_>) = all
            .into_iter()
            .partition(|it| it.is_live(now) && it.state != ConfirmationState::Used);
        for confirmation in over {
            self.forget(&confirmation).await;
        }
        let of = |state| live.iter().filter(move |it| it.state == state);
        for approved in of(ConfirmationState::Approved) {
            let used = ConfirmationState::Used;
            if self.entries.change_confirmation(approved, used).await {
                return Ok(Decision::Approved);
            }
        }
        if of(ConfirmationState::Denied).next().is_some() {
            return Err(CallError::Denied {
                reason: REFUSED.to_owned(),
            });
        }
        let pending = of(ConfirmationState::Pending).next();
        Ok(pending.map_or(Decision::None, |it| Decision::Pending(Box::new(it.clone()))))
    }

    /// Adds a call to the list. With `by_call` the same call finds it when it is made again.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub async fn open(
        &self,
        origin: &CallOrigin,
        tool: &Admitted,
        arguments: &JsonObject,
        by_call: bool,
    ) -> Result<Confirmation, CallError> {
        let confirmation = self.add(origin, tool, arguments, by_call).await?;
        self.note(Some(origin), &confirmation, AuditVerdict::Asked);
        let (id, tool, rule) = (&confirmation.id, &confirmation.name, &confirmation.rule);
        tracing::info!(confirmation = %id.get(..11).unwrap_or(id), tool.name = %tool, rule, "A call waits for approval");
        Ok(confirmation)
    }

    async fn add(
        &self,
        origin: &CallOrigin,
        tool: &Admitted,
        arguments: &JsonObject,
        by_call: bool,
    ) -> Result<Confirmation, CallError> {
        let id = format!("cf_{}", unguessable().map_err(|_| CallError::Busy)?);
        let arguments = serde_json::to_string(arguments).unwrap_or_default();
        let call = (&**tool, arguments.as_str());
        let confirmation = asked_call(origin, id, call, tool.asked(), self.config.expires);
        self.entries.keep_confirmation(&confirmation, by_call).await;
        Ok(confirmation)
    }

    /// Adds a call that the client is asked about within its answer, by a question of this name.
    pub(super) async fn ask_client(
        &self,
        origin: &CallOrigin,
        question: &str,
        call: (&Offered, &str),
        asked: &Asked,
    ) {
        let id = question.to_owned();
        let confirmation = asked_call(origin, id, call, Some(asked), QUESTION);
        self.entries.keep_confirmation(&confirmation, false).await;
        self.note(Some(origin), &confirmation, AuditVerdict::Asked);
    }

    /// Uses up the question of this name for a call that the client wants made; its request approves the call unless that
    /// was decided on elsewhere.
    pub(super) async fn use_question(
        &self,
        origin: &CallOrigin,
        question: &str,
        (tool, arguments): (Option<&Offered>, &str),
    ) -> Question {
        let scope = Scope::Own(origin.principal);
        // Another decision may come in between, once.
        for _ in 0..2 {
            let Some(found) = self.find(scope, question).await else {
                return Question::Unknown;
            };
            if tool.is_none_or(|tool| Hashes::of(tool, arguments).call != found.call) {
                return Question::OfAnotherCall;
            }
            let used = ConfirmationState::Used;
            let is_used = match found.state {
                ConfirmationState::Pending => {
                    let decided = self.decide(origin, scope, question, used, None);
                    decided.await.is_ok()
                }
                ConfirmationState::Approved if found.is_live(now()) => {
                    self.entries.change_confirmation(&found, used).await
                }
                ConfirmationState::Denied => return Question::Denied,
                ConfirmationState::Approved | ConfirmationState::Used => return Question::Unknown,
            };
            if is_used {
                return Question::Used;
            }
        }
        Question::Unknown
    }

    /// Forgets a confirmation that is over.
    async fn forget(&self, confirmation: &Confirmation) {
        let was_there = self.entries.forget_confirmation(confirmation).await;
        if was_there && confirmation.state == ConfirmationState::Pending {
            self.note(None, confirmation, AuditVerdict::Expired);
        }
    }

    /// What can be seen, the newest first: what is pending, and what was decided and not swept yet.
    pub async fn list(&self, scope: Scope) -> Vec<Confirmation> {
        let mut all = self.entries.all_confirmations().await;
        let now = now();
        all.retain(|it| scope.has(it.principal) && it.is_live(now));
        all
    }

    /// The confirmation of this name.
    pub async fn find(&self, scope: Scope, id: &str) -> Option<Confirmation> {
        match scope {
            Scope::Own(principal) => self.entries.confirmation(principal, id).await,
            Scope::All => {
                let all = self.entries.all_confirmations().await;
                all.into_iter().find(|it| it.id == id)
            }
        }
    }

    /// Decides on a pending confirmation, at the request of `by`; gives it as it was before. Of several decisions one counts.
    ///
    /// # Errors
    /// See [`Undecided`].
    pub async fn decide(
        &self,
        by: &CallOrigin,
        scope: Scope,
        id: &str,
        state: ConfirmationState,
        remember: Option<Remember>,
    ) -> Result<Confirmation, Undecided> {
        let found = self.find(scope, id).await.ok_or(Undecided::Unknown)?;
        if found.state != ConfirmationState::Pending {
            return Err(Undecided::Unknown);
        }
        if !found.is_live(now()) {
            self.forget(&found).await;
            return Err(Undecided::Expired);
        }
        if remember.is_some_and(|it| !it.for_ever) && found.session.is_none() {
            return Err(Undecided::NoSession);
        }
        if !self.entries.change_confirmation(&found, state).await {
            return Err(Undecided::Unknown);
        }
        if let (Some(remember), true) = (remember, state != ConfirmationState::Denied) {
            self.grant(&found, remember).await;
        }
        self.decided.send_modify(|decided| *decided += 1);
        let verdict = match state {
            ConfirmationState::Denied => AuditVerdict::Refused,
            _ => AuditVerdict::Confirmed,
        };
        self.note(Some(by), &found, verdict);
        let (id, tool) = (&found.id, &found.name);
        tracing::info!(confirmation = %id.get(..11).unwrap_or(id), tool.name = %tool, ?state, "A call was decided on");
        Ok(found)
    }

    /// The approvals that hold for later calls.
    pub async fn grants(&self, scope: Scope) -> Vec<Grant> {
        let mut all = self.entries.all_grants().await;
        all.retain(|it| scope.has(it.principal));
        all
    }

    /// Takes one of them back. False if there is none of this name.
    pub async fn revoke(&self, scope: Scope, id: &str) -> bool {
        let all = self.grants(scope).await;
        match all.iter().find(|it| it.id == id) {
            Some(grant) => self.entries.revoke(grant).await,
            None => false,
        }
    }

    async fn grant(&self, confirmation: &Confirmation, remember: Remember) {
        // Without randomness the call is approved, and nothing is remembered.
        let Ok(id) = unguessable() else { return };
        let grant = Grant {
            id: format!("grant_{id}"),
            principal: confirmation.principal,
            name: confirmation.name.clone(),
            arguments: (!remember.whole_tool).then(|| confirmation.arguments.clone()),
            hash: match remember.whole_tool {
                true => confirmation.definition.clone(),
                false => confirmation.call.clone(),
            },
            session: confirmation.session.clone().filter(|_| !remember.for_ever),
            created: now(),
        };
        self.entries.keep_grant(&grant).await;
    }

    /// An approval for later calls holds for this one.
    pub(super) async fn is_granted(
        &self,
        origin: &CallOrigin,
        tool: &Admitted,
        arguments: &JsonObject,
    ) -> bool {
        self.has_grant(origin, &Hashes::of_call(tool, arguments))
            .await
    }

    async fn has_grant(&self, origin: &CallOrigin, hashes: &Hashes) -> bool {
        let hashes = [hashes.call.clone(), hashes.definition.clone()];
        let grants = self.entries.grants_of(origin.principal, hashes).await;
        let mut grants = grants.iter();
        grants.any(|it| it.session.is_none() || it.session == origin.session)
    }
}

/// Where a call stands.
pub(super) enum Looked {
    /// It may be made, once.
    Approved,
    /// It waits for a decision.
    Pending(Box<Confirmation>),
}

/// Where a question stands that a client was asked within its answer.
pub(super) enum Question {
    /// It is used up with this request: the call is to be made now.
    Used,
    /// A person has denied the call.
    Denied,
    /// It is for another call.
    OfAnotherCall,
    /// It does not exist, has expired, or was used up before.
    Unknown,
}

enum Decision {
    Approved,
    Pending(Box<Confirmation>),
    None,
}

impl Scope {
    fn has(self, principal: Principal) -> bool {
        match self {
            Scope::Own(own) => own == principal,
            Scope::All => true,
        }
    }
}

/// What binds an approval to a call.
struct Hashes {
    definition: String,
    call: String,
}

impl Hashes {
    /// Of arguments as they are written; what is no list of arguments is as it stands.
    fn of(tool: &Offered, arguments: &str) -> Hashes {
        match serde_json::from_str(arguments) {
            Ok(read) => Hashes::of_call(tool, &read),
            Err(_) => Hashes::new(tool, arguments),
        }
    }

    fn of_call(tool: &Offered, arguments: &JsonObject) -> Hashes {
        Hashes::new(tool, &canonical(arguments))
    }

    fn new(tool: &Offered, arguments: &str) -> Hashes {
        let parts = [tool.server.as_str(), &tool.tool.name, &tool.json];
        let definition = hash(&parts);
        let call = hash(&[&definition, arguments]);
        Hashes { definition, call }
    }
}

/// The tool is as it was when the call was asked for.
pub(super) fn is_same_definition(tool: &Admitted, confirmation: &Confirmation) -> bool {
    Hashes::of_call(tool, &JsonObject::new()).definition == confirmation.definition
}

/// A call that nobody has decided on, with its arguments as JSON.
fn asked_call(
    origin: &CallOrigin,
    id: String,
    (tool, arguments): (&Offered, &str),
    asked: Option<&Asked>,
    expires: Duration,
) -> Confirmation {
    let Hashes { definition, call } = Hashes::of(tool, arguments);
    let created = now();
    Confirmation {
        id,
        principal: origin.principal,
        key: origin.key.clone(),
        face: origin.face.to_owned(),
        session: origin.session.clone(),
        server: tool.server.to_string(),
        tool: tool.tool.name.clone(),
        name: tool.name.to_string(),
        definition,
        call,
        arguments: arguments.to_owned(),
        rule: asked.map(|it| it.rule.clone()).unwrap_or_default(),
        reason: asked.and_then(|it| it.reason.clone()),
        risk: tool.risk.as_ref().map(|it| it.level.number()),
        created,
        expires: created.saturating_add(millis(expires)),
        state: ConfirmationState::Pending,
    }
}

/// A hash of texts, each with its length before it.
pub(super) fn hash(parts: &[&str]) -> String {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(&part.len().to_be_bytes());
        context.update(part.as_bytes());
    }
    let digest = context.finish();
    digest
        .as_ref()
        .iter()
        .map(|it| format!("{it:02x}"))
        .collect()
}

/// The error of a call on which nobody has decided.
pub(super) fn waiting(pending: &Confirmation) -> CallError {
    let rule = &pending.rule;
    let why = match &pending.reason {
        Some(reason) => format!("{reason} ({rule})"),
        None => rule.clone(),
    };
    CallError::WaitingForApproval {
        id: pending.id.clone(),
        reason: why,
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, millis)
}
