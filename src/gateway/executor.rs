//! Runs calls that come without a chat, as a turn of a chat would run them: the same policy, checks, order, limits and
//! records.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use toolway_core::{
    agent::{Bounds, Effect, Event, Turn, cut_results::CutResults},
    catalog::{Catalog, Selected, Selection},
    route::Order,
    translate::{results::Media, stream::Round, tool_responses::Executed},
};

use super::{
    Gateway, RequestClient,
    calls::{CallEvent, CallLimits, RunningCalls},
    failure::Failure,
};

/// Longest text of one result, in bytes.
const MAX_RESULT_BYTES: usize = 16 << 20;

impl Gateway {
    /// The tools that these patterns select; `None` selects every tool.
    ///
    /// # Errors
    /// When a pattern is not valid.
    pub fn select_tools(
        &self,
        catalog: &Catalog,
        tools: Option<&str>,
        servers: Option<&str>,
    ) -> Result<Arc<Selected>, Failure> {
        let selection = Selection::parse(tools, servers, &[], catalog.servers());
        let selection = selection.map_err(super::request_options::refused)?;
        Ok(catalog.select(&selection, &[], usize::MAX))
    }

    /// Runs the calls of `round` and gives their results, in the order of the calls; a call that cannot run has an error
    /// as its result.
    ///
    /// Dropping the future cancels what is running.
    ///
    /// # Errors
    /// When the time of a request is up, or toolway ends.
    pub async fn execute(
        &self,
        round: Round,
        catalog: Arc<Catalog>,
        selected: Arc<Selected>,
        order: Order,
        client: RequestClient,
    ) -> Result<Vec<Executed>, Failure> {
        let bounds = Bounds {
            max_rounds: 2,
            max_calls: self.config.max_calls,
            max_all_calls: None,
            max_result_bytes: MAX_RESULT_BYTES,
            media: Media {
                images: false,
                audio: false,
            },
            send_reasoning: false,
            order,
            forces_own_call: false,
            sees_calls: false,
        };
        let mut turn = Turn::new(
            bounds,
            Arc::clone(&catalog),
            Arc::clone(&selected),
            self.policy_of(client.key),
            CutResults::default(),
        );
        turn.begin();
        let after = self.config.request_timeout;
        let deadline = Instant::now() + after;
        let offered = (&*selected, &*catalog);
        let running = self.run_turn(&mut turn, round, client, offered, deadline);
        let working = timeout_at(deadline, running);
        match self.ending.run_until_cancelled(working).await {
            Some(Ok(messages)) => Ok(messages),
            Some(Err(_)) => Err(Failure::TimeIsUp { after }),
            None => Err(Failure::ShuttingDown),
        }
    }

    async fn run_turn(
        &self,
        turn: &mut Turn,
        round: Round,
        client: RequestClient,
        (selected, catalog): (&Selected, &Catalog),
        deadline: Instant,
    ) -> Vec<Executed> {
        let limits = CallLimits {
            silence: self.config.tool_timeout,
            deadline,
        };
        let mut effect = turn.on(Event::Answered(round));
        let calls = self.calls_of(&client);
        for refused in turn.take_refused() {
            self.record_refused(calls.origin(), &refused, selected, catalog);
        }
        if let Some(Effect::Run(lanes)) = effect {
            let parallel = self.config.parallel_calls;
            let mut running = RunningCalls::new(self, calls, lanes, limits, parallel);
            effect = None;
            while let Some(event) = running.next().await {
                if let CallEvent::Finished {
                    job,
                    outcome,
                    duration_ms,
                    ..
                } = event
                {
                    let place = job.place;
                    let finished = Event::Finished {
                        place,
                        outcome,
                        duration_ms,
                    };
                    effect = turn.on(finished);
                }
            }
        }
        match effect {
            // The next request to the model holds the results.
            Some(Effect::Ask(ask)) => executed(&ask.appended),
            Some(Effect::Run(_) | Effect::Finish(_) | Effect::NoAnswer) | None => Vec::new(),
        }
    }
}

/// The results in the messages that a turn adds to a conversation.
fn executed(messages: &str) -> Vec<Executed> {
    let messages: Vec<serde_json::Value> =
        serde_json::from_str(&format!("[{messages}]")).unwrap_or_default();
    messages.iter().filter_map(Executed::of_message).collect()
}
