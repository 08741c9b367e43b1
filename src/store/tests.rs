use std::time::Duration;

use serde_json::{Value, json};

use super::{responses::KeptResponse, *};
use toolway_core::{
    agent::{cut_results::CutResults, parked::Key, transcript::Transcript},
    translate::dialect::responses::{Earlier, References},
};
use toolway_protocol::tool::ToolCall;

const KIBIBYTE: usize = 1 << 10;
const MAX_TURNS: usize = 100;
const MAX_BYTES: usize = 1 << 20;
const MAX_AGE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// A turn with the client's own calls of these ids, and about so many bytes of results.
pub(super) fn turn(principal: Principal, question: u64, ids: &[&str], bytes: usize) -> NewTurn {
    let call = |id: &&str| ToolCall {
        id: (*id).to_owned(),
        name: "own".into(),
        arguments: "{}".into(),
    };
    let mut cut_results = CutResults::default();
    for n in 0..bytes / KIBIBYTE {
        cut_results.keep(n.to_string(), "x".repeat(KIBIBYTE));
    }
    NewTurn {
        principal,
        question,
        parked: Arc::new(Parked {
            transcript: Transcript::default(),
            cut_results,
            client_calls: ids.iter().map(call).collect(),
        }),
    }
}

/// The questions of the turns that a client finds under an id.
pub(super) async fn questions(store: &dyn Store, principal: Principal, id: &str) -> Vec<u64> {
    let key = |question| Key {
        id: id.to_owned(),
        question,
    };
    let keys = [7, 8, 9, u64::MAX].map(key);
    let found = find(store, principal, &keys, &mut |_| true).await.unwrap();
    found.iter().map(|it| it.found.question).collect()
}

/// The turns that a client finds under these keys.
pub(super) async fn find(
    store: &dyn Store,
    principal: Principal,
    keys: &[Key],
    reserve: &mut Reserve<'_>,
) -> Result<Vec<FoundUnder>, StoreError> {
    let keys: Vec<String> = keys
        .iter()
        .map(|it| turns::key(&it.id, it.question))
        .collect();
    let found = store
        .find(EntryKind::Turn, principal, &keys, reserve)
        .await?;
    Ok(found.into_iter().filter_map(turns::read).collect())
}

/// These ids after the question 7.
pub(super) fn keys(ids: &[&str]) -> Vec<Key> {
    let key = |id: &&str| Key {
        id: (*id).to_owned(),
        question: 7,
    };
    ids.iter().map(key).collect()
}

pub(super) async fn park(store: &dyn Store, turn: NewTurn) {
    store.keep(&Arc::new(turn.into())).await.unwrap();
}

/// Does the same with each kind of store.
async fn with_each(check: impl AsyncFn(&dyn Store)) {
    check(&Memory::default()).await;
    let folder = tempfile::tempdir().unwrap();
    check(&Sqlite::open(folder.path()).unwrap()).await;
}

#[tokio::test]
async fn a_turn_is_found_by_its_client_under_each_of_its_ids() {
    with_each(async |store| {
        park(store, turn(1, 7, &["a", "b"], 2 * KIBIBYTE)).await;
        assert!(!store.is_empty(EntryKind::Turn));
        let keys = keys(&["a", "b", "c"]);
        let found = find(store, 1, &keys, &mut |_| true).await.unwrap();
        let mut under: Vec<&str> = found.iter().map(|it| &*it.id).collect();
        under.sort_unstable();
        assert_eq!(under, ["a", "b"]);
        let [a, b] = [&found[0].found, &found[1].found];
        assert!(Arc::ptr_eq(&a.parked, &b.parked), "it is loaded once");
        assert_eq!(a.question, 7);
        assert_eq!(a.parked.cut_results.bytes(), 2 * KIBIBYTE);
        assert!(questions(store, 2, "a").await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn the_oldest_turn_goes_when_there_are_too_many() {
    with_each(async |store| {
        for n in 0..=MAX_TURNS {
            park(store, turn(1, 7, &[&n.to_string()], 0)).await;
        }
        assert!(questions(store, 1, "0").await.is_empty());
        assert_eq!(questions(store, 1, "1").await, [7]);
        assert_eq!(questions(store, 1, &MAX_TURNS.to_string()).await, [7]);
    })
    .await;
}

#[tokio::test]
async fn the_oldest_turns_go_when_they_are_too_big_together() {
    with_each(async |store| {
        for id in ["a", "b", "c", "d", "e"] {
            park(store, turn(1, 7, &[id], MAX_BYTES / 9 * 2)).await;
        }
        assert!(questions(store, 1, "a").await.is_empty());
        assert_eq!(questions(store, 1, "b").await, [7]);
        park(store, turn(1, 7, &["huge"], MAX_BYTES + KIBIBYTE)).await;
        assert!(questions(store, 1, "huge").await.is_empty());
        assert_eq!(questions(store, 1, "b").await, [7]);
    })
    .await;
}

#[tokio::test]
async fn a_client_with_most_of_the_turns_loses_its_own_and_no_other_clients() {
    with_each(async |store| {
        park(store, turn(2, 7, &["other"], 0)).await;
        for n in 0..MAX_TURNS {
            park(store, turn(1, 7, &[&n.to_string()], 0)).await;
        }
        assert_eq!(questions(store, 2, "other").await, [7]);
        assert!(questions(store, 1, "0").await.is_empty());
        assert_eq!(questions(store, 1, "1").await, [7]);
    })
    .await;
    with_each(async |store| {
        park(store, turn(2, 7, &["other"], KIBIBYTE)).await;
        for id in ["a", "b", "c", "d", "e"] {
            park(store, turn(1, 7, &[id], MAX_BYTES / 9 * 2)).await;
        }
        assert_eq!(questions(store, 2, "other").await, [7]);
        assert!(questions(store, 1, "a").await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_client_with_few_turns_keeps_them_also_when_it_adds_some() {
    with_each(async |store| {
        park(store, turn(1, 7, &["old"], 0)).await;
        for n in 1..MAX_TURNS {
            park(store, turn(2, 7, &[&n.to_string()], 0)).await;
        }
        for id in ["a", "b", "c"] {
            park(store, turn(1, 7, &[id], 0)).await;
        }
        for id in ["old", "a", "b", "c"] {
            assert_eq!(questions(store, 1, id).await, [7], "{id}");
        }
        assert!(questions(store, 2, "3").await.is_empty());
        assert_eq!(questions(store, 2, "4").await, [7]);
    })
    .await;
}

#[tokio::test]
async fn an_id_that_is_used_again_leads_to_the_later_turn_first() {
    with_each(async |store| {
        park(store, turn(1, 7, &["a"], MAX_BYTES / 9 * 2)).await;
        park(store, turn(1, 8, &["a"], 0)).await;
        assert_eq!(questions(store, 1, "a").await[0], 8);
        for _ in 0..4 {
            park(store, turn(1, 9, &["b"], MAX_BYTES / 9 * 2)).await;
        }
        assert_eq!(
            questions(store, 1, "a").await,
            [8],
            "the end of the first does not take the second with it"
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_turn_in_memory_is_forgotten_when_it_is_too_old() {
    let store = Memory::default();
    park(&store, turn(1, 7, &["a"], 0)).await;
    tokio::time::advance(MAX_AGE).await;
    assert_eq!(questions(&store, 1, "a").await, [7]);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(questions(&store, 1, "a").await.is_empty());
    assert!(store.is_empty(EntryKind::Turn));
}

/// A response with one item in its input and one in its output.
fn response(id: &str, ancestors: &[&str], text: &str) -> KeptResponse {
    let response = json!({"id": id, "output": [{"id": format!("msg_{id}"), "text": text}]});
    KeptResponse {
        ancestors: ancestors.iter().map(|id| (*id).to_owned()).collect(),
        input: vec![json!({"role": "user", "content": text})],
        response: response.as_object().unwrap().clone(),
    }
}

/// Does the same with entries in each kind of store.
async fn with_each_entries(check: impl AsyncFn(&StoreEntries)) {
    check(&StoreEntries::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let store = Sqlite::open(folder.path()).unwrap();
    check(&StoreEntries::new(Arc::new(store))).await;
}

/// The conversation that ends with this response, and an item.
async fn earlier(entries: &StoreEntries, principal: Principal, id: &str, item: &str) -> Earlier {
    let references = References {
        previous: Some(id.to_owned()),
        conversation: None,
        items: [item.to_owned()].into(),
    };
    let mut reserve = |_| true;
    let found = entries.find_earlier(principal, references, &mut reserve);
    found.await.unwrap().0
}

#[tokio::test]
async fn a_conversation_is_what_was_said_in_its_order_and_only_its_clients() {
    with_each_entries(async |entries| {
        let (a, b) = (response("a", &[], "one"), response("b", &["a"], "two"));
        entries.keep_response(1, &a).await;
        entries.keep_response(1, &b).await;
        let found = earlier(entries, 1, "b", "msg_a").await;
        let items = found.conversation.unwrap();
        let texts = items
            .iter()
            .map(|it| it.get("text").unwrap_or(&it["content"]));
        let texts: Vec<&str> = texts.filter_map(Value::as_str).collect();
        assert_eq!(texts, ["one", "one", "two", "two"]);
        assert_eq!(found.items["msg_a"]["text"], "one");
        let found = earlier(entries, 2, "b", "msg_a").await;
        assert!(found.conversation.is_none() && found.items.is_empty());
        assert!(entries.remove_response(1, "a").await);
        assert!(!entries.remove_response(1, "a").await);
        let found = earlier(entries, 1, "b", "msg_a").await;
        assert!(found.conversation.is_none(), "its beginning is gone");
        assert!(found.items.is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_response_takes_the_place_of_the_one_with_its_id() {
    with_each_entries(async |entries| {
        for text in ["queued", "completed"] {
            entries.keep_response(1, &response("a", &[], text)).await;
        }
        let found = entries.find_response(1, "a", &mut |_| true).await.unwrap();
        assert_eq!(found.unwrap().response["output"][0]["text"], "completed");
        assert!(entries.remove_response(1, "a").await);
        let found = entries.find_response(1, "a", &mut |_| true).await.unwrap();
        assert!(found.is_none(), "the first is gone as well");
    })
    .await;
}

#[tokio::test]
async fn the_oldest_responses_go_where_there_is_no_room_and_turns_stay() {
    with_each_entries(async |entries| {
        entries.park(turn(1, 7, &["t"], 0)).await;
        let text = "x".repeat(MAX_BYTES / 5);
        for id in ["a", "b", "c"] {
            entries.keep_response(1, &response(id, &[], &text)).await;
        }
        let found = entries.find_response(1, "a", &mut |_| true).await.unwrap();
        assert!(found.is_none());
        let found = entries.find_response(1, "c", &mut |_| true).await.unwrap();
        assert!(found.is_some());
        assert_eq!(
            entries
                .find_turns(1, &keys(&["t"]), &mut |_| true)
                .await
                .unwrap()
                .len(),
            1
        );
        let refused = entries.find_response(1, "c", &mut |_| false).await;
        assert!(refused.is_err(), "it needs room to be read");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_response_lives_for_a_day() {
    let entries = StoreEntries::default();
    entries.keep_response(1, &response("a", &[], "one")).await;
    tokio::time::advance(DAY + Duration::from_secs(1)).await;
    let found = entries.find_response(1, "a", &mut |_| true).await.unwrap();
    assert!(found.is_none());
}

/// A store that fails when it is told to.
#[derive(Debug, Default)]
struct Failing {
    memory: Memory,
    fails: std::sync::atomic::AtomicBool,
}

impl Failing {
    fn set(&self, fails: bool) {
        self.fails
            .store(fails, std::sync::atomic::Ordering::Relaxed);
    }

    fn check(&self) -> Result<(), StoreError> {
        match self.fails.load(std::sync::atomic::Ordering::Relaxed) {
            true => Err(StoreError::Unavailable("the disk is full".to_owned())),
            false => Ok(()),
        }
    }
}

impl Store for Failing {
    fn keep<'a>(&'a self, entry: &'a Arc<StoreEntry>) -> BoxFuture<'a, Result<(), StoreError>> {
        match self.check() {
            Ok(()) => self.memory.keep(entry),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }

    fn find<'a>(
        &'a self,
        kind: EntryKind,
        principal: Principal,
        keys: &'a [String],
        reserve: &'a mut Reserve<'_>,
    ) -> BoxFuture<'a, Result<Vec<FoundEntry>, StoreError>> {
        match self.check() {
            Ok(()) => self.memory.find(kind, principal, keys, reserve),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }

    fn remove<'a>(
        &'a self,
        kind: EntryKind,
        principal: Principal,
        key: &'a str,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        match self.check() {
            Ok(()) => self.memory.remove(kind, principal, key),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }

    fn list(&self, kind: EntryKind) -> BoxFuture<'_, Result<Vec<StoredContent>, StoreError>> {
        match self.check() {
            Ok(()) => self.memory.list(kind),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }

    fn replace<'a>(
        &'a self,
        kind: EntryKind,
        principal: Principal,
        key: &'a str,
        before: &'a str,
        after: &'a str,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        match self.check() {
            Ok(()) => self.memory.replace(kind, principal, key, before, after),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }

    fn is_empty(&self, kind: EntryKind) -> bool {
        self.memory.is_empty(kind)
    }

    fn name(&self) -> &'static str {
        "failing"
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_store_fails_turns_are_kept_in_memory_and_health_says_why() {
    let store = Arc::new(Failing::default());
    let turns = StoreEntries::new(store.clone());
    let found = async |id: &str| {
        let keys = keys(&[id]);
        turns
            .find_turns(1, &keys, &mut |_| true)
            .await
            .unwrap()
            .len()
    };
    assert!(turns.is_empty(EntryKind::Turn));
    turns.park(turn(1, 7, &["before"], 0)).await;
    assert_eq!(turns.health().state, "ready");
    store.set(true);
    turns.park(turn(1, 7, &["meanwhile"], 0)).await;
    assert_eq!(found("meanwhile").await, 1);
    assert_eq!(found("before").await, 0);
    let health = turns.health();
    assert_eq!(health.state, "degraded");
    assert_eq!(health.reason.as_deref(), Some("the disk is full"));
    store.set(false);
    turns.park(turn(1, 7, &["after"], 0)).await;
    assert_eq!(turns.health().state, "degraded", "one is in memory only");
    tokio::time::sleep(RETRY + Duration::from_millis(1)).await;
    assert_eq!(turns.health().state, "ready");
    for id in ["before", "meanwhile", "after"] {
        assert_eq!(found(id).await, 1, "{id}");
        assert_eq!(questions(&*store, 1, id).await, [7], "{id}");
    }
}

#[test]
fn a_folder_that_is_named_must_be_usable() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = StoreEntries::open(&DataDir::Folder(file.join("data"))).unwrap_err();
    assert!(error.to_string().contains("--data-dir"), "{error}");
    assert_eq!(
        StoreEntries::open(&DataDir::Memory).unwrap().health().kind,
        "memory"
    );
}

/// A confirmation of this client under this key.
fn small(principal: Principal, key: &str, text: &str) -> Arc<StoreEntry> {
    Arc::new(StoreEntry {
        kind: EntryKind::Confirmation,
        principal,
        keys: vec![key.to_owned(), format!("call {key}")],
        content: StoredContent::Json(text.into()),
    })
}

/// The texts of all confirmations, the newest first.
async fn listed(store: &dyn Store) -> Vec<String> {
    let all = store.list(EntryKind::Confirmation).await.unwrap();
    let text = |content| match content {
        StoredContent::Json(text) => text.to_string(),
        StoredContent::Turn(_) => panic!("a confirmation is JSON"),
    };
    all.into_iter().map(text).collect()
}

#[tokio::test]
async fn a_list_has_what_all_clients_have_of_one_kind_the_newest_first() {
    with_each(async |store| {
        assert!(listed(store).await.is_empty());
        park(store, turn(1, 7, &["a"], 0)).await;
        for (principal, key) in [(1, "one"), (2, "two"), (1, "three")] {
            store.keep(&small(principal, key, key)).await.unwrap();
        }
        assert_eq!(listed(store).await, ["three", "two", "one"]);
        let kind = EntryKind::Confirmation;
        assert!(store.remove(kind, 2, "two").await.unwrap());
        assert_eq!(listed(store).await, ["three", "one"]);
    })
    .await;
}

#[tokio::test]
async fn of_several_that_replace_the_same_text_one_does() {
    with_each(async |store| {
        let kind = EntryKind::Confirmation;
        store.keep(&small(1, "a", "pending")).await.unwrap();
        store.keep(&small(1, "b", "pending")).await.unwrap();
        let texts: Vec<String> = (0..8).map(|n| format!("used {n}")).collect();
        let tries = texts
            .iter()
            .map(|text| store.replace(kind, 1, "a", "pending", text));
        let replaced = futures::future::join_all(tries).await;
        let replaced: Vec<bool> = replaced.into_iter().map(Result::unwrap).collect();
        assert_eq!(replaced.iter().filter(|it| **it).count(), 1);
        let winner = replaced.iter().position(|it| *it).unwrap();
        assert_eq!(listed(store).await, ["pending", &texts[winner]]);
        for (principal, key) in [(2, "a"), (1, "c")] {
            let replacing = store.replace(kind, principal, key, &texts[winner], "x");
            assert!(!replacing.await.unwrap(), "{principal} {key}");
        }
        // Under another of its keys it is the same entry.
        let keys = ["call a".to_owned()];
        let found = store.find(kind, 1, &keys, &mut |_| true).await.unwrap();
        assert!(
            matches!(&found[..], [it] if matches!(&it.content, StoredContent::Json(text) if **text == *texts[winner]))
        );
    })
    .await;
}
