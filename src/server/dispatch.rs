//! Brings a request that was let in to what answers it.

use std::{future::ready, sync::Arc};

use axum::{
    Router,
    extract::{Request, State},
    response::Response,
};
use futures::{FutureExt, future::BoxFuture};
use tower::ServiceExt;

use super::{App, chat, connections::Ticket, front, mcp, responses::sockets};

/// Answers a request.
pub(super) fn answer(
    app: Arc<App>,
    routes: Router,
    request: Request,
    ticket: Arc<Ticket>,
) -> impl Future<Output = Response> + Send {
    front::answer(app, request, ticket, |app, request, ticket| {
        work(app, routes, request, ticket)
    })
}

/// Chats and MCP messages skip the router, which would cost more than reading the request.
fn work(
    app: &Arc<App>,
    routes: Router,
    request: Request,
    ticket: &Ticket,
) -> BoxFuture<'static, Response> {
    if chat::is_meant(&request) {
        return Box::pin(chat::complete(State(Arc::clone(app)), request));
    }
    if mcp::is_meant(&request) {
        return Box::pin(mcp::everything(State(Arc::clone(app)), request));
    }
    if sockets::is_meant(&request) {
        let response = sockets::open(app, request, ticket.connection());
        return Box::pin(ready(response));
    }
    Box::pin(routes.oneshot(request).map(|answered| match answered {
        Ok(response) => response,
        Err(never) => match never {},
    }))
}
