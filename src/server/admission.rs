//! Which connections may stay: the rules alone, without sockets, clocks or locks.
//!
//! A connection is unfinished while no complete request is under way on it: it is idle, or sends the head or the body
//! of a request. Unfinished connections cost a client nothing, so one address may hold only a share of the places,
//! and its oldest ones make room for new ones. Nothing here ends a request that is being answered.

use std::{cmp::Reverse, collections::HashMap, net::IpAddr};

/// Longest time for the head of a request, from its first byte, in seconds.
pub(super) const HEAD: u32 = 10;

/// Longest time that a connection is kept without a request, in seconds.
pub(super) const IDLE: u32 = 75;

/// For this many seconds a new connection is not closed to make room, so that many clients that connect at once can all
/// send a request.
pub(super) const YOUNG: u32 = 2;

/// The unit in which connections are counted: a whole IPv4 address, or the first 64 bits of an IPv6 address, because a
/// network gives each customer at least a /64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Peer(u64);

impl Peer {
    pub(super) fn of(address: IpAddr) -> Peer {
        Peer(match address.to_canonical() {
            IpAddr::V4(address) => u64::from(address.to_bits()),
            IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
        })
    }
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaiting {
    /// The first byte of a request.
    Request,
    /// The rest of a request's head.
    Head,
    /// The rest of the request bodies; each has its own deadline.
    Bodies,
    /// Nothing: at least one complete request is being answered.
    Nothing,
}

/// A connection at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Snapshot {
    pub(super) id: u64,
    pub(super) peer: Peer,
    pub(super) awaiting: Awaiting,
    /// When it began to wait, in seconds.
    pub(super) since: u32,
    /// Unfinished requests on it; one that is idle counts as one.
    pub(super) unfinished: usize,
}

impl Snapshot {
    /// It has waited for too long.
    pub(super) fn is_overdue(&self, now: u32) -> bool {
        let waited = now.saturating_sub(self.since);
        match self.awaiting {
            Awaiting::Request => waited >= IDLE,
            Awaiting::Head => waited > HEAD,
            Awaiting::Bodies | Awaiting::Nothing => false,
        }
    }

    /// It may make room for others.
    pub(super) fn can_be_closed(&self, now: u32, young: u32) -> bool {
        self.awaiting != Awaiting::Nothing && now.saturating_sub(self.since) >= young
    }
}

/// The connections that can be closed now, the oldest last; see [`oldest`].
pub(super) fn by_age(mut connections: Vec<Snapshot>, now: u32) -> Vec<u64> {
    connections.retain(|it| it.can_be_closed(now, YOUNG));
    connections.sort_unstable_by_key(|it| Reverse((it.since, it.id)));
    connections.iter().map(|it| it.id).collect()
}

/// The oldest connection that can be closed and is at least `young` seconds old. Among equals it is the one that was
/// accepted first.
pub(super) fn oldest<'a>(
    connections: impl IntoIterator<Item = &'a Snapshot>,
    now: u32,
    young: u32,
) -> Option<&'a Snapshot> {
    let closable = connections
        .into_iter()
        .filter(|it| it.can_be_closed(now, young));
    closable.min_by_key(|it| (it.since, it.id))
}

/// The connection to close when there is no room: the oldest of the address with the most unfinished requests.
pub(super) fn oldest_of_largest(
    connections: &[Snapshot],
    now: u32,
    young: u32,
) -> Option<&Snapshot> {
    let mut unfinished: HashMap<Peer, usize> = HashMap::new();
    let closable = connections.iter().filter(|it| it.can_be_closed(now, young));
    for it in closable {
        *unfinished.entry(it.peer).or_default() += it.unfinished;
    }
    let (largest, _) = unfinished.into_iter().max_by_key(|(_, count)| *count)?;
    let its = connections.iter().filter(|it| it.peer == largest);
    oldest(its, now, young)
}

/// The connections to close now: the overdue ones, and the oldest of each address with more than `most` unfinished
/// requests.
pub(super) fn to_close(mut connections: Vec<Snapshot>, now: u32, most: usize) -> Vec<u64> {
    let is_overdue = |it: &mut Snapshot| it.is_overdue(now);
    let mut closed: Vec<u64> = connections
        .extract_if(.., is_overdue)
        .map(|it| it.id)
        .collect();
    let mut unfinished: HashMap<Peer, usize> = HashMap::new();
    for it in &connections {
        *unfinished.entry(it.peer).or_default() += it.unfinished;
    }
    if unfinished.values().all(|count| *count <= most) {
        return closed;
    }
    connections.sort_unstable_by_key(|it| (it.since, it.id));
    let closable = connections.iter().filter(|it| it.can_be_closed(now, YOUNG));
    for it in closable {
        if let Some(count) = unfinished.get_mut(&it.peer)
            && *count > most
        {
            *count -= it.unfinished;
            closed.push(it.id);
        }
    }
    closed
}

/// How many of `places` one key may take if there are several keys. A key together with the functions that it lends
/// leaves some for others.
pub(super) fn share_of_key(places: usize) -> usize {
    places - places * 3 / 8
}

/// How many places of `places` the clients of all lent functions may take together.
pub(super) fn share_of_lent(places: usize) -> usize {
    places.div_ceil(4)
}

/// How many unfinished requests one address may have, given the maximum number of connections.
pub(super) fn share_of_peer(connections: usize) -> usize {
    connections.div_ceil(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(id: u64, peer: u64, awaiting: Awaiting, since: u32) -> Snapshot {
        Snapshot {
            id,
            peer: Peer(peer),
            awaiting,
            since,
            unfinished: usize::from(awaiting != Awaiting::Nothing),
        }
    }

    #[test]
    fn an_address_is_counted_as_its_network_gives_it_out() {
        for (one, other, is_same) in [
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("192.0.2.1", "::ffff:192.0.2.1", true),
            ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", true),
            ("2001:db8:1:2::1", "2001:db8:1:3::1", false),
        ] {
            let [one, other] = [one, other].map(|it| Peer::of(it.parse().unwrap()));
            assert_eq!(one == other, is_same, "{one:?} {other:?}");
        }
    }

    #[test]
    fn only_what_waits_too_long_is_overdue() {
        for (awaiting, waited, is_overdue) in [
            (Awaiting::Request, IDLE - 1, false),
            (Awaiting::Request, IDLE, true),
            (Awaiting::Head, HEAD, false),
            (Awaiting::Head, HEAD + 1, true),
            (Awaiting::Bodies, 1000, false),
            (Awaiting::Nothing, 1000, false),
        ] {
            let it = connection(1, 1, awaiting, 7);
            assert_eq!(
                it.is_overdue(7 + waited),
                is_overdue,
                "{awaiting:?} {waited}"
            );
        }
        assert!(
            !connection(1, 1, Awaiting::Head, 7).is_overdue(0),
            "the clock is coarse"
        );
    }

    #[test]
    fn the_oldest_makes_room_unless_it_is_being_answered() {
        let connections = [
            connection(1, 1, Awaiting::Nothing, 0),
            connection(2, 1, Awaiting::Head, 5),
            connection(3, 1, Awaiting::Request, 4),
            connection(4, 1, Awaiting::Request, 4),
        ];
        let oldest = |now, young| oldest(&connections, now, young).map(|it| it.id);
        assert_eq!(oldest(4 + YOUNG, YOUNG), Some(3));
        assert_eq!(oldest(4 + YOUNG - 1, YOUNG), None, "all are young");
        assert_eq!(oldest(4, 0), Some(3));
        assert!(super::oldest(&connections[..1], 99, 0).is_none());
    }

    #[test]
    fn the_address_with_the_most_unfinished_requests_makes_room_for_all() {
        let mut connections = vec![
            connection(1, 1, Awaiting::Head, 0),
            connection(2, 2, Awaiting::Head, 5),
            connection(3, 2, Awaiting::Bodies, 6),
        ];
        // A proxy that has many requests under way has nothing to give.
        connections.extend((10..20).map(|id| connection(id, 3, Awaiting::Nothing, 0)));
        assert_eq!(
            oldest_of_largest(&connections, 9, YOUNG).map(|it| it.id),
            Some(2)
        );
        assert!(oldest_of_largest(&connections[3..], 9, YOUNG).is_none());
    }

    #[test]
    fn an_address_keeps_its_share_and_no_more() {
        let mut connections: Vec<_> = (0..10)
            .map(|id| connection(id, 1, Awaiting::Head, 100))
            .collect();
        connections.push(connection(50, 2, Awaiting::Head, 1));
        connections.push(connection(51, 2, Awaiting::Request, 100));
        connections.push(connection(52, 1, Awaiting::Nothing, 0));
        assert_eq!(to_close(connections.clone(), 102, 8), [50, 0, 1]);
        assert_eq!(to_close(connections.clone(), 102, 10), [50]);
        assert_eq!(to_close(connections, 101, 8), [50], "the others are young");
    }

    #[test]
    fn streams_of_one_connection_are_counted_each() {
        let mut many = connection(1, 1, Awaiting::Bodies, 1);
        many.unfinished = 100;
        let few = connection(2, 1, Awaiting::Bodies, 2);
        assert_eq!(to_close(vec![few, many], 4, 100), [1]);
        many.awaiting = Awaiting::Nothing;
        assert_eq!(to_close(vec![few, many], 4, 100), [2]);
    }

    #[test]
    fn shares_leave_room_for_others() {
        for (places, of_key, of_lent, of_peer) in [
            (1, 1, 1, 1),
            (2, 2, 1, 1),
            (4, 3, 1, 2),
            (4096, 2560, 1024, 2048),
        ] {
            assert_eq!(share_of_key(places), of_key);
            assert_eq!(share_of_lent(places), of_lent);
            assert_eq!(share_of_peer(places), of_peer);
        }
    }
}
