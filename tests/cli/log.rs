//! The log from outside: a reader that stalls must not stop the process.

#![cfg(target_os = "linux")]

use std::{
    fs,
    io::{BufRead, BufReader, PipeReader, Read, Write, pipe},
    net::TcpStream,
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use nix::{sys::signal, unistd::Pid};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::toolway;

/// Longest wait for a process that should end; other builds may load the machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a pipe holds on Linux.
const PIPE: usize = 64 << 10;

/// A pipe that takes nothing more until somebody reads it.
fn full_pipe() -> (PipeReader, Stdio) {
    let (reader, mut writer) = pipe().unwrap();
    writer.write_all(&[b'\n'; PIPE]).unwrap();
    (reader, writer.into())
}

fn folder(config: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("toolway.toml"), config).unwrap();
    folder
}

/// A running toolway; killed when the test is over.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Running {
        Running(command.spawn().unwrap())
    }

    fn terminate(&self) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).unwrap());
        signal::kill(pid, signal::SIGTERM).unwrap();
    }

    /// Its exit code, once it has ended.
    #[track_caller]
    fn ended(&mut self) -> Option<i32> {
        for _ in 0..PATIENCE.as_millis() / 10 {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("it still runs");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `toolway serve` whose standard error is this.
fn serve(stderr: Stdio) -> (Running, TcpStream, TempDir) {
    let folder = folder("");
    let mut command = toolway(folder.path(), &["serve", "--bind", "127.0.0.1:0"]);
    let mut running = Running::start(command.stdout(Stdio::piped()).stderr(stderr));
    let mut line = String::new();
    BufReader::new(running.0.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let (_, address) = line.trim().split_once("http://").unwrap();
    let client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.set_nodelay(true).unwrap();
    (running, client, folder)
}

/// The status that a GET of this path is answered with.
fn get(client: &mut TcpStream, path: &str) -> u16 {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client.write_all(request.as_bytes()).unwrap();
    let mut reader = BufReader::new(client);
    let (mut status, mut length) = (0, 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("an answer");
        let line = line.trim().to_ascii_lowercase();
        if let Some(rest) = line.strip_prefix("http/1.1 ") {
            status = rest[..3].parse().unwrap();
        } else if let Some(rest) = line.strip_prefix("content-length: ") {
            length = rest.parse().unwrap();
        } else if line.is_empty() {
            break;
        }
    }
    reader.read_exact(&mut vec![0; length]).unwrap();
    status
}

/// Far more lines than a pipe and the queue hold: each has its path.
fn ask_2000_times(client: &mut TcpStream) {
    let path = format!("/{}", "x".repeat(1000));
    for _ in 0..2000 {
        assert_eq!(get(client, &path), 404);
    }
    assert_eq!(get(client, "/health"), 200);
}

#[test]
fn a_log_that_is_never_read_stops_neither_requests_nor_the_end() {
    let (_unread, stderr) = full_pipe();
    let (mut running, mut client, _folder) = serve(stderr);
    ask_2000_times(&mut client);
    running.terminate();
    assert_eq!(running.ended(), Some(0));
}

#[test]
fn a_log_that_is_read_again_says_how_many_lines_were_dropped() {
    let (unread, stderr) = full_pipe();
    let (mut running, mut client, _folder) = serve(stderr);
    ask_2000_times(&mut client);
    let mut lines = BufReader::new(unread).lines().map_while(Result::ok);
    let dropped = lines
        .find(|line| line.contains("were dropped"))
        .expect("the line");
    let number = dropped.split("lines=").nth(1).expect("a number");
    let number: usize = number.trim().parse().unwrap();
    assert!((1..2000).contains(&number), "{dropped}");
    assert_eq!(get(&mut client, "/after"), 404);
    running.terminate();
    let rest: Vec<_> = lines.collect();
    assert!(
        rest.iter().any(|line| line.contains("/after")),
        "it goes on"
    );
    assert!(
        rest.iter().any(|line| line.contains("Stopping")),
        "the last lines come out"
    );
    assert_eq!(running.ended(), Some(0));
}

/// `toolway mcp` in front of functions whose webhook refuses connections, so that every call is a warning.
fn mcp(folder: &Path, stderr: Stdio) -> Command {
    let parameters = json!({"type": "object"});
    let function = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
    fs::write(
        folder.join("functions.json"),
        json!({"tools": [function]}).to_string(),
    )
    .unwrap();
    let endpoint = "http://127.0.0.1:9/tool_calls";
    let functions = [
        "mcp",
        "--functions",
        "functions.json",
        "--endpoint",
        endpoint,
    ];
    let mut command = toolway(folder, &functions);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(stderr);
    command
}

fn send(running: &mut Running, message: &Value) -> std::io::Result<()> {
    let input = running.0.stdin.as_mut().unwrap();
    input.write_all(format!("{message}\n").as_bytes())
}

fn initialize() -> Value {
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-06-18",
        "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}})
}

/// Makes 1,000 calls that fail; each is answered.
fn fail_1000_times(running: &mut Running, output: &mut BufReader<ChildStdout>) {
    for id in 0..1001 {
        let call =
            json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "f"}});
        let message = if id == 0 { initialize() } else { call };
        send(running, &message).unwrap();
        let mut answer = String::new();
        output.read_line(&mut answer).unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["id"], id, "{answer}");
    }
}

fn check_mcp(end: impl FnOnce(&mut Running)) {
    let (_unread, stderr) = full_pipe();
    let folder = folder("");
    let mut running = Running::start(&mut mcp(folder.path(), stderr));
    let mut output = BufReader::new(running.0.stdout.take().unwrap());
    fail_1000_times(&mut running, &mut output);
    end(&mut running);
    assert_eq!(running.ended(), Some(0));
}

#[test]
fn an_mcp_client_that_never_reads_the_log_is_answered_until_it_closes_its_end() {
    check_mcp(|running| drop(running.0.stdin.take()));
}

#[test]
fn an_mcp_client_that_never_reads_the_log_can_stop_toolway() {
    check_mcp(|running| running.terminate());
}

#[test]
fn an_mcp_client_that_never_reads_answers_can_stop_toolway() {
    let folder = folder("");
    let mut running = Running::start(&mut mcp(folder.path(), Stdio::null()));
    send(&mut running, &initialize()).unwrap();
    let output = running.0.stdout.as_mut().unwrap();
    output.read_exact(&mut [0]).unwrap();
    let mut input = running.0.stdin.take().unwrap();
    let (sent, is_sent) = mpsc::channel();
    let asking = thread::spawn(move || {
        let params = json!({"x": "y".repeat(1000)});
        let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": params});
        let ping = format!("{ping}\n");
        // Until toolway reads no more, and then until it is gone.
        while input.write_all(ping.as_bytes()).is_ok() {
            let _ = sent.send(());
        }
    });
    // Nothing is read from its input any more, since nobody reads its output.
    while is_sent.recv_timeout(Duration::from_secs(1)).is_ok() {}
    running.terminate();
    assert_eq!(running.ended(), Some(0));
    asking.join().unwrap();
}

#[test]
fn a_command_whose_output_nobody_reads_can_be_stopped() {
    for args in [
        &["tools"][..],
        &["check"],
        &["call", "demo__multiply", "{}"],
    ] {
        let folder = folder(&crate::with_demo_server());
        let ((_out, stdout), (_err, stderr)) = (full_pipe(), full_pipe());
        let mut running =
            Running::start(toolway(folder.path(), args).stdout(stdout).stderr(stderr));
        // By then it has its result and waits for the reader; or else it is stopped while it works.
        thread::sleep(Duration::from_secs(1));
        running.terminate();
        assert_eq!(running.ended(), Some(130), "{args:?}");
    }
}
