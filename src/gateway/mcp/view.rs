//! Which part of the catalog one endpoint shows, and under which names.

use std::sync::Arc;

use crate::gateway::mcp_sessions;
use toolway_core::{
    catalog::{Catalog, FeatureIndex, IndexedFeature, Offered, Selection, ServerFeatures},
    policy::KeyId,
    translate::uris,
};
use toolway_protocol::tool::{JsonObject, ServerId};

/// What is behind an endpoint besides `/mcp`: a `[profiles.NAME]` table.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Its name, the last part of `/mcp/NAME`.
    pub name: String,
    /// What it shows.
    pub shows: ProfileShows,
}

/// What a profile shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProfileShows {
    /// One server (or group of functions) with all it has, under its own names.
    Server(ServerId),
    /// The tools that are selected, under the names of `/mcp`; no prompts and no resources.
    Tools(Selection),
}

/// The part of the catalog that one endpoint shows to clients with one key.
#[derive(Debug)]
pub struct View {
    shows: Shows,
    key: Option<KeyId>,
}

#[derive(Clone, Debug)]
enum Shows {
    Everything,
    Profile(ProfileShows),
    /// The functions that a caller has lent, under their own names.
    McpSessions(Arc<mcp_sessions::session::LendingSession>),
}

/// A prompt, resource or template as an endpoint shows it.
pub(super) struct ViewEntry<'s> {
    /// Its name or URI there.
    pub key: &'s str,
    /// Its entry there.
    pub entry: &'s JsonObject,
}

impl From<Shows> for View {
    fn from(shows: Shows) -> View {
        View { shows, key: None }
    }
}

impl View {
    /// Everything, with the server in front of each name.
    pub(in crate::gateway) fn everything() -> View {
        Shows::Everything.into()
    }

    /// What a profile shows.
    pub(in crate::gateway) fn profile(shows: ProfileShows) -> View {
        Shows::Profile(shows).into()
    }

    /// The functions that a caller has lent.
    pub(super) fn mcp_sessions(session: Arc<mcp_sessions::session::LendingSession>) -> View {
        Shows::McpSessions(session).into()
    }

    /// The same for clients with this key.
    pub fn for_key(self: &Arc<View>, key: Option<KeyId>) -> Arc<View> {
        if key == self.key {
            return Arc::clone(self);
        }
        let shows = self.shows.clone();
        Arc::new(View { shows, key })
    }

    /// The key of its clients.
    pub(in crate::gateway) fn key(&self) -> Option<KeyId> {
        self.key
    }

    /// The session whose functions it shows, if it is of that kind.
    pub fn session(&self) -> Option<&Arc<mcp_sessions::session::LendingSession>> {
        match &self.shows {
            Shows::McpSessions(session) => Some(session),
            Shows::Everything | Shows::Profile(_) => None,
        }
    }

    /// It shows lent functions, to every client that knows its URL.
    pub fn is_lent(&self) -> bool {
        self.session().is_some()
    }

    /// The session whose functions it shows has ended.
    pub fn is_over(&self) -> bool {
        self.session().is_some_and(|it| it.ended().is_some())
    }

    /// Waits until the session whose functions it shows has ended; other views never end. Cancel safe.
    pub async fn over(&self) {
        match self.session() {
            Some(session) => {
                session.over().await;
            }
            None => std::future::pending().await,
        }
    }

    /// The one server it shows under its own names.
    pub(super) fn only_server(&self) -> Option<&ServerId> {
        match &self.shows {
            Shows::Profile(ProfileShows::Server(server)) => Some(server),
            Shows::Everything | Shows::Profile(ProfileShows::Tools(_)) | Shows::McpSessions(_) => {
                None
            }
        }
    }

    /// Names are shown with their servers in front.
    pub(super) fn is_prefixed(&self) -> bool {
        !matches!(
            self.shows,
            Shows::Profile(ProfileShows::Server(_)) | Shows::McpSessions(_)
        )
    }

    /// Whether anything of this server but tools can be seen.
    pub(super) fn shows_features_of(&self, server: &ServerId) -> bool {
        match &self.shows {
            Shows::Everything => true,
            Shows::Profile(ProfileShows::Server(only)) => only == server,
            Shows::Profile(ProfileShows::Tools(_)) | Shows::McpSessions(_) => false,
        }
    }

    /// Whether a change of this server's tools may be seen.
    pub(super) fn may_show_tools_of(&self, server: &ServerId) -> bool {
        self.session().is_none() && self.only_server().is_none_or(|only| only == server)
    }

    /// The tools it shows, each with its name there, always in the same order.
    pub(super) fn tools<'c>(&'c self, catalog: &'c Catalog) -> Vec<(&'c str, &'c Arc<Offered>)> {
        let offered = catalog.offered().iter();
        match &self.shows {
            Shows::Everything => offered.map(|it| (it.name.as_str(), it)).collect(),
            Shows::Profile(ProfileShows::Server(server)) => offered
                .filter(|it| it.server == *server)
                .map(|it| (it.tool.name.as_str(), it))
                .collect(),
            Shows::Profile(ProfileShows::Tools(selection)) => offered
                .filter(|it| selection.selects(it))
                .map(|it| (it.name.as_str(), it))
                .collect(),
            Shows::McpSessions(session) => {
                let lent = session.tools().iter();
                lent.map(|it| (it.tool.name.as_str(), it)).collect()
            }
        }
    }

    /// The tool that has this name there.
    pub(super) fn tool<'c>(&'c self, catalog: &'c Catalog, name: &str) -> Option<&'c Arc<Offered>> {
        match &self.shows {
            Shows::Everything => catalog.find(name),
            Shows::Profile(ProfileShows::Server(server)) => catalog.find_own(server, name),
            Shows::Profile(ProfileShows::Tools(selection)) => {
                catalog.find(name).filter(|it| selection.selects(it))
            }
            Shows::McpSessions(session) => session.tool(name),
        }
    }

    /// The servers whose prompts and resources it shows.
    pub(super) fn servers<'s>(
        &self,
        index: &'s FeatureIndex,
    ) -> impl Iterator<Item = &'s ServerFeatures> {
        index
            .servers()
            .iter()
            .filter(|it| self.shows_features_of(&it.server))
    }

    /// The prompts it shows.
    pub(super) fn prompts<'s>(&self, index: &'s FeatureIndex) -> Vec<ViewEntry<'s>> {
        self.list(index, index.prompts(), |it| &it.prompts, "name")
    }

    /// The resources it shows.
    pub(super) fn resources<'s>(&self, index: &'s FeatureIndex) -> Vec<ViewEntry<'s>> {
        self.list(index, index.resources(), |it| &it.resources, "uri")
    }

    /// The templates it shows.
    pub(super) fn templates<'s>(&self, index: &'s FeatureIndex) -> Vec<ViewEntry<'s>> {
        self.list(index, index.templates(), |it| &it.templates, "uriTemplate")
    }

    fn list<'s>(
        &self,
        index: &'s FeatureIndex,
        shelved: &'s [IndexedFeature],
        own: fn(&ServerFeatures) -> &Vec<JsonObject>,
        key: &str,
    ) -> Vec<ViewEntry<'s>> {
        let of_one = |server| index.of(server).into_iter().flat_map(own);
        match &self.shows {
            Shows::Everything => shelved
                .iter()
                .map(|it| ViewEntry {
                    key: &it.shown,
                    entry: &it.entry,
                })
                .collect(),
            Shows::Profile(ProfileShows::Server(server)) => of_one(server)
                .filter_map(|entry| {
                    let key = entry.get(key)?.as_str()?;
                    Some(ViewEntry { key, entry })
                })
                .collect(),
            Shows::Profile(ProfileShows::Tools(_)) | Shows::McpSessions(_) => Vec::new(),
        }
    }

    /// The server of a prompt, and the prompt's own name there.
    pub(super) fn prompt(&self, index: &FeatureIndex, name: &str) -> Option<(ServerId, String)> {
        match &self.shows {
            Shows::Everything => {
                let prompt = index.prompt(name)?;
                Some((prompt.server.clone(), prompt.own.clone()))
            }
            Shows::Profile(ProfileShows::Server(server)) => {
                index.of(server)?;
                Some((server.clone(), name.to_owned()))
            }
            Shows::Profile(ProfileShows::Tools(_)) | Shows::McpSessions(_) => None,
        }
    }

    /// The server of a resource or template, and its own URI there.
    pub(super) fn resource(&self, index: &FeatureIndex, uri: &str) -> Option<(ServerId, String)> {
        match &self.shows {
            Shows::Everything => index.locate(uri),
            Shows::Profile(ProfileShows::Server(server)) => {
                index.of(server)?;
                Some((server.clone(), uri.to_owned()))
            }
            Shows::Profile(ProfileShows::Tools(_)) | Shows::McpSessions(_) => None,
        }
    }

    /// A server's own URI as this endpoint shows it.
    pub(super) fn uri(&self, server: &ServerId, own: &str) -> String {
        match self.is_prefixed() {
            true => uris::wrap(server, own),
            false => own.to_owned(),
        }
    }
}
