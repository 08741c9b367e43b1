//! A toolway on a port of its own, with scripted servers behind it.

use std::{path::PathBuf, sync::Arc, time::Duration};

use serde_json::Value;
use tokio::{
    net::TcpListener,
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, timeout},
};
use toolway::{
    config::{Config, Environment, RawConfig},
    gateway::{Gateway, Setup, servers::ServerReader},
    server,
    store::{DataDir, StoreEntries},
};

/// Longer than anything here takes on a machine that is busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// toolway under test.
pub struct Toolway {
    pub base: String,
    pub gateway: Arc<Gateway>,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
}

/// One with a server `s` that has the tool `act`.
pub async fn acting() -> Toolway {
    toolway(&scripted("s", Value::Object(Default::default()))).await
}

/// One of this configuration.
pub async fn toolway(toml: &str) -> Toolway {
    tuned(toml, |_| {}).await
}

/// One of this configuration, with bounds that the configuration does not know.
pub async fn tuned(toml: &str, tune: impl FnOnce(&mut server::Config)) -> Toolway {
    let raw: RawConfig = toml::from_str(toml).unwrap_or_else(|error| panic!("{error}\n{toml}"));
    let mut config = Config::from_raw(raw, &Environment::real())
        .unwrap_or_else(|problems| panic!("{problems:?}\n{toml}"));
    tune(&mut config.server);
    let gateway = Gateway::start(Setup {
        config: config.gateway,
        upstreams: config.upstreams,
        servers: config.servers,
        functions: config.functions,
        profiles: config.profiles,
        policy: config.policy,
        server_reader: ServerReader::new(|name, definition| {
            Config::server(name, definition, &Environment::real())
        }),
        entries: Arc::new(match &config.data {
            DataDir::Default => StoreEntries::default(),
            place => StoreEntries::open(place).unwrap(),
        }),
        ..Setup::default()
    })
    .unwrap();
    gateway.restore_servers().await;
    let settled = gateway.settled(Instant::now() + PATIENCE).await;
    assert!(settled, "the servers did not settle");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async move {
        let _ = stopped.await;
    };
    let serving = server::serve(listener, gateway.clone(), config.server, shutdown);
    Toolway {
        base,
        gateway,
        stop: Some(stop),
        serving: tokio::spawn(serving),
    }
}

/// The table of a server that does what the script says.
pub fn scripted(name: &str, script: Value) -> String {
    let command = scripted_server().display().to_string();
    let args = [script.to_string()];
    format!("\n[servers.{name}]\ncommand = {command:?}\nargs = {args:?}\n")
}

/// The scripted server that cargo built beside this test.
pub fn scripted_server() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(|it| it.parent()).unwrap();
    let name = format!("scripted_server{}", std::env::consts::EXE_SUFFIX);
    let path = folder.join("examples").join(name);
    assert!(
        path.exists(),
        "{} is not there; `cargo test` builds it",
        path.display()
    );
    path
}

impl Toolway {
    /// Begins to stop, and says so to everybody.
    pub fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    /// Stops it; a panic anywhere in it fails the test.
    pub async fn join(mut self) {
        self.stop();
        timeout(PATIENCE, self.serving)
            .await
            .expect("it stops")
            .unwrap();
        self.gateway.shutdown().await;
    }

    /// How many sessions and how many lasting streams there are.
    pub async fn open(&self) -> (u64, u64) {
        let health = reqwest::get(format!("{}/health", self.base)).await.unwrap();
        let health: Value = serde_json::from_str(&health.text().await.unwrap()).unwrap();
        let count = |name: &str| health["mcp"][name].as_u64().unwrap();
        (count("sessions"), count("streams"))
    }

    /// Waits until so many sessions and lasting streams are left.
    pub async fn until_open(&self, sessions: u64, streams: u64) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let open = self.open().await;
            if open == (sessions, streams) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "never {sessions} and {streams}: {open:?}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
