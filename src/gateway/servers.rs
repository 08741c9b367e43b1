//! MCP servers that are added, changed, restarted and removed while toolway runs. The added ones are kept in the store.
//!
//! What a definition may say is checked by the configuration, whose check is passed in.

use std::{collections::BTreeMap, fmt, sync::Arc};

use serde_json::Value;
use tokio::sync::Mutex;

use super::Gateway;
use crate::{
    health::{ServerHealth, ServerState},
    upstream::mcp,
};
use toolway_protocol::tool::{JsonObject, ServerId};

/// Most servers that are added.
const MAX_ADDED: usize = 256;

type Check = dyn Fn(&str, &JsonObject) -> Result<mcp::Config, String> + Send + Sync;

/// Checks the definition of a server of this name: the keys of a `[servers.NAME]` table.
#[derive(Clone)]
pub struct ServerReader(Arc<Check>);

impl ServerReader {
    /// One that checks with this function.
    pub fn new(
        check: impl Fn(&str, &JsonObject) -> Result<mcp::Config, String> + Send + Sync + 'static,
    ) -> ServerReader {
        ServerReader(Arc::new(check))
    }
}

impl Default for ServerReader {
    fn default() -> ServerReader {
        ServerReader::new(|_, _| Err("servers cannot be added here".to_owned()))
    }
}

impl fmt::Debug for ServerReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerReader")
    }
}

/// Why a server was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The name is in use.
    #[error("Server with ID '{0}' already exists")]
    Taken(String),
    /// There is no such server.
    #[error("Server '{0}' not found")]
    Unknown(String),
    /// It was not added while toolway ran.
    #[error("Server '{0}' is defined in the configuration; change it there")]
    Configured(String),
    /// The definition is not valid.
    #[error("{0}")]
    Invalid(String),
    /// Too many were added.
    #[error("{MAX_ADDED} servers were added already; remove one first")]
    TooMany,
    /// It did not become ready; nothing of it is left.
    #[error("Server {server} did not start: {reason}")]
    NotStarted {
        /// Its name.
        server: String,
        /// Why.
        reason: String,
    },
}

/// The definitions of the servers that were added.
#[derive(Debug)]
pub(super) struct AddedServers {
    reader: ServerReader,
    definitions: Mutex<BTreeMap<String, JsonObject>>,
}

impl AddedServers {
    pub(super) fn new(reader: ServerReader) -> AddedServers {
        AddedServers {
            reader,
            definitions: Mutex::default(),
        }
    }

    fn read(&self, name: &str, definition: &JsonObject) -> Result<mcp::Config, ChangeError> {
        (self.reader.0)(name, definition).map_err(ChangeError::Invalid)
    }
}

impl Gateway {
    /// Starts a server and keeps its definition, once it is ready. The future must run to its end.
    ///
    /// # Errors
    /// See [`ChangeError`]; nothing has changed then.
    pub async fn add_server(
        &self,
        name: &str,
        definition: JsonObject,
    ) -> Result<ServerHealth, ChangeError> {
        let config = self.added.read(name, &definition)?;
        if self.added.definitions.lock().await.len() >= MAX_ADDED {
            return Err(ChangeError::TooMany);
        }
        let health = self.start_server(name, config).await?;
        self.keep_server(name, Some(definition)).await;
        Ok(health)
    }

    /// Merges `patch` into the definition of an added server (RFC 7396) and starts it so. If it does not become ready,
    /// it is started as it was. The future must run to its end.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub async fn change_server(
        &self,
        name: &str,
        patch: JsonObject,
    ) -> Result<ServerHealth, ChangeError> {
        let server = self.server_named(name)?;
        let before = self.added.definitions.lock().await.get(name).cloned();
        let before =
            before.ok_or_else(
                || match self.health().iter().any(|it| it.server == server) {
                    true => ChangeError::Configured(name.to_owned()),
                    false => ChangeError::Unknown(name.to_owned()),
                },
            )?;
        let mut definition = before.clone();
        merge(&mut definition, patch);
        let config = self.added.read(name, &definition)?;
        self.stop_server(&server).await;
        match self.start_server(name, config).await {
            Ok(health) => {
                self.keep_server(name, Some(definition)).await;
                Ok(health)
            }
            Err(error) => {
                let before = self.added.read(name, &before);
                if before.and_then(|config| self.start_anew(config)).is_ok() {
                    self.servers.settled_of(&[server]).await;
                    self.current.renew().await;
                }
                Err(error)
            }
        }
    }

    /// Stops a server, and forgets its definition if it was added. One of the configuration is started again with toolway.
    /// The future must run to its end.
    ///
    /// # Errors
    /// [`ChangeError::Unknown`].
    pub async fn remove_server(&self, name: &str) -> Result<(), ChangeError> {
        let server = self.server_named(name)?;
        if !self.stop_server(&server).await {
            return Err(ChangeError::Unknown(name.to_owned()));
        }
        self.keep_server(name, None).await;
        Ok(())
    }

    /// Ends the connection of a server, or its process, and starts it again.
    ///
    /// # Errors
    /// [`ChangeError::Unknown`].
    pub fn restart_server(&self, name: &str) -> Result<(), ChangeError> {
        let server = self.server_named(name)?;
        match self.servers.restart(&server) {
            true => Ok(()),
            false => Err(ChangeError::Unknown(name.to_owned())),
        }
    }

    /// Starts the servers that were added before toolway was started, without waiting for them.
    pub async fn restore_servers(&self) {
        let Some(list) = self.entries.find_servers().await else {
            return;
        };
        let kept: BTreeMap<String, JsonObject> = serde_json::from_str(&list).unwrap_or_default();
        for (name, definition) in &kept {
            let started = self
                .added
                .read(name, definition)
                .and_then(|config| self.start_anew(config));
            if let Err(error) = started {
                tracing::warn!(server.id = name, %error, "An added server is not started");
            }
        }
        self.added.definitions.lock().await.extend(kept);
    }

    fn server_named(&self, name: &str) -> Result<ServerId, ChangeError> {
        ServerId::parse(name).map_err(|_| ChangeError::Unknown(name.to_owned()))
    }

    fn start_anew(&self, config: mcp::Config) -> Result<(), ChangeError> {
        let taken = ChangeError::Taken(config.server.to_string());
        if self.backends.functions().has(&config.server) {
            return Err(taken);
        }
        match self.servers.add(config) {
            true => Ok(()),
            false => Err(taken),
        }
    }

    /// Starts a server and waits until it is ready; stops it if it fails.
    async fn start_server(
        &self,
        name: &str,
        config: mcp::Config,
    ) -> Result<ServerHealth, ChangeError> {
        let server = config.server.clone();
        self.start_anew(config)?;
        self.servers.settled_of(std::slice::from_ref(&server)).await;
        let health = self.health().into_iter().find(|it| it.server == server);
        if let Some(health) = &health
            && health.state == ServerState::Ready
        {
            self.current.renew().await;
            return Ok(health.clone());
        }
        self.stop_server(&server).await;
        let reason = health.and_then(|it| it.last_error);
        Err(ChangeError::NotStarted {
            server: name.to_owned(),
            reason: reason.unwrap_or_else(|| "it was removed".to_owned()),
        })
    }

    /// False if there is no such server.
    async fn stop_server(&self, server: &ServerId) -> bool {
        let was_there = self.servers.remove(server).await;
        self.kept_results.forget(server);
        self.current.renew().await;
        was_there
    }

    /// Keeps the definition of an added server, or forgets it.
    async fn keep_server(&self, name: &str, definition: Option<JsonObject>) {
        let mut definitions = self.added.definitions.lock().await;
        match definition {
            Some(definition) => {
                definitions.insert(name.to_owned(), definition);
            }
            None => {
                definitions.remove(name);
            }
        }
        if let Ok(list) = serde_json::to_string(&*definitions) {
            self.entries.keep_servers(list).await;
        }
    }
}

/// RFC 7396.
fn merge(target: &mut JsonObject, patch: JsonObject) {
    for (key, value) in patch {
        match value {
            Value::Null => {
                target.shift_remove(&key);
            }
            Value::Object(inner) => {
                let member = target
                    .entry(key)
                    .or_insert_with(|| Value::Object(JsonObject::new()));
                if !member.is_object() {
                    *member = Value::Object(JsonObject::new());
                }
                if let Value::Object(member) = member {
                    merge(member, inner);
                }
            }
            other => {
                target.insert(key, other);
            }
        }
    }
}
