//! Runs the gateway for the commands `check`, `tools` and `call`.
//!
//! Nothing is printed here; other modules write the results.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use futures::future::join_all;
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::{
    call_output::CallOutcome,
    inventory::{self, Dropped, Inventory, NamedLine, ServerLine, ToolLine, Tried},
    progress, serve,
};
use crate::health::{ServerHealth, ServerState};
use crate::{
    audit::Audit,
    config::{Config, Problem},
    gateway::{
        Gateway, listing,
        mcp::{Profile, ProfileShows},
    },
    store::StoreEntries,
    upstream::{
        function::GroupHealth,
        model::{ClientHeaders, ModelError, Models, NamedModel, TargetModel},
    },
};
use toolway_core::{
    catalog::{Catalog, Offered},
    translate::names::SEPARATOR,
};
use toolway_protocol::tool::ServerId;

/// How long to wait for servers beyond their `start_timeout`: a process that never answered is stopped within 5 s.
const GRACE: Duration = Duration::from_secs(6);

/// Longest wait for an upstream's list of models.
const LISTING: Duration = Duration::from_secs(5);

/// Starts the servers, waits until each is ready or has failed, notes what they offer, and stops them.
pub(super) async fn inventory(config: &Config) -> Result<Inventory> {
    // No call is made.
    let gateway = settled(config, Audit::default()).await?;
    let inventory = look(config, &gateway);
    gateway.shutdown().await;
    Ok(inventory)
}

/// The same, and tries to reach the upstreams and the services of functions.
pub(super) async fn survey_all(config: &Config) -> Result<Inventory> {
    let models = Models::new(config.upstreams.clone(), Vec::new())?;
    let upstreams = models.all().iter().map(|upstream| async {
        let error = upstream.probe().await.err();
        let is_target = |it: &TargetModel| it.upstream == upstream.config.name;
        let mut targets = config.models.iter().flat_map(|it| &it.targets);
        let listed = match error.is_none() && targets.any(is_target) {
            true => {
                let no_client = ClientHeaders::default();
                let listing = timeout(LISTING, upstream.models(&no_client));
                listing.await.ok().and_then(Result::ok)
            }
            false => None,
        };
        let tried = Tried {
            name: upstream.config.name.clone(),
            // The log omits these messages, but `check` shows them.
            error: error.map(|error| match &error {
                ModelError::Refused(refused) => format!("{error}: {}", refused.error.message),
                error => error.to_string(),
            }),
        };
        (tried, listed)
    });
    let services = config.functions.iter().map(|group| async {
        let error = group.probe().await?.err();
        let name = group.group.to_string();
        Some(Tried { name, error })
    });
    let (inventory, upstreams, services) =
        tokio::join!(inventory(config), join_all(upstreams), join_all(services));
    let models = config.models.iter().map(|it| named(it, &upstreams));
    let models = models.collect();
    let upstreams = upstreams.into_iter().map(|(tried, _)| tried).collect();
    let services: Vec<Tried> = services.into_iter().flatten().collect();
    let mut inventory = inventory?;
    for group in &mut inventory.functions {
        let tried = services.iter().find(|it| it.name == group.server);
        if let Some(error) = tried.and_then(|it| it.error.clone()) {
            group.state = ServerState::Failed.to_string();
            group.is_ready = false;
            group.last_error = Some(error);
        }
    }
    Ok(Inventory {
        upstreams,
        models,
        services,
        ..inventory
    })
}

/// A name of one's own, with what is known about each model behind it from its upstream and from the upstream's list of
/// models, where that has one.
fn named(model: &NamedModel, upstreams: &[(Tried, Option<Vec<Value>>)]) -> NamedLine {
    let tried = |target: &TargetModel| {
        let of = upstreams.iter().find(|(it, _)| it.name == target.upstream);
        let (upstream, listed) = of?;
        let is_listed = |list: &Vec<Value>| list.iter().any(|it| it["id"] == target.model.as_str());
        let is_missing = listed.as_ref().is_some_and(|list| !is_listed(list));
        let missing = is_missing.then(|| "is not in the upstream's list of models".to_owned());
        upstream.error.clone().or(missing)
    };
    let targets = model.targets.iter().map(|target| Tried {
        name: target.to_string(),
        error: tried(target),
    });
    NamedLine {
        name: model.name.clone(),
        targets: targets.collect(),
    }
}

/// One tool call, through the same path as the loop, and how the servers were when it was made.
pub(super) async fn call(
    config: &Config,
    name: &str,
    arguments: &str,
) -> Result<(CallOutcome, Vec<ServerLine>)> {
    let audit = Audit::open(&config.audit, &config.data)?;
    let gateway = settled(config, audit).await?;
    let servers = gateway.health().into_iter().map(server);
    let groups = gateway.functions();
    let servers = servers.chain(groups.iter().map(group));
    let servers = servers.map(|line| ServerLine {
        hides: hidden(config, &line.server, name),
        ..line
    });
    let servers = servers.collect();
    let outcome = gateway.call_tool(name, arguments).await;
    gateway.shutdown().await;
    Ok((outcome, servers))
}

/// The tool of this server that the name means, if the server's `tools` hide it.
fn hidden(config: &Config, server: &str, name: &str) -> Option<String> {
    let config = config
        .servers
        .iter()
        .find(|it| it.server.as_str() == server)?;
    let own = name.strip_prefix(server)?.strip_prefix(SEPARATOR)?;
    (!config.tools.shows(own)).then(|| own.to_owned())
}

/// A gateway whose servers are ready or have failed.
pub(super) async fn settled(config: &Config, audit: Audit) -> Result<Arc<Gateway>> {
    let slowest = config.servers.iter().map(|server| server.start_timeout);
    let start_wait = slowest.max().unwrap_or_default() + GRACE;
    let mut config = config.clone();
    // Delays are reported here, not in the log.
    config.gateway.start_wait = start_wait;
    let gateway = serve::gateway(&config, StoreEntries::default(), audit)?;
    let settled = gateway.settled(Instant::now() + start_wait);
    progress::while_waiting(&gateway, settled).await;
    Ok(gateway)
}

fn look(config: &Config, gateway: &Gateway) -> Inventory {
    let catalog = gateway.catalog();
    let (health, groups) = (gateway.health(), gateway.functions());
    let servers = health.iter().map(|it| (&it.server, it.state));
    let all = servers.chain(groups.iter().map(|it| (&it.group, it.state)));
    let not_ready = all.filter(|it| !it.1.is_up());
    let not_ready: Vec<_> = not_ready.map(|it| it.0.clone()).collect();
    Inventory {
        unmatched: unmatched(config, &catalog, &not_ready),
        servers: health.into_iter().map(server).collect(),
        upstreams: Vec::new(),
        models: Vec::new(),
        services: Vec::new(),
        functions: groups.iter().map(group).collect(),
        tools: catalog
            .offered()
            .iter()
            .map(|offered| tool(offered))
            .collect(),
        dropped: dropped(&catalog),
        left_out: listing::everywhere_left_out(&catalog, gateway.models()),
        listing: listing::listing(&catalog, gateway.models()),
    }
}

/// The patterns of profiles that match no tool, and would match none if the other servers were ready.
fn unmatched(config: &Config, catalog: &Catalog, not_ready: &[ServerId]) -> Vec<Problem> {
    let of_profile = |profile: &Profile| {
        let ProfileShows::Tools(selection) = &profile.shows else {
            return Vec::new();
        };
        let patterns = selection.unmatched(catalog.offered(), not_ready);
        let problem = |pattern: String| Problem {
            path: format!("profiles.{}.tools", profile.name),
            message: inventory::unmatched(&pattern),
        };
        patterns.into_iter().map(problem).collect()
    };
    let of_profiles = config.profiles.iter().flat_map(of_profile);
    of_profiles
        .chain(unmatched_by_policy(config, catalog, not_ready))
        .collect()
}

/// The patterns of rules and keys that match no server, or no tool where all servers are ready.
fn unmatched_by_policy(config: &Config, catalog: &Catalog, not_ready: &[ServerId]) -> Vec<Problem> {
    let servers = config.servers.iter().map(|it| it.server.as_str());
    let groups = config.functions.iter().map(|it| it.group.as_str());
    let servers: Vec<&str> = servers.chain(groups).collect();
    let tools: Vec<&str> = catalog
        .offered()
        .iter()
        .map(|it| it.name.as_str())
        .collect();
    let rules = config.policy.rules.iter();
    let rules = rules.map(|rule| (rule.name.clone(), &rule.servers, &rule.tools));
    let keys = config.policy.keys.iter();
    let keys = keys.map(|key| (format!("keys.{}", key.name), &key.servers, &key.tools));
    let mut problems = Vec::new();
    for (path, of_servers, of_tools) in rules.chain(keys) {
        let mut add = |part: &str, pattern: String, what: &str| {
            problems.push(Problem {
                path: format!("{path}.{part}"),
                message: format!("pattern `{pattern}` matches no {what}"),
            });
        };
        for pattern in of_servers.unmatched(&servers) {
            add("servers", pattern, "server");
        }
        if not_ready.is_empty() {
            let unmatched = of_tools.unmatched(&tools).into_iter();
            unmatched.for_each(|pattern| add("tools", pattern, "tool"));
        }
    }
    problems
}

fn server(health: ServerHealth) -> ServerLine {
    ServerLine {
        server: health.server.to_string(),
        state: health.state.to_string(),
        is_ready: health.state.is_up(),
        transport: health.transport.to_owned(),
        protocol_version: health.protocol_version,
        tools: health.tools,
        last_error: health.last_error,
        stderr_tail: health.stderr_tail,
        unmatched_patterns: health.unmatched_patterns,
        hides: None,
    }
}

fn group(health: &GroupHealth) -> ServerLine {
    ServerLine {
        server: health.group.to_string(),
        state: health.state.to_string(),
        is_ready: health.state == ServerState::Ready,
        transport: health.kind.to_owned(),
        tools: health.tools,
        last_error: health.last_error.clone(),
        ..ServerLine::default()
    }
}

fn tool(offered: &Offered) -> ToolLine {
    ToolLine {
        name: offered.name.to_string(),
        server: offered.server.to_string(),
        tool: offered.tool.name.clone(),
        description: offered.tool.description.clone(),
        renamed: offered.renamed,
        notes: offered.notes.clone(),
    }
}

fn dropped(catalog: &Catalog) -> Vec<Dropped> {
    let odd = catalog.dropped().iter().map(|(server, tool)| Dropped {
        server: server.to_string(),
        tool: tool.name.clone(),
        reason: tool.reason.clone(),
    });
    odd.collect()
}
