//! For tests that run a service over real parts, in a system of their own.

use std::net::{Ipv4Addr, SocketAddr};

use engine::testing::{PATIENCE, TestStack};

use crate::config::Common;

/// What the named service needs to find the parts of a system: on a free port, saying little.
#[must_use]
pub fn common(service: &str, stack: &TestStack) -> Common {
    Common {
        nats_url: bus::testing::url().into(),
        database_url: engine::testing::database_url().into(),
        redis_url: engine::testing::redis_url().into(),
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        namespace: stack.bus().namespace().clone(),
        schema: stack.schema().to_owned(),
        log: "warn".to_owned(),
        patience: Some(PATIENCE),
        ..Common::for_service(service)
    }
}
