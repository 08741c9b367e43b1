//! Forwards a request for a model under a name of one's own: the same body to one model after another until one answers,
//! with that model's name in it.

use std::ops::Range;

use axum::{
    body::Bytes,
    http::{StatusCode, request::Parts},
};
use futures::stream;

use super::{App, Incomplete, send};
use crate::{
    gateway::record::Record,
    upstream::model::{Incoming, ModelError, Route, RouteStep},
};

/// A request for one of several models.
pub(super) struct NamedForward<'a> {
    pub(super) route: Route<'a>,
    pub(super) body: Bytes,
    /// Where the model's name stands in the body.
    pub(super) name: Range<usize>,
}

impl NamedForward<'_> {
    /// Sends it until a model answers or the last has failed. Nothing of an answer has been shown when this ends.
    pub(super) async fn send(
        &self,
        app: &App,
        parts: &Parts,
        record: &Record,
    ) -> Result<(StatusCode, Incoming), ModelError> {
        loop {
            let step = self.route.current();
            record.note(|details| details.upstream = Some(step.upstream.config.name.clone()));
            let body = self.body(step);
            let length = Some(body.len().into());
            let body = stream::iter([Ok::<_, Incomplete>(body)]);
            let answered = send(app, parts, step.upstream, length, Some(body)).await;
            let warning = match &answered {
                Ok((status, _)) if status.is_success() => {
                    self.route.has_answered();
                    None
                }
                Ok((status, incoming)) => {
                    let error = step.upstream.refused(*status, &incoming.headers);
                    match *status {
                        // It may be about the path, or about an id in it.
                        StatusCode::NOT_FOUND => self.route.pass_over(&error),
                        _ => self.route.fall_back(&error),
                    }
                }
                Err(error) => self.route.fall_back(error),
            };
            match warning {
                Some(warning) => record.warn(&warning),
                None => return answered,
            }
        }
    }

    fn body(&self, step: RouteStep<'_>) -> Bytes {
        let Range { start, end } = self.name;
        let is_json = self.body.get(start) == Some(&b'"');
        let name = match is_json {
            true => step.model_json(),
            false => step.model(),
        };
        let before = self.body.get(..start).unwrap_or_default();
        let after = self.body.get(end..).unwrap_or_default();
        [before, name.unwrap_or_default().as_bytes(), after]
            .concat()
            .into()
    }
}
