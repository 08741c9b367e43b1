//! How much of what all clients share one key may hold, and whose entry makes room when there is no more.

/// How many keys share something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// One key, or none at all: it may hold everything.
    #[default]
    Alone,
    /// Several: each may hold half.
    Several,
}

impl Sharing {
    /// Among so many configured keys.
    pub fn among(keys: usize) -> Sharing {
        match keys {
            0 | 1 => Sharing::Alone,
            _ => Sharing::Several,
        }
    }

    /// The most that one key may hold of `max`.
    pub fn share(self, max: usize) -> usize {
        match self {
            Sharing::Alone => max,
            Sharing::Several => max.div_ceil(2),
        }
    }
}

/// Whose oldest entry makes room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// That of the key that adds one.
    Own,
    /// The oldest of all.
    Oldest,
}

impl Victim {
    /// Where `max` entries are all there can be, and the key that adds one holds `own` of them.
    pub fn choose(own: usize, max: usize) -> Victim {
        match own > max / 2 {
            true => Victim::Own,
            false => Victim::Oldest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_may_hold_everything_and_several_half_each() {
        for (keys, max, share) in [(0, 10, 10), (1, 10, 10), (2, 10, 5), (9, 3, 2), (2, 1, 1)] {
            assert_eq!(Sharing::among(keys).share(max), share, "{keys} keys, {max}");
        }
    }

    #[test]
    fn a_key_with_more_than_half_makes_room_for_itself() {
        for (own, max, victim) in [
            (0, 10, Victim::Oldest),
            (5, 10, Victim::Oldest),
            (6, 10, Victim::Own),
            (10, 10, Victim::Own),
        ] {
            assert_eq!(Victim::choose(own, max), victim, "{own} of {max}");
        }
    }
}
