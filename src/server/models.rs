//! `GET /v1/models` and `GET /v1/models/{id}`, merged over all upstreams.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Path, State},
    http::HeaderMap,
    response::{IntoResponse, Response},
};
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    gateway::{Gateway, failure::Failure},
    upstream::model::{ClientHeaders, Upstream},
};
use toolway_core::translate::dialect::anthropic;

use super::{App, error, headers};

/// Longest wait for one upstream's list; after that the other lists are returned without it.
const MODELS_TIMEOUT: Duration = Duration::from_secs(10);

/// Every model that a request can name.
pub(super) async fn list(State(app): State<Arc<App>>, mut client: HeaderMap) -> Response {
    let form = Form::of(&mut client);
    match all(&app.gateway, &headers::to_model(&client, &app.config)).await {
        Ok(models) => Json(match form {
            Form::OpenAi => json!({"object": "list", "data": models}),
            Form::Anthropic => anthropic::write_models(&models),
        })
        .into_response(),
        Err(failure) => form.refuse(failure),
    }
}

/// One of them.
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    mut client: HeaderMap,
) -> Response {
    let form = Form::of(&mut client);
    let models = match all(&app.gateway, &headers::to_model(&client, &app.config)).await {
        Ok(models) => models,
        Err(failure) => return form.refuse(failure),
    };
    match (
        models.into_iter().find(|model| model["id"] == id.as_str()),
        form,
    ) {
        (Some(model), Form::OpenAi) => Json(model).into_response(),
        (Some(model), Form::Anthropic) => Json(anthropic::write_model(&model)).into_response(),
        (None, form) => form.refuse(Failure::ModelNotFound { model: id }),
    }
}

/// Whose form the answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    OpenAi,
    Anthropic,
}

impl Form {
    /// Anthropic's SDKs send their API's version with every request. Their key is put where other clients have it.
    fn of(client: &mut HeaderMap) -> Form {
        match client.contains_key("anthropic-version") {
            true => {
                headers::move_key(client);
                Form::Anthropic
            }
            false => Form::OpenAi,
        }
    }

    fn refuse(self, failure: Failure) -> Response {
        match self {
            Form::OpenAi => error::response(failure.into()),
            Form::Anthropic => error::response_in(failure.into(), anthropic::write_error),
        }
    }
}

/// The names of one's own, then each upstream's models that requests would reach, the first upstream first. An upstream that gives no list
/// is left out, except for the models that its configuration names; if none gives any, its failure is returned.
async fn all(gateway: &Gateway, client: &ClientHeaders) -> Result<Vec<Value>, Failure> {
    let upstreams = gateway.models().all();
    let lists = join_all(upstreams.iter().map(|upstream| listed(upstream, client))).await;
    let names = gateway.models().names();
    let mut models: Vec<Value> = names.map(|name| described(name, "toolway")).collect();
    let mut failure = None;
    for (upstream, list) in upstreams.iter().zip(lists) {
        let named = list.unwrap_or_else(|error| {
            tracing::warn!(%error, upstream.name = %upstream.config.name, "An upstream gave no list of models");
            failure.get_or_insert(error);
            configured(upstream)
        });
        for model in named {
            let Some(id) = model["id"].as_str() else {
                continue;
            };
            let reaches = gateway
                .models()
                .choose(id)
                .is_some_and(|chosen| Arc::ptr_eq(chosen, upstream));
            if reaches && !models.iter().any(|known| known["id"] == id) {
                models.push(model);
            }
        }
    }
    match failure {
        Some(failure) if models.is_empty() => Err(failure),
        _ => Ok(models),
    }
}

async fn listed(upstream: &Upstream, client: &ClientHeaders) -> Result<Vec<Value>, Failure> {
    match timeout(MODELS_TIMEOUT, upstream.models(client)).await {
        Ok(models) => Ok(models?),
        Err(_) => Err(Failure::TimeIsUp {
            after: MODELS_TIMEOUT,
        }),
    }
}

/// The models that the configuration names in full.
fn configured(upstream: &Upstream) -> Vec<Value> {
    let full = upstream
        .config
        .models
        .iter()
        .filter(|pattern| !pattern.contains('*'));
    full.map(|id| described(id, &upstream.config.name))
        .collect()
}

fn described(id: &str, owner: &str) -> Value {
    json!({"id": id, "object": "model", "created": 0, "owned_by": owner})
}
