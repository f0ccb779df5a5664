use std::time::Duration;

use crate::common::System;

#[tokio::test]
async fn old_deliveries_are_forgotten_in_small_batches_and_young_ones_are_not() {
    let system = System::new().await;
    for _ in 0..3 {
        system.create(None).await;
    }
    let retention = system.ingress.retention();
    assert_eq!(retention.prune_inbox(Duration::from_secs(60), 10).await.unwrap(), 0);
    let mut batches = Vec::new();
    for _ in 0..3 {
        batches.push(retention.prune_inbox(Duration::ZERO, 2).await.unwrap());
    }
    assert_eq!(batches, [2, 1, 0]);
    system.close().await;
}
