//! What only somebody who means harm, or a peer in a very bad state, does.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{
    harness::{Toolway, toolway},
    model::{Model, PATIENCE},
};

/// Sends bytes as they are and gives back the status.
async fn status(gw: &Toolway, request: &str) -> u16 {
    let mut stream = TcpStream::connect(gw.base.trim_start_matches("http://"))
        .await
        .unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer))
        .await
        .expect("it answers")
        .unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn no_path_leads_out_of_the_base_of_the_upstream() {
    let gw = toolway(Model::start([]).await).start().await;
    let get =
        |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_eq!(
        status(&gw, &get("/v1/files")).await,
        201,
        "the scripted upstream answers every path"
    );
    for path in [
        "/v1/../admin",
        "/v1/%2e%2E/admin",
        "/v1/a/.%2e/../admin",
        "/v1/..\\admin",
        "/v1/./files",
    ] {
        assert_eq!(status(&gw, &get(path)).await, 404, "{path}");
    }
    gw.join().await;
}

#[tokio::test]
async fn methods_of_proxies_are_not_passed_on() {
    let gw = toolway(Model::start([]).await).start().await;
    for method in ["TRACE", "CONNECT"] {
        let request =
            format!("{method} /v1/files HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        assert_eq!(status(&gw, &request).await, 405, "{method}");
    }
    gw.join().await;
}
