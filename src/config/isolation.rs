//! What keeps a server apart from the machine: `servers.NAME.isolation`.

use super::{check::Check, keys::unknown, raw::RawIsolation, values::Origin};
use toolway_core::policy::isolation::{Isolation, IsolationKind, KIND_NAMES, Mount};

/// The units of sizes, and how many bytes each has.
const UNITS: [(&str, u64); 4] = [("b", 1), ("k", 1 << 10), ("m", 1 << 20), ("g", 1 << 30)];

impl Check<'_> {
    /// The isolation of the server at `path`. A fault in it is a problem: a server that asks for isolation never runs
    /// without.
    pub(super) fn isolation(
        &mut self,
        path: &str,
        raw: &RawIsolation,
        origin: &Origin,
    ) -> Option<Isolation> {
        let key = |key: &str| format!("{path}.{key}");
        let kind = match raw.kind.as_deref() {
            Some(name) => {
                IsolationKind::parse(name).ok_or_else(|| unknown("kind", name, &KIND_NAMES))
            }
            None => Err("is missing: `\"docker\"`, `\"podman\"` or `\"bubblewrap\"`".to_owned()),
        };
        let kind = kind
            .map_err(|message| self.problem(key("kind"), message))
            .ok()?;
        let image = raw.image.clone().unwrap_or_default();
        match (kind.has_image(), image.is_empty()) {
            (true, true) => {
                self.problem(
                    key("image"),
                    "is missing: the image that the container is made of",
                );
                return None;
            }
            (false, false) => {
                self.problem(key("image"), format_args!("has no meaning for `{kind}`"));
                return None;
            }
            (true, false) | (false, true) => {}
        }
        if image.starts_with('-') {
            self.problem(key("image"), "must not begin with `-`");
            return None;
        }
        let memory = raw.memory.as_deref().unwrap_or("512m");
        let memory = match size(memory) {
            Some(bytes) if bytes >= 6 << 20 => bytes,
            _ => {
                let message =
                    format_args!("`{memory}` is no size of 6 MiB or more, such as `512m` or `2g`");
                self.problem(key("memory"), message);
                return None;
            }
        };
        let cpus = raw.cpus.unwrap_or(1.0);
        if !(0.01..=1024.0).contains(&cpus) {
            self.problem(key("cpus"), "must be from 0.01 to 1024");
            return None;
        }
        let pids = self.number(key("pids"), raw.pids, 1..=100_000, 128);
        let network = raw.network.clone().filter(|name| name != "none");
        if network
            .as_deref()
            .is_some_and(|name| name.is_empty() || name.starts_with('-'))
        {
            self.problem(key("network"), "is `\"none\"` or the name of a network");
            return None;
        }
        let written = raw.mounts.iter().flatten().enumerate();
        let mounts =
            written.map(|(i, mount)| self.mount(&key(&format!("mounts[{i}]")), mount, origin));
        let isolation = Isolation {
            kind,
            image,
            memory,
            cpus,
            pids: u32::try_from(pids).unwrap_or(u32::MAX),
            network,
            mounts: mounts
                .collect::<Vec<_>>()
                .into_iter()
                .collect::<Option<_>>()?,
        };
        if !isolation.caveats().is_empty() {
            self.warn(key("kind"), isolation.caveats().join(", "));
        }
        Some(isolation)
    }

    /// `HOST:INSIDE` or `HOST:INSIDE:ro`; a relative path of the host begins at the configuration's folder.
    fn mount(&mut self, path: &str, written: &str, origin: &Origin) -> Option<Mount> {
        let parts: Vec<&str> = written.split(':').collect();
        let (host, inside, read_only) = match parts[..] {
            [host, inside] | [host, inside, "rw"] => (host, inside, false),
            [host, inside, "ro"] => (host, inside, true),
            _ => ("", "", false),
        };
        let folder = self.folder_of(origin).to_owned();
        let host = match (host.strip_prefix("~/"), (self.environment.env)("HOME")) {
            (Some(rest), Some(home)) => std::path::Path::new(&home).join(rest),
            _ => folder.join(host),
        };
        let host = std::path::absolute(host).ok();
        let host = host.as_deref().and_then(std::path::Path::to_str);
        let is_plain = |text: &str| !text.contains([',', '"', '\0']);
        match host {
            Some(host) if inside.starts_with('/') && is_plain(host) && is_plain(inside) => {
                Some(Mount {
                    host: host.to_owned(),
                    inside: inside.to_owned(),
                    read_only,
                })
            }
            _ => {
                let message =
                    "is written `HOST:INSIDE` or `HOST:INSIDE:ro`; INSIDE begins with `/`";
                self.problem(path, message);
                None
            }
        }
    }
}

/// The bytes of a size such as `512m`.
fn size(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let text = text.strip_suffix("ib").map_or(text.as_str(), |it| it);
    let (number, unit) = match text.find(|c: char| !c.is_ascii_digit()) {
        Some(at) => text.split_at(at),
        None => (text, "b"),
    };
    let (_, bytes) = UNITS.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_number_with_a_unit() {
        for (text, bytes) in [
            ("512m", Some(512 << 20)),
            ("2G", Some(2 << 30)),
            ("64MiB", Some(64 << 20)),
            ("1048576", Some(1 << 20)),
            ("1.5g", None),
            ("m", None),
            ("12x", None),
            ("99999999999999999999g", None),
        ] {
            assert_eq!(size(text), bytes, "{text}");
        }
    }
}
