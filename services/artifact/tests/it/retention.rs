//! What is kept no longer is removed, rows and objects.

use engine::{Segment, ServiceSegment};
use kernel::{CallId, RunId, TenantId, Timestamp};

use crate::common::{World, until};

impl World {
    fn object(&self, key: &str) -> std::path::PathBuf {
        let path = self.folder.path().join(key);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "content").unwrap();
        path
    }

    async fn log_piece(&self, key: &str, days: i64) {
        let at = Timestamp::now().checked_sub(jiff::SignedDuration::from_hours(24 * days)).unwrap();
        let segment = ServiceSegment {
            tenant: TenantId::default(),
            service: "orders".into(),
            from_seq: 1,
            to_seq: 2,
            from_at: at,
            to_at: at,
            records: 2,
            bytes: 7,
            object_key: key.into(),
        };
        self.stack.engine(kernel::Role::Artifact).await.unwrap().services().insert_segment(&segment).await.unwrap();
    }
}

#[tokio::test]
async fn old_logs_and_replaced_pieces_go_and_the_others_stay() {
    let world = World::new().await;
    let engine = world.stack.engine(kernel::Role::Artifact).await.unwrap();
    let [old, young] = ["logs/default/orders/old.zst", "logs/default/orders/young.zst"];
    let [short, long] = ["signals/default/r/c/0-3.zst", "signals/default/r/c/0-9.zst"];
    let paths = [old, young, short, long].map(|key| world.object(key));
    world.log_piece(old, 40).await;
    world.log_piece(young, 20).await;
    let (run_id, call_id) = (RunId::mint(), CallId::mint());
    for (to_offset, key) in [(3, short), (9, long)] {
        let segment = Segment {
            call_id,
            run_id,
            tenant: TenantId::default(),
            from_offset: 0,
            to_offset,
            from_line: 0,
            to_line: 1,
            object_key: key.into(),
            stored_at: None,
        };
        engine.segments().insert(&segment).await.unwrap();
    }
    // One whose object is gone already is no obstacle.
    world.log_piece("logs/default/orders/gone.zst", 40).await;

    let service = world.service().await;
    until("removal", async || engine.segments().abandoned(10).await.unwrap().is_empty() && !paths[0].exists()).await;
    assert_eq!(paths.map(|path| path.exists()), [false, true, false, true]);
    let now = Timestamp::now();
    let left =
        engine.services().segments(&TenantId::default(), "orders", Timestamp::UNIX_EPOCH, now, 10).await.unwrap();
    assert_eq!(left.iter().map(|segment| segment.object_key.as_str()).collect::<Vec<_>>(), [young]);
    service.stop().await;

    // Where logs are kept for ever, nothing goes.
    world.log_piece(old, 400).await;
    let service = world.service_with(|config| config.retain_logs_days = 0).await;
    world.log_piece("logs/default/orders/older.zst", 4000).await;
    service.stop().await;
    let left =
        engine.services().segments(&TenantId::default(), "orders", Timestamp::UNIX_EPOCH, now, 10).await.unwrap();
    assert_eq!(left.len(), 3);
    world.close().await;
}
