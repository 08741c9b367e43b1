use super::{
    super::tests::{find, keys, park, questions, turn},
    super::turns::{NewTurn, key},
    *,
};

fn park_all(connection: &mut Connection, turns: Vec<NewTurn>) -> Result<(), StoreError> {
    let changes: Vec<StoreWrite> = turns
        .into_iter()
        .map(|turn| StoreWrite::Keep(Arc::new(turn.into())))
        .collect();
    write(connection, &changes).map(|_| ())
}

fn refused(folder: &Path) -> String {
    Sqlite::open(folder).unwrap_err().to_string()
}

#[tokio::test]
async fn a_turn_is_there_after_the_process_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let store = Sqlite::open(folder.path()).unwrap();
    park(&store, turn(1, 7, &["a"], 0)).await;
    // What another process sees while this one still runs is what is left of it after `kill -9`.
    let other = Sqlite::open(folder.path()).unwrap();
    assert_eq!(questions(&other, 1, "a").await, [7]);
    park(&other, turn(1, 8, &["b"], 0)).await;
    assert_eq!(questions(&store, 1, "b").await, [8]);
}

#[tokio::test]
async fn all_turns_of_one_id_are_found_the_newest_first() {
    let folder = tempfile::tempdir().unwrap();
    let store = Sqlite::open(folder.path()).unwrap();
    for question in [7, u64::MAX] {
        let parked = turn(u64::MAX, question, &["a"], 0);
        park(&store, parked).await;
    }
    assert_eq!(questions(&store, u64::MAX, "a").await, [u64::MAX, 7]);
}

#[tokio::test]
async fn a_turn_is_forgotten_when_it_is_too_old() {
    let folder = tempfile::tempdir().unwrap();
    let store = Sqlite::open(folder.path()).unwrap();
    park(&store, turn(1, 7, &["a"], 0)).await;
    let other = connect(store.path()).unwrap();
    other
        .execute("UPDATE entries SET expires = ?1", [now()])
        .unwrap();
    assert!(questions(&store, 1, "a").await.is_empty());
    park(&store, turn(1, 8, &["b"], 0)).await;
    let left = |table| {
        let count = format!("SELECT count(*) FROM {table}");
        other
            .query_row(&count, (), |row| row.get::<_, i64>(0))
            .unwrap()
    };
    assert_eq!((left("entries"), left("keys")), (1, 1));
}

#[tokio::test]
async fn turns_that_do_not_fit_are_not_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let store = Sqlite::open(folder.path()).unwrap();
    park(&store, turn(1, 7, &["a"], 4096)).await;
    let mut asked = 0;
    let keys = keys(&["a"]);
    let mut refuse = |bytes| {
        asked = bytes;
        false
    };
    let found = find(&store, 1, &keys, &mut refuse);
    assert_eq!(found.await.unwrap_err(), StoreError::NoRoom);
    assert!(asked > 2 * 4096);
}

#[cfg(unix)]
#[test]
fn no_other_user_can_read_it() {
    use std::os::unix::fs::PermissionsExt;
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("new/data");
    let store = Sqlite::open(&folder).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    for file in fs::read_dir(&folder).unwrap() {
        let path = file.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
    fs::set_permissions(store.path(), fs::Permissions::from_mode(0o644)).unwrap();
    drop(store);
    assert_eq!(mode(Sqlite::open(&folder).unwrap().path()), 0o600);
}

#[test]
fn a_file_of_a_newer_toolway_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let store = Sqlite::open(folder.path()).unwrap();
    let newer = connect(store.path()).unwrap();
    newer
        .pragma_update(None, "user_version", SCHEMA + 1)
        .unwrap();
    let error = refused(folder.path());
    assert!(error.contains("newer toolway (schema 3;"), "{error}");
}

#[test]
fn a_damaged_file_is_named_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(FILE);
    fs::write(
        &file,
        "this is no database at all, but a text of some length",
    )
    .unwrap();
    let error = refused(folder.path());
    assert!(error.contains("is damaged"), "{error}");
    assert!(fs::read(&file).unwrap().starts_with(b"this is"));

    fs::remove_file(&file).unwrap();
    let mut connection = {
        drop(Sqlite::open(folder.path()).unwrap());
        connect(&file).unwrap()
    };
    let turns = (0..20).map(|n| turn(1, 7, &[&format!("call {n}")], 4096));
    park_all(&mut connection, turns.collect()).unwrap();
    drop(connection);
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 8192].fill(0xee);
    fs::write(&file, bytes).unwrap();
    let error = refused(folder.path());
    assert!(error.contains("is damaged"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_pipe_in_place_of_the_file_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let mode = nix::sys::stat::Mode::S_IRWXU;
    nix::unistd::mkfifo(&folder.path().join(FILE), mode).unwrap();
    let error = refused(folder.path());
    assert!(error.contains("no regular file"), "{error}");
}

#[tokio::test]
async fn turns_of_other_questions_are_not_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let store = Sqlite::open(folder.path()).unwrap();
    let big = turn(1, 8, &["a"], 64 << 10);
    park(&store, big).await;
    let found = find(&store, 1, &keys(&["a"]), &mut |_| false).await;
    assert_eq!(found.unwrap().len(), 0);
}

#[tokio::test]
async fn a_file_that_another_process_has_locked_is_an_error_and_no_wait_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let store = Sqlite::open(folder.path()).unwrap();
    let other = connect(store.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = store
        .keep(&Arc::new(turn(1, 7, &["a"], 0).into()))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("locked"), "{error}");
    let error = refused(folder.path());
    assert!(error.contains("locked by another process"), "{error}");
    other.execute_batch("COMMIT").unwrap();
    park(&store, turn(1, 7, &["a"], 0)).await;
}

#[test]
fn a_full_disk_keeps_what_was_there_and_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let store = Sqlite::open(folder.path()).unwrap();
    let mut connection = connect(store.path()).unwrap();
    park_all(&mut connection, vec![turn(1, 7, &["a"], 0)]).unwrap();
    let pages: i64 = connection
        .pragma_query_value(None, "page_count", |row| row.get(0))
        .unwrap();
    connection
        .pragma_update(None, "max_page_count", pages)
        .unwrap();
    let error = park_all(&mut connection, vec![turn(1, 8, &["b"], 64 << 10)]).unwrap_err();
    assert!(error.to_string().contains("full"), "{error}");
    let keys = [key("a", 7), key("b", 8)];
    let keys = serde_json::to_string(&keys).unwrap();
    let rows = locate(&connection, EntryKind::Turn, 1, &keys).unwrap();
    assert_eq!(rows.len(), 1);
}

#[tokio::test]
async fn turns_of_an_older_toolway_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let parked = serde_json::to_string(&*turn(1, 7, &["a"], 0).parked).unwrap();
    let older = connect(&folder.path().join(FILE)).unwrap();
    older.execute_batch(MIGRATIONS[0]).unwrap();
    older.pragma_update(None, "user_version", 1).unwrap();
    for (row, question) in [(1, 7), (2, -1)] {
        older
            .execute(
                "INSERT INTO turns VALUES (?1, 1, ?2, ?3, 10, ?4)",
                params![row, question, now() + 100, parked],
            )
            .unwrap();
        let call = "INSERT INTO calls VALUES (1, 'a b', ?1)";
        older.execute(call, [row]).unwrap();
    }
    let store = Sqlite::open(folder.path()).unwrap();
    assert_eq!(questions(&store, 1, "a b").await, [u64::MAX, 7]);
}
