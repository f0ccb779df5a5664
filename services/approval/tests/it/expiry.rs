use kernel::event::EventData;

use crate::common::{System, refusal};

#[tokio::test]
async fn no_answer_in_time_is_a_no() {
    let system = System::new().await;
    let (first, second) = (system.approval(|_| {}).await, system.approval(|_| {}).await);
    let asked = system.ask(300).await;
    let later = system.ask(3_600_000).await;
    let denied = system.until("tool.denied", async || system.events(asked.run, "tool.denied").await.pop()).await;
    let EventData::ToolDenied(denied) = &denied.data else { panic!("{denied:?}") };
    assert_eq!(denied.code, "expired");
    assert_eq!(system.events(asked.run, "approval.expired").await.len(), 1, "once, by whichever instance");
    assert_eq!(system.row(&asked).await.state, "expired");
    assert_eq!(system.row(&later).await.state, "open");
    let (code, words) = refusal(system.decide(&asked, |_| {}).await);
    assert_eq!(code, 410);
    assert!(words.contains("expired"), "{words}");
    first.stop().await.unwrap();
    second.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn an_answer_that_comes_too_late_is_refused_before_anything_has_expired() {
    let system = System::new().await;
    let asked = system.ask(1).await;
    // Looks for overdue questions so seldom that none is found.
    let service = system.approval(|config| config.expiry_seconds = 3600).await;
    assert_eq!(refusal(system.decide(&asked, |_| {}).await).0, 410);
    assert_eq!(system.row(&asked).await.state, "open");
    service.stop().await.unwrap();
    system.close().await;
}
