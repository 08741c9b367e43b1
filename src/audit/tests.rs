use super::*;
use toolway_core::audit::AuditFilter;

fn newest() -> AuditQuery {
    AuditQuery {
        filter: AuditFilter::default(),
        cursor: None,
        limit: 10_000,
    }
}

fn record(tool: &str) -> AuditRecord {
    AuditRecord {
        tool: Some(tool.to_owned()),
        ..AuditRecord::default()
    }
}

async fn tools(audit: &Audit) -> Vec<String> {
    let page = audit.page(newest()).await.unwrap();
    let tools = page.records.into_iter().map(|it| it.tool.unwrap());
    tools.collect()
}

#[tokio::test]
async fn records_are_kept_when_toolway_starts_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = DataDir::Folder(folder.path().to_owned());
    for tool in ["one", "two"] {
        let audit = Audit::open(&Config::default(), &store).unwrap();
        audit.record(|| record(tool));
        audit.flush().await;
    }
    let audit = Audit::open(&Config::default(), &store).unwrap();
    assert_eq!(tools(&audit).await, ["two", "one"]);
}

#[tokio::test]
async fn what_finds_no_room_is_counted_and_the_count_is_a_record() {
    let audit = Audit::open(&Config::default(), &DataDir::Memory).unwrap();
    // The thread gathers meanwhile, so the queue fills.
    let sent = QUEUE as u64 * 3;
    for _ in 0..sent {
        audit.record(|| record("one"));
    }
    let dropped = audit.health().dropped;
    assert!(dropped > 0);
    // A record about the loss comes with the next one that is written.
    audit.flush().await;
    let page = audit.page(newest()).await.unwrap();
    let (lost, kept): (Vec<_>, Vec<_>) = page
        .records
        .iter()
        .partition(|it| it.event == AuditEvent::Dropped);
    let told: u64 = lost.iter().filter_map(|it| it.dropped).sum();
    assert_eq!(told, dropped);
    assert_eq!(kept.len() as u64 + dropped, sent);
}

#[tokio::test]
async fn who_follows_hears_of_each_record_with_its_id_and_time() {
    let audit = Audit::open(&Config::default(), &DataDir::Memory).unwrap();
    let mut following = audit.follow().unwrap();
    audit.record(|| record("one"));
    audit.record(|| record("two"));
    let (one, two) = (
        following.recv().await.unwrap(),
        following.recv().await.unwrap(),
    );
    assert_eq!(one.tool.as_deref(), Some("one"));
    assert_ne!(one.id, two.id);
    assert!(one.time <= two.time && one.time.ends_with('Z'));
}

#[cfg(unix)]
#[tokio::test]
async fn a_folder_that_goes_away_costs_records_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let store = DataDir::Folder(folder.path().to_owned());
    let audit = Audit::open(&Config::default(), &store).unwrap();
    std::fs::remove_dir_all(folder.path().join("audit")).unwrap();
    std::fs::write(folder.path().join("audit"), "no folder").unwrap();
    audit.record(|| record("lost"));
    audit.flush().await;
    assert_eq!(audit.health().state, "degraded");
    assert_eq!(audit.health().dropped, 1);
    std::fs::remove_file(folder.path().join("audit")).unwrap();
    audit.record(|| record("kept"));
    audit.flush().await;
    assert_eq!(audit.health().state, "ready");
    let page = audit.page(newest()).await.unwrap();
    assert_eq!(page.records[0].dropped, Some(1));
    assert_eq!(page.records[1].tool.as_deref(), Some("kept"));
}

#[tokio::test]
async fn an_audit_that_is_off_keeps_nothing() {
    let config = Config {
        enabled: false,
        ..Config::default()
    };
    let audit = Audit::open(&config, &DataDir::Memory).unwrap();
    audit.record(|| record("one"));
    assert_eq!(audit.health().state, "off");
    assert!(tools(&audit).await.is_empty());
}
