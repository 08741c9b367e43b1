//! Results that serve again for calls which ask the same, across requests: by server, for one client or for all.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError, Weak},
};

use tokio::time::Instant;

use crate::store::Principal;
use toolway_core::{
    agent::Job,
    catalog::Offered,
    route::cache::{CacheRules, canonical},
};
use toolway_protocol::{
    mcp::results::write_result,
    tool::{FunctionName, ServerId, ToolResult},
};

/// Most results of one server.
const MAX_RESULTS: usize = 1000;

/// Longest result that is kept, with the arguments that it was asked for with, in bytes of JSON.
const MAX_RESULT_BYTES: usize = 64 << 10;

/// Most bytes of the results of one server.
const MAX_BYTES: usize = 16 << 20;

/// The results that are kept, by server.
#[derive(Debug, Default)]
pub(in crate::gateway) struct KeptResults(HashMap<ServerId, ServerResults>);

#[derive(Debug)]
struct ServerResults {
    rules: CacheRules,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When a call ended that may have changed something.
    changed: Option<Instant>,
    results: HashMap<CallKey, KeptResult>,
}

/// Who asks (`None` for a result that serves everyone), and what.
type CallKey = (Option<Principal>, FunctionName, String);

#[derive(Debug)]
struct KeptResult {
    /// The tool as it was when it was called.
    tool: Weak<Offered>,
    result: ToolResult,
    bytes: usize,
    expires: Instant,
}

impl KeptResults {
    /// By what the configuration says about each server.
    pub(in crate::gateway) fn new(
        rules: impl IntoIterator<Item = (ServerId, CacheRules)>,
    ) -> KeptResults {
        let servers = rules.into_iter().map(|(server, rules)| {
            let state = Mutex::default();
            (server, ServerResults { rules, state })
        });
        KeptResults(servers.collect())
    }

    /// The result that serves this call.
    pub(super) fn find(&self, principal: Principal, job: &Job) -> Option<ToolResult> {
        let server = self.server_that_keeps(&job.offered)?;
        let state = server.lock();
        if state.results.is_empty() {
            return None;
        }
        let mut key = key(Some(principal), job);
        let own = state.results.get(&key);
        key.0 = None;
        let found = own.or_else(|| state.results.get(&key))?;
        let is_same = std::ptr::eq(found.tool.as_ptr(), &raw const *job.offered);
        (is_same && found.expires > Instant::now()).then(|| found.result.clone())
    }

    /// Keeps the result of a call that was begun at `begun`, where it may serve again and nothing may have changed since.
    pub(super) fn keep(
        &self,
        principal: Principal,
        job: &Job,
        result: &ToolResult,
        begun: Instant,
    ) {
        let Some(server) = self.server_that_keeps(&job.offered) else {
            return;
        };
        let Some(lifetime) = server.rules.lifetime(&job.offered, result) else {
            return;
        };
        let key = key((!lifetime.is_public).then_some(principal), job);
        let bytes = key.2.len() + write_result(result.clone()).to_string().len();
        if bytes > MAX_RESULT_BYTES {
            return;
        }
        let kept = KeptResult {
            tool: job.offered.downgrade(),
            result: result.clone(),
            bytes,
            expires: Instant::now() + lifetime.lasts,
        };
        let mut state = server.lock();
        if state.changed.is_none_or(|changed| changed < begun) {
            make_room(&mut state.results, bytes);
            state.results.insert(key, kept);
        }
    }

    /// Forgets the results of a tool's server when the guard of a call is dropped, if the call may have changed
    /// something, as one that was cancelled may have too.
    pub(super) fn forget_after(&self, tool: &Offered) -> ForgetGuard<'_> {
        let server = self.0.get(&tool.server);
        ForgetGuard(server.filter(|server| server.rules.may_change(tool)))
    }

    /// Forgets every result of a server.
    pub(in crate::gateway) fn forget(&self, server: &ServerId) {
        drop(ForgetGuard(self.0.get(server)));
    }

    fn server_that_keeps(&self, tool: &Offered) -> Option<&ServerResults> {
        let server = self.0.get(&tool.server)?;
        server.rules.may_keep(tool).then_some(server)
    }
}

/// A running call.
pub(super) struct ForgetGuard<'a>(Option<&'a ServerResults>);

impl Drop for ForgetGuard<'_> {
    fn drop(&mut self) {
        if let Some(server) = self.0 {
            let mut state = server.lock();
            state.changed = Some(Instant::now());
            state.results.clear();
        }
    }
}

impl ServerResults {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(principal: Option<Principal>, job: &Job) -> CallKey {
    (
        principal,
        job.offered.name.clone(),
        canonical(&job.arguments),
    )
}

/// Removes what has expired, and otherwise what expires first, until there is room for one more of so many bytes.
fn make_room(kept: &mut HashMap<CallKey, KeptResult>, more: usize) {
    let has_room = |kept: &HashMap<CallKey, KeptResult>| {
        let bytes = kept.values().map(|result| result.bytes).sum::<usize>();
        kept.len() < MAX_RESULTS && bytes + more <= MAX_BYTES
    };
    if has_room(kept) {
        return;
    }
    let now = Instant::now();
    kept.retain(|_, result| result.expires > now);
    while !has_room(kept) {
        let mut ends: Vec<Instant> = kept.values().map(|result| result.expires).collect();
        ends.sort_unstable();
        let first = ends[ends.len() / 10];
        kept.retain(|_, result| result.expires > first);
    }
}
