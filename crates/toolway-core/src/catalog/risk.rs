//! Risk levels of servers and their tools, as the configuration says.

use super::matches;

/// How dangerous calls are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Risk {
    /// 1: a call runs.
    Low,
    /// 2: a person is asked first.
    Medium,
    /// 3: a call runs only where its server is isolated.
    High,
}

impl Risk {
    /// The level of this number.
    pub fn of_number(number: i64) -> Option<Risk> {
        match number {
            1 => Some(Risk::Low),
            2 => Some(Risk::Medium),
            3 => Some(Risk::High),
            _ => None,
        }
    }

    /// Its number, 1 to 3.
    pub fn number(self) -> u8 {
        match self {
            Risk::Low => 1,
            Risk::Medium => 2,
            Risk::High => 3,
        }
    }
}

/// The risk of one server and of its tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerRisk {
    /// Of the tools that no pattern matches.
    pub server: Option<Risk>,
    /// Patterns of the server's own tool names; of several that match, the highest level counts.
    pub tools: Vec<(String, Risk)>,
    /// The server is kept apart from the machine.
    pub is_isolated: bool,
}

/// The risk of one tool, and what says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolRisk {
    /// The level.
    pub level: Risk,
    /// The pattern of the tool; `None`: it is the server's.
    pub pattern: Option<String>,
    /// Its server is kept apart from the machine.
    pub is_isolated: bool,
}

impl ServerRisk {
    /// The risk of the tool that its server knows by this name, if one is configured.
    pub fn of(&self, tool: &str) -> Option<ToolRisk> {
        let is_isolated = self.is_isolated;
        let matching = self.tools.iter().filter(|(it, _)| matches(it, tool));
        match matching.max_by_key(|(_, level)| *level) {
            Some((pattern, level)) => Some(ToolRisk {
                level: *level,
                pattern: Some(pattern.clone()),
                is_isolated,
            }),
            None => self.server.map(|level| ToolRisk {
                level,
                pattern: None,
                is_isolated,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_goes_before_the_server_and_the_highest_pattern_counts() {
        let risk = ServerRisk {
            server: Some(Risk::Medium),
            tools: [
                ("delete_*", Risk::High),
                ("*_all", Risk::Low),
                ("read_*", Risk::Low),
            ]
            .map(|(pattern, level)| (pattern.to_owned(), level))
            .to_vec(),
            is_isolated: false,
        };
        let level = |tool| risk.of(tool).map(|it| it.level.number());
        assert_eq!(level("delete_all"), Some(3));
        assert_eq!(level("read_x"), Some(1));
        assert_eq!(level("write"), Some(2));
        assert_eq!(ServerRisk::default().of("write"), None);
    }
}
