use reqwest::header::HeaderMap;
use serde_json::{Value, json};

use crate::{
    harness::{Toolway, toolway},
    model::{Model, say},
};

/// What a client of OpenAI and of its relatives shows of itself.
const CREDENTIALS: [(&str, &str); 15] = [
    ("authorization", "Bearer sk-mine"),
    ("api-key", "sk-mine"),
    ("x-api-key", "sk-mine"),
    ("x-goog-api-key", "sk-mine"),
    ("x-goog-user-project", "proj-mine"),
    ("ocp-apim-subscription-key", "sk-mine"),
    ("cf-aig-authorization", "Bearer sk-mine"),
    ("helicone-auth", "Bearer sk-mine"),
    ("x-litellm-api-key", "sk-mine"),
    ("x-portkey-api-key", "sk-mine"),
    ("x-portkey-virtual-key", "sk-mine"),
    ("x-amz-security-token", "sk-mine"),
    ("x-auth-token", "sk-mine"),
    ("openai-organization", "org-mine"),
    ("openai-project", "proj-mine"),
];

/// The model `cloud-1` of the upstream `cloud` and the model `m` of the upstream `local`; these keys belong to `cloud`.
async fn two_upstreams(top: &str, cloud: &str) -> (Toolway, Model) {
    let local = Model::start([say("local")]).await;
    let config = format!(
        "{top}\n[[upstreams]]\nname = \"cloud\"\nbase_url = \"MODEL\"\nmodels = [\"cloud-*\"]\n{cloud}\n\
         [[upstreams]]\nname = \"local\"\nbase_url = \"{}\"\n",
        local.base
    );
    let cloud = Model::start([say("cloud")]).await.with_models(&["cloud-1"]);
    (toolway(cloud).config(&config).start().await, local)
}

/// Names of the credentials among these headers.
fn credentials(headers: &HeaderMap) -> Vec<&str> {
    let names = CREDENTIALS.iter().map(|(name, _)| *name);
    names.filter(|name| headers.contains_key(*name)).collect()
}

/// Sends one request of every kind to both upstreams, and gives the credentials that each received: of the list,
/// the chat and the forwarded request.
async fn received(gw: &Toolway, local: &Model) -> [[Vec<String>; 3]; 2] {
    let mut list = gw.http.get(format!("{}/v1/models", gw.base));
    for (name, value) in CREDENTIALS {
        list = list.header(name, value);
    }
    assert_eq!(list.send().await.unwrap().status(), 200);
    let mut all = Vec::new();
    for (model, name) in [(&gw.model, "cloud-1"), (local, "m")] {
        let response = gw.send(json!({"model": name}), &CREDENTIALS).await;
        assert_eq!(response.status(), 200);
        let mut forwarded = gw.http.post(format!("{}/v1/embeddings", gw.base));
        for (name, value) in CREDENTIALS {
            forwarded = forwarded.header(name, value);
        }
        let body = json!({"model": name, "input": "x"}).to_string();
        let echoed = forwarded.body(body).send().await.unwrap();
        let echoed: Value = serde_json::from_str(&echoed.text().await.unwrap()).unwrap();
        let echoed = echoed["headers"].as_object().unwrap();
        let is_echoed = |name: &&str| echoed.contains_key(*name);
        let names = CREDENTIALS.iter().map(|(name, _)| *name).filter(is_echoed);
        let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect::<Vec<_>>();
        all.push([
            owned(credentials(&model.listed()[0])),
            owned(credentials(&model.asked()[0].headers)),
            owned(names.collect()),
        ]);
    }
    all.try_into().unwrap()
}

fn every() -> [Vec<String>; 3] {
    let names: Vec<String> = CREDENTIALS.map(|(name, _)| name.to_owned()).into();
    [names.clone(), names.clone(), names]
}

#[tokio::test]
async fn with_several_upstreams_no_client_key_goes_anywhere_by_itself() {
    let (gw, local) = two_upstreams("", "").await;
    assert_eq!(
        received(&gw, &local).await,
        [<[Vec<String>; 3]>::default(), Default::default()]
    );
    gw.join().await;
}

#[tokio::test]
async fn the_clients_key_goes_to_the_one_upstream_that_it_is_for() {
    let (gw, local) = two_upstreams("", "client_key = true").await;
    assert_eq!(received(&gw, &local).await, [every(), Default::default()]);
    gw.join().await;
}

#[tokio::test]
async fn beside_an_upstream_with_its_own_key_another_gets_none() {
    let (gw, local) = two_upstreams("", "api_key = \"sk-own\"").await;
    let own = ["authorization".to_owned()].to_vec();
    assert_eq!(
        received(&gw, &local).await,
        [[own.clone(), own.clone(), own], Default::default()]
    );
    assert_eq!(
        gw.model.asked()[0].headers["authorization"],
        "Bearer sk-own"
    );
    gw.join().await;
}

#[tokio::test]
async fn an_only_upstream_gets_the_clients_key() {
    let gw = toolway(Model::start([say("x")]).await).start().await;
    assert_eq!(gw.send(json!({}), &CREDENTIALS).await.status(), 200);
    assert_eq!(credentials(&gw.model.asked()[0].headers).len(), 15);
    gw.join().await;
}

#[tokio::test]
async fn a_key_of_the_gateway_goes_to_no_upstream() {
    let gw = toolway(Model::start([say("x")]).await)
        .config("api_keys = [\"sk-mine\"]\n")
        .start()
        .await;
    assert_eq!(gw.send(json!({}), &CREDENTIALS).await.status(), 200);
    assert!(credentials(&gw.model.asked()[0].headers).is_empty());
    gw.join().await;
}
