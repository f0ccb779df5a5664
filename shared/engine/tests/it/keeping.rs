//! What services keep beside runs: idempotency keys, observer checkpoints, archived segments.

use engine::{Claim, ObserverCheckpoint, Segment, testing::TestStack};
use kernel::{CallId, Role, RunId, TenantId};
use serde_json::value::RawValue;

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_claims_a_key_and_the_others_get_its_run() {
    let stack = TestStack::new().await.unwrap();
    let keys = stack.engine(Role::Ingress).await.unwrap().idempotency();
    let (tenant, other) = (TenantId::default(), "other".parse::<TenantId>().unwrap());
    let claims = (0..20).map(|_| {
        let (keys, tenant, run) = (keys.clone(), tenant.clone(), RunId::mint());
        async move { (run, keys.claim(&tenant, "k", "digest", run).await.unwrap()) }
    });
    let all = futures::future::join_all(claims).await;
    let claimed: Vec<_> = all.iter().filter(|(_, claim)| *claim == Claim::Claimed).map(|(run, _)| *run).collect();
    assert_eq!(claimed.len(), 1);
    let replays = all.iter().filter(|(_, claim)| *claim == Claim::Replay(claimed[0])).count();
    assert_eq!(replays, 19);
    assert_eq!(keys.claim(&tenant, "k", "another digest", RunId::mint()).await.unwrap(), Claim::Mismatch);
    assert_eq!(keys.claim(&other, "k", "digest", RunId::mint()).await.unwrap(), Claim::Claimed);
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_never_goes_back() {
    let stack = TestStack::new().await.unwrap();
    let checkpoints = stack.engine(Role::Observer).await.unwrap().checkpoints();
    let (run, call, other) = (RunId::mint(), CallId::mint(), CallId::mint());
    let at = |call: CallId, stream_seq: u64, state: &str| ObserverCheckpoint {
        call_id: call,
        run_id: run,
        stream_seq,
        state: RawValue::from_string(state.to_owned()).unwrap(),
    };
    let read = |calls: Vec<CallId>| {
        let checkpoints = checkpoints.clone();
        async move { checkpoints.load(&calls).await.unwrap() }
    };
    checkpoints.save(vec![at(call, 7, r#"{"lines":7}"#), at(call, 9, r#"{"lines":9}"#)]).await.unwrap();
    checkpoints.save(vec![at(call, 8, r#"{"lines":8}"#), at(other, 1, "[]")]).await.unwrap();
    checkpoints.save(Vec::new()).await.unwrap();
    let kept = read(vec![call]).await;
    assert_eq!((kept[0].stream_seq, kept[0].state.get()), (9, r#"{"lines":9}"#));
    assert_eq!(read(vec![call, other, CallId::mint()]).await.len(), 2);
    checkpoints.remove(&[call]).await.unwrap();
    assert_eq!(read(vec![call, other]).await.len(), 1);
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn segments_are_found_by_the_bytes_they_hold() {
    let stack = TestStack::new().await.unwrap();
    let segments = stack.engine(Role::Artifact).await.unwrap().segments();
    let (tenant, run, call) = (TenantId::default(), RunId::mint(), CallId::mint());
    let segment = |from: u64, to: u64| Segment {
        call_id: call,
        run_id: run,
        tenant: tenant.clone(),
        from_offset: from,
        to_offset: to,
        from_line: from / 10,
        to_line: to / 10,
        object_key: format!("segments/{from}-{to}"),
        stored_at: None,
    };
    for (from, to) in [(0, 100), (100, 200), (200, 250), (200, 300), (200, 260)] {
        segments.insert(&segment(from, to)).await.unwrap();
    }
    let keys = |found: Vec<Segment>| found.into_iter().map(|segment| segment.object_key).collect::<Vec<_>>();
    let all = segments.list(&tenant, call, 0, u64::MAX).await.unwrap();
    assert!(all.iter().all(|segment| segment.stored_at.is_some()));
    assert_eq!(keys(all), ["segments/0-100", "segments/100-200", "segments/200-300"]);
    assert_eq!(keys(segments.list(&tenant, call, 99, 101).await.unwrap()), ["segments/0-100", "segments/100-200"]);
    assert_eq!(keys(segments.list(&tenant, call, 100, 200).await.unwrap()), ["segments/100-200"]);
    assert!(segments.list(&"other".parse().unwrap(), call, 0, 300).await.unwrap().is_empty());
    stack.close().await.unwrap();
}
