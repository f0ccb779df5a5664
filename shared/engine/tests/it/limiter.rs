//! Limits that instances share.

use std::time::Duration;

use engine::testing::TestStack;
use engine::{Admission, BreakerOptions, Rate};
use kernel::Role;

/// Longer than a test can be held up: a target that is left alone stays so while it looks.
const BREAKER: BreakerOptions = BreakerOptions {
    threshold: 3,
    first: Duration::from_secs(60),
    most: Duration::from_secs(600),
    probe: Duration::from_secs(60),
};
/// For a test that waits until the target may be tried again.
const SHORT: BreakerOptions = BreakerOptions { first: Duration::from_secs(1), ..BREAKER };

fn rate(name: &str, count: u32) -> Rate {
    Rate { name: name.to_owned(), count, per: Duration::from_secs(3600) }
}

#[tokio::test]
async fn a_rate_is_shared_and_what_one_refuses_no_other_counts() {
    let stack = TestStack::new().await.unwrap();
    let one = stack.engine(Role::ToolExecutor).await.unwrap().limiter();
    let two = stack.engine(Role::ToolExecutor).await.unwrap().limiter();
    let admitted = Admission::Admitted { probe: false };
    for limiter in [&one, &two] {
        let admission = limiter.admit("t", BREAKER, &[rate("tool/a", 2), rate("tenant/x", 3)]).await.unwrap();
        assert_eq!(admission, admitted);
    }
    let third = two.admit("t", BREAKER, &[rate("tenant/x", 3), rate("tool/a", 2)]).await.unwrap();
    let Admission::Limited { wait, rate: by } = third else { panic!("{third:?}") };
    assert_eq!(by, "tool/a");
    assert!(wait > Duration::from_secs(1700) && wait <= Duration::from_secs(1800), "{wait:?}");
    // The tenant has one left, since the refused one was not counted.
    assert_eq!(one.admit("t", BREAKER, &[rate("tenant/x", 3)]).await.unwrap(), admitted);
    assert!(matches!(two.admit("t", BREAKER, &[rate("tenant/x", 3)]).await.unwrap(), Admission::Limited { .. }));
    stack.close().await.unwrap();
}

#[tokio::test]
async fn a_target_that_fails_is_left_alone_and_tried_by_one() {
    let stack = TestStack::new().await.unwrap();
    let limiter = stack.engine(Role::ToolExecutor).await.unwrap().limiter();
    let ask = async |target: &'static str| limiter.admit(target, BREAKER, &[]).await.unwrap();
    assert_eq!(limiter.failed("host:443", BREAKER).await.unwrap(), None);
    limiter.succeeded("host:443").await.unwrap();
    for _ in 0..2 {
        assert_eq!(limiter.failed("host:443", BREAKER).await.unwrap(), None, "a success in between is a new count");
    }
    assert_eq!(limiter.failed("host:443", BREAKER).await.unwrap(), Some(BREAKER.first));
    assert!(matches!(ask("host:443").await, Admission::Open { wait } if wait <= BREAKER.first));
    assert_eq!(ask("other:443").await, Admission::Admitted { probe: false });

    for failure in 1..=SHORT.threshold {
        let opened = (failure == SHORT.threshold).then_some(SHORT.first);
        assert_eq!(limiter.failed("again:443", SHORT).await.unwrap(), opened);
    }
    let probing = loop {
        match ask("again:443").await {
            Admission::Open { wait } => tokio::time::sleep(wait).await,
            admission => break admission,
        }
    };
    assert_eq!(probing, Admission::Admitted { probe: true });
    assert!(matches!(ask("again:443").await, Admission::Open { .. }), "one at a time");
    assert_eq!(limiter.failed("again:443", SHORT).await.unwrap(), Some(SHORT.first * 2), "longer each time");
    limiter.succeeded("again:443").await.unwrap();
    assert_eq!(ask("again:443").await, Admission::Admitted { probe: false });
    let never = BreakerOptions { threshold: 0, ..BREAKER };
    for _ in 0..5 {
        assert_eq!(limiter.failed("host:443", never).await.unwrap(), None);
    }
    stack.close().await.unwrap();
}

#[tokio::test]
async fn what_is_taken_of_a_minute_is_shared_and_owed() {
    let stack = TestStack::new().await.unwrap();
    let one = stack.engine(Role::Planner).await.unwrap().limiter();
    let two = stack.engine(Role::Planner).await.unwrap().limiter();
    assert_eq!(one.debt("tokens/openai", 1000).await.unwrap(), Duration::ZERO);
    assert_eq!(
        one.charge("tokens/openai", 1000, 800).await.unwrap(),
        Duration::ZERO,
        "a minute's worth may go at once"
    );
    let owed = two.charge("tokens/openai", 1000, 700).await.unwrap();
    // 1,500 of 1,000 a minute: 500 too many, which is half a minute.
    assert!(owed > Duration::ZERO && owed <= Duration::from_secs(30), "{owed:?}");
    assert!(one.debt("tokens/openai", 1000).await.unwrap() > Duration::ZERO, "whoever asks is told");
    assert_eq!(one.debt("tokens/other", 1000).await.unwrap(), Duration::ZERO);
    stack.close().await.unwrap();
}
