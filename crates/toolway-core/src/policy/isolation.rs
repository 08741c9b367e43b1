//! How a server that is started as a program is kept apart from the machine: options in, a command line out.
//!
//! Every kind hides the machine's files, environment and processes, and has no network unless one is named. What else
//! holds differs by kind, see [`Isolation::caveats`].

use std::fmt;

/// What confines a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IsolationKind {
    /// A container of Docker.
    Docker,
    /// A container of Podman.
    Podman,
    /// Namespaces of Linux, made by `bwrap`.
    Bubblewrap,
}

/// The names of the kinds in the configuration.
pub const KIND_NAMES: [&str; 3] = ["docker", "podman", "bubblewrap"];

impl IsolationKind {
    /// The kind of this name.
    pub fn parse(name: &str) -> Option<IsolationKind> {
        match name {
            "docker" => Some(IsolationKind::Docker),
            "podman" => Some(IsolationKind::Podman),
            "bubblewrap" => Some(IsolationKind::Bubblewrap),
            _ => None,
        }
    }

    /// It runs an image.
    pub fn has_image(self) -> bool {
        matches!(self, IsolationKind::Docker | IsolationKind::Podman)
    }

    /// The program that confines.
    pub fn program(self) -> &'static str {
        match self {
            IsolationKind::Docker => "docker",
            IsolationKind::Podman => "podman",
            IsolationKind::Bubblewrap => "bwrap",
        }
    }
}

impl fmt::Display for IsolationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IsolationKind::Docker => "docker",
            IsolationKind::Podman => "podman",
            IsolationKind::Bubblewrap => "bubblewrap",
        })
    }
}

/// A folder or file of the machine that the program sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where it is on the machine.
    pub host: String,
    /// Where the program finds it.
    pub inside: String,
    /// The program cannot change it.
    pub read_only: bool,
}

/// The options of a server (`servers.NAME.isolation`).
#[derive(Clone, Debug, PartialEq)]
pub struct Isolation {
    /// What confines it.
    pub kind: IsolationKind,
    /// The image of a container; empty for kinds without.
    pub image: String,
    /// Most memory, in bytes.
    pub memory: u64,
    /// Most processors.
    pub cpus: f64,
    /// Most processes and threads.
    pub pids: u32,
    /// The network of a container; any name for the machine's own elsewhere. `None`: no network.
    pub network: Option<String>,
    /// What it sees of the machine's files.
    pub mounts: Vec<Mount>,
}

/// A program to start in place of another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandLine {
    /// The program.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// A program with its arguments that ends what may be left when the program was killed; none if it is empty.
    pub cleanup: Vec<String>,
}

/// What a program needs of the machine in order to run: its libraries and programs, certificates, and nothing of the
/// users.
const SYSTEM: [&str; 14] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/pki",
    "/etc/ssl",
    "/etc/ld.so.conf.d",
];

/// What a program with a network needs besides.
const NAMES: [&str; 2] = ["/etc/hosts", "/etc/resolv.conf"];

impl Isolation {
    /// What of the options holds only in part with this kind.
    pub fn caveats(&self) -> &'static [&'static str] {
        match self.kind {
            IsolationKind::Docker | IsolationKind::Podman => &[],
            IsolationKind::Bubblewrap => &[
                "`memory` holds for each process alone",
                "`cpus` does not hold",
                "`pids` does not hold where toolway runs as root",
            ],
        }
    }

    /// The command line that runs `command`, confined. `name` tells this run from all others; `env` are the names of the
    /// variables that the program gets, whose values stand in the environment of the command line and not in it.
    pub fn wrap(
        &self,
        name: &str,
        command: &[String],
        env: &[&str],
        cwd: Option<&str>,
    ) -> CommandLine {
        match self.kind {
            IsolationKind::Docker | IsolationKind::Podman => {
                self.container(name, command, env, cwd)
            }
            IsolationKind::Bubblewrap => self.namespaces(command, env, cwd),
        }
    }

    fn container(
        &self,
        name: &str,
        command: &[String],
        env: &[&str],
        cwd: Option<&str>,
    ) -> CommandLine {
        let memory = self.memory.to_string();
        let (cpus, pids) = (self.cpus.to_string(), self.pids.to_string());
        let network = self.network.as_deref().unwrap_or("none");
        let mut args = words(&["run", "-i", "--rm", "--init", "--name", name]);
        args.extend(words(&["--memory", &memory, "--memory-swap", &memory]));
        args.extend(words(&[
            "--cpus",
            &cpus,
            "--pids-limit",
            &pids,
            "--network",
            network,
        ]));
        args.extend(words(&[
            "--read-only",
            "--tmpfs",
            "/tmp:rw,nosuid,nodev,size=64m",
        ]));
        args.extend(words(&[
            "--cap-drop",
            "ALL",
            "--security-opt",
            "no-new-privileges",
        ]));
        for Mount {
            host,
            inside,
            read_only,
        } in &self.mounts
        {
            let suffix = if *read_only { ",readonly" } else { "" };
            args.extend(words(&[
                "--mount",
                &format!("type=bind,source={host},target={inside}{suffix}"),
            ]));
        }
        for name in env {
            args.extend(words(&["-e", name]));
        }
        if let Some(cwd) = cwd {
            args.extend(words(&["--workdir", cwd]));
        }
        args.push(self.image.clone());
        args.extend_from_slice(command);
        let program = self.kind.program();
        CommandLine {
            program: program.to_owned(),
            args,
            cleanup: words(&[program, "rm", "--force", name]),
        }
    }

    fn namespaces(&self, command: &[String], env: &[&str], cwd: Option<&str>) -> CommandLine {
        let mut args = words(&["--die-with-parent", "--new-session", "--unshare-all"]);
        args.extend(words(&["--cap-drop", "ALL"]));
        let names: &[&str] = match self.network {
            Some(_) => {
                args.extend(words(&["--share-net"]));
                &NAMES
            }
            None => &[],
        };
        for path in SYSTEM.iter().chain(names) {
            args.extend(words(&["--ro-bind-try", path, path]));
        }
        args.extend(words(&[
            "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
        ]));
        for Mount {
            host,
            inside,
            read_only,
        } in &self.mounts
        {
            let bind = if *read_only { "--ro-bind" } else { "--bind" };
            args.extend(words(&[bind, host, inside]));
        }
        // Everything that was not named is taken away.
        for name in HIDDEN.iter().filter(|name| !env.contains(name)) {
            args.extend(words(&["--unsetenv", name]));
        }
        if !env.contains(&"HOME") {
            args.extend(words(&["--setenv", "HOME", "/tmp"]));
        }
        args.extend(words(&["--chdir", cwd.unwrap_or("/tmp"), "--"]));
        let (data, nproc) = (
            format!("--data={}", self.memory),
            format!("--nproc={}", self.pids),
        );
        args.extend(words(&["prlimit", &data, &nproc, "--core=0", "--"]));
        args.extend_from_slice(command);
        CommandLine {
            program: self.kind.program().to_owned(),
            args,
            cleanup: Vec::new(),
        }
    }
}

/// What every child of toolway gets of its environment, and a confined one does not.
const HIDDEN: [&str; 4] = ["USER", "LOGNAME", "SHELL", "TMPDIR"];

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn isolation(kind: IsolationKind) -> Isolation {
        Isolation {
            kind,
            image: if kind.has_image() { "tools:1" } else { "" }.to_owned(),
            memory: 512 << 20,
            cpus: 1.5,
            pids: 128,
            network: None,
            mounts: vec![Mount {
                host: "/srv/data".to_owned(),
                inside: "/data".to_owned(),
                read_only: true,
            }],
        }
    }

    fn line(isolation: &Isolation) -> String {
        let command = words(&["server", "--flag"]);
        let line = isolation.wrap("toolway-files-1", &command, &["TOKEN"], None);
        format!("{} {}", line.program, line.args.join(" "))
    }

    #[test]
    fn a_container_has_no_more_than_it_is_given() {
        let mut docker = isolation(IsolationKind::Docker);
        assert_eq!(
            line(&docker),
            "docker run -i --rm --init --name toolway-files-1 --memory 536870912 --memory-swap 536870912 --cpus 1.5 \
             --pids-limit 128 --network none --read-only --tmpfs /tmp:rw,nosuid,nodev,size=64m --cap-drop ALL \
             --security-opt no-new-privileges --mount type=bind,source=/srv/data,target=/data,readonly -e TOKEN \
             tools:1 server --flag"
        );
        docker.network = Some("tools".to_owned());
        assert!(line(&docker).contains("--network tools "));
        let podman = isolation(IsolationKind::Podman);
        assert!(line(&podman).starts_with("podman run "));
        let cleanup = podman.wrap("n", &[], &[], None).cleanup;
        assert_eq!(cleanup, ["podman", "rm", "--force", "n"]);
    }

    #[test]
    fn namespaces_show_the_system_and_what_is_mounted_and_nothing_of_the_users() {
        let mut bubblewrap = isolation(IsolationKind::Bubblewrap);
        let shown = line(&bubblewrap);
        for part in [
            "bwrap --die-with-parent --new-session --unshare-all ",
            "--ro-bind-try /usr /usr ",
            "--ro-bind /srv/data /data ",
            "--setenv HOME /tmp ",
        ] {
            assert!(shown.contains(part), "{shown}");
        }
        assert!(
            shown.ends_with(" -- prlimit --data=536870912 --nproc=128 --core=0 -- server --flag")
        );
        for part in ["/home", "/root", "/etc/shadow", "--share-net", "/etc/hosts"] {
            assert!(!shown.contains(part), "{part}");
        }
        bubblewrap.network = Some("host".to_owned());
        assert!(line(&bubblewrap).contains("--share-net"));
    }
}
