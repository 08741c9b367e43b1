//! Entries in memory. They end with the process.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::{FutureExt, future::BoxFuture};
use tokio::time::Instant;

use super::{
    EntryKind, FoundEntry, Held, Principal, Reserve, Store, StoreEntry, StoreError, StoredContent,
};

/// Entries by their keys. A key that is used again leads to the later entry.
#[derive(Debug, Default)]
pub struct Memory {
    inner: Mutex<MemoryInner>,
}

#[derive(Debug, Default)]
struct MemoryInner {
    /// How many there ever were.
    numbers: u64,
    by_key: HashMap<(EntryKind, Principal, String), u64>,
    kinds: HashMap<EntryKind, OfKind>,
}

/// The entries of one kind.
#[derive(Debug, Default)]
struct OfKind {
    /// The oldest first.
    order: BTreeMap<u64, MemoryEntry>,
    all: Held,
    held: HashMap<Principal, Held>,
}

#[derive(Debug)]
struct MemoryEntry {
    entry: Arc<StoreEntry>,
    bytes: usize,
    since: Instant,
}

impl Memory {
    /// Keeps an entry.
    pub(super) fn add(&self, entry: &Arc<StoreEntry>) {
        let (kind, principal) = (entry.kind, entry.principal);
        let bytes = entry.content.bytes();
        if bytes > kind.bounds().bytes {
            return;
        }
        let mut inner = self.lock();
        if let Some(id) = entry.keys.first().filter(|_| kind.has_id()) {
            inner.forget(kind, principal, id);
        }
        inner.numbers += 1;
        let number = inner.numbers;
        for key in &entry.keys {
            inner.by_key.insert((kind, principal, key.clone()), number);
        }
        let of_kind = inner.kinds.entry(kind).or_default();
        of_kind.all.add(bytes);
        of_kind.held.entry(principal).or_default().add(bytes);
        let kept = MemoryEntry {
            entry: Arc::clone(entry),
            bytes,
            since: Instant::now(),
        };
        of_kind.order.insert(number, kept);
        inner.make_room(kind);
    }

    /// What this client has under these keys, the newest first.
    pub(super) fn lookup(
        &self,
        kind: EntryKind,
        principal: Principal,
        keys: &[String],
    ) -> Vec<FoundEntry> {
        let mut inner = self.lock();
        inner.make_room(kind);
        let Some(of_kind) = inner.kinds.get(&kind) else {
            return Vec::new();
        };
        let find = |key: &String| {
            let number = *inner.by_key.get(&(kind, principal, key.clone()))?;
            let content = of_kind.order.get(&number)?.entry.content.clone();
            let key = key.clone();
            Some((number, FoundEntry { key, content }))
        };
        let mut found: Vec<_> = keys.iter().filter_map(find).collect();
        found.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
        found.into_iter().map(|(_, found)| found).collect()
    }

    /// The entry that was kept first, and its number.
    pub(super) fn oldest(&self) -> Option<(u64, Arc<StoreEntry>)> {
        let inner = self.lock();
        let firsts = inner.kinds.values().filter_map(|it| it.order.iter().next());
        let oldest = firsts.min_by_key(|(number, _)| **number);
        oldest.map(|(number, kept)| (*number, Arc::clone(&kept.entry)))
    }

    /// Forgets the entry of this number.
    pub(super) fn remove_number(&self, kind: EntryKind, number: u64) {
        self.lock().remove(kind, number);
    }

    /// What all clients have of a kind, the newest first.
    pub(super) fn all(&self, kind: EntryKind) -> Vec<StoredContent> {
        let mut inner = self.lock();
        inner.make_room(kind);
        let of_kind = inner.kinds.get(&kind);
        let all = of_kind.into_iter().flat_map(|it| it.order.values().rev());
        all.map(|kept| kept.entry.content.clone()).collect()
    }

    /// Replaces what this client has under a key, if that is `before`.
    pub(super) fn swap(
        &self,
        kind: EntryKind,
        principal: Principal,
        key: &str,
        before: &str,
        after: &str,
    ) -> bool {
        let mut inner = self.lock();
        let number = inner
            .by_key
            .get(&(kind, principal, key.to_owned()))
            .copied();
        let Some(of_kind) = inner.kinds.get_mut(&kind) else {
            return false;
        };
        let Some(kept) = number.and_then(|number| of_kind.order.get_mut(&number)) else {
            return false;
        };
        let StoredContent::Json(text) = &kept.entry.content else {
            return false;
        };
        if **text != *before {
            return false;
        }
        let (old, new) = (kept.bytes, after.len());
        kept.bytes = new;
        kept.entry = Arc::new(StoreEntry {
            kind,
            principal,
            keys: kept.entry.keys.clone(),
            content: StoredContent::Json(after.into()),
        });
        of_kind.all.bytes = of_kind.all.bytes + new - old;
        if let Some(held) = of_kind.held.get_mut(&principal) {
            held.bytes = held.bytes + new - old;
        }
        true
    }

    /// Forgets what this client has under a key. False if there was nothing.
    pub(super) fn forget(&self, kind: EntryKind, principal: Principal, key: &str) -> bool {
        self.lock().forget(kind, principal, key)
    }

    fn lock(&self) -> MutexGuard<'_, MemoryInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for Memory {
    fn keep<'a>(&'a self, entry: &'a Arc<StoreEntry>) -> BoxFuture<'a, Result<(), StoreError>> {
        async {
            self.add(entry);
            Ok(())
        }
        .boxed()
    }

    fn find<'a>(
        &'a self,
        kind: EntryKind,
        principal: Principal,
        keys: &'a [String],
        reserve: &'a mut Reserve<'_>,
    ) -> BoxFuture<'a, Result<Vec<FoundEntry>, StoreError>> {
        async move {
            let found = self.lookup(kind, principal, keys);
            // Values are shared, and texts are read into values.
            let read = found.iter().filter(|_| kind != EntryKind::Turn);
            let bytes = read.map(|it| 2 * it.content.bytes()).sum();
            match bytes == 0 || reserve(bytes) {
                true => Ok(found),
                false => Err(StoreError::NoRoom),
            }
        }
        .boxed()
    }

    fn remove<'a>(
        &'a self,
        kind: EntryKind,
        principal: Principal,
        key: &'a str,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        async move { Ok(self.forget(kind, principal, key)) }.boxed()
    }

    fn list(&self, kind: EntryKind) -> BoxFuture<'_, Result<Vec<StoredContent>, StoreError>> {
        async move { Ok(self.all(kind)) }.boxed()
    }

    fn replace<'a>(
        &'a self,
        kind: EntryKind,
        principal: Principal,
        key: &'a str,
        before: &'a str,
        after: &'a str,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        async move { Ok(self.swap(kind, principal, key, before, after)) }.boxed()
    }

    fn is_empty(&self, kind: EntryKind) -> bool {
        let inner = self.lock();
        inner.kinds.get(&kind).is_none_or(|it| it.order.is_empty())
    }

    fn name(&self) -> &'static str {
        "memory"
    }
}

impl MemoryInner {
    /// Keeps within the bounds: what is too old goes, then the oldest, that of a client with more than half if there is
    /// one.
    fn make_room(&mut self, kind: EntryKind) {
        let bounds = kind.bounds();
        while let Some(of_kind) = self.kinds.get(&kind) {
            let Some((oldest, kept)) = of_kind.order.iter().next() else {
                return;
            };
            let is_full = of_kind.all.exceeds(&bounds, 1);
            if !is_full && kept.since.elapsed() <= bounds.age {
                return;
            }
            let greedy = of_kind.held.iter().filter(|_| is_full);
            let greedy: HashSet<Principal> = greedy
                .filter(|(_, held)| held.exceeds(&bounds, 2))
                .map(|(principal, _)| *principal)
                .collect();
            let mut order = of_kind.order.iter();
            let victim = order.find(|(_, it)| greedy.contains(&it.entry.principal));
            let victim = victim.map_or(*oldest, |(number, _)| *number);
            self.remove(kind, victim);
        }
    }

    fn forget(&mut self, kind: EntryKind, principal: Principal, key: &str) -> bool {
        let number = self.by_key.get(&(kind, principal, key.to_owned())).copied();
        number.is_some_and(|number| self.remove(kind, number))
    }

    fn remove(&mut self, kind: EntryKind, number: u64) -> bool {
        let Some(of_kind) = self.kinds.get_mut(&kind) else {
            return false;
        };
        let Some(removed) = of_kind.order.remove(&number) else {
            return false;
        };
        let principal = removed.entry.principal;
        of_kind.all.subtract(removed.bytes);
        if let Some(held) = of_kind.held.get_mut(&principal) {
            held.subtract(removed.bytes);
            if held.entries == 0 {
                of_kind.held.remove(&principal);
            }
        }
        for key in &removed.entry.keys {
            let key = (kind, principal, key.clone());
            // A later entry may have the key as well.
            if self.by_key.get(&key) == Some(&number) {
                self.by_key.remove(&key);
            }
        }
        true
    }
}
