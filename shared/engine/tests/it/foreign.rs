//! Questions to a database that is not ours, against a real one: they read, and can do nothing else.

use std::time::Duration;

use engine::testing::TestStack;
use engine::{ForeignError, ForeignQuestion, ForeignRows, ask_foreign};
use serde_json::{Value, json};

struct Shop {
    stack: TestStack,
    url: String,
}

impl Shop {
    async fn new() -> Self {
        let stack = TestStack::new().await.unwrap();
        let tables = "create table orders (id bigint primary key, request text, state text, price numeric, at timestamptz);
                      insert into orders values (1, 'req-1', 'shipped', 9.50, '2026-01-02 03:04:05Z'), (2, 'req-2', null, 7, null);
                      create sequence numbers;
                      create function change() returns text language sql as 'update orders set state = ''changed'' returning state'";
        stack.sql(tables).await.unwrap();
        let url = stack.database_url();
        Self { stack, url }
    }

    async fn ask(&self, statement: &str, parameters: &[Option<&str>]) -> Result<ForeignRows, ForeignError> {
        self.ask_with(statement, parameters, |_| ()).await
    }

    async fn ask_with(
        &self,
        statement: &str,
        parameters: &[Option<&str>],
        change: impl FnOnce(&mut ForeignQuestion<'_>),
    ) -> Result<ForeignRows, ForeignError> {
        let parameters: Vec<_> = parameters.iter().map(|parameter| parameter.map(str::to_owned)).collect();
        let mut question = ForeignQuestion {
            url: &self.url,
            statement,
            parameters: &parameters,
            rows: 10,
            bytes: 1000,
            within: Duration::from_secs(30),
        };
        change(&mut question);
        ask_foreign(question).await
    }
}

fn values(answer: &ForeignRows) -> Vec<Value> {
    answer.rows.iter().map(|row| serde_json::from_str(row.get()).unwrap()).collect()
}

#[tokio::test]
async fn rows_come_as_json_and_a_parameter_is_never_more_than_one() {
    let shop = Shop::new().await;
    let statement = "select id, state, price from orders where request = $1; ";
    let answer = shop.ask(statement, &[Some("req-1")]).await.unwrap();
    assert_eq!(values(&answer), [json!({"id": 1, "state": "shipped", "price": 9.5})]);
    assert!(!answer.more);
    for hostile in ["' or true --", "req-1'; drop table orders; --", "$1", "req-1\\", "\\! id", ":'x'"] {
        assert!(shop.ask(statement, &[Some(hostile)]).await.unwrap().rows.is_empty(), "{hostile}");
    }
    let by_number = "select state from orders where id = $1::bigint -- by its number";
    assert_eq!(values(&shop.ask(by_number, &[Some("2")]).await.unwrap()), [json!({"state": null})]);
    let error = shop.ask(by_number, &[Some("2 or true")]).await.unwrap_err();
    assert!(matches!(error, ForeignError::Refused(_)) && error.holds_data(), "{error}");
    let none = shop.ask("select $1 is null as none", &[None]).await.unwrap();
    assert_eq!(values(&none), [json!({"none": true})]);
    let any_name = shop.ask("select 1 as asked, 2 as row", &[]).await.unwrap();
    assert_eq!(values(&any_name), [json!({"asked": 1, "row": 2})]);
    shop.stack.close().await.unwrap();
}

#[tokio::test]
async fn a_question_changes_nothing_whatever_it_says() {
    let shop = Shop::new().await;
    for statement in [
        "delete from orders",
        "delete from orders returning id",
        "with gone as (delete from orders returning id) select * from gone",
        "select 1) as a; delete from orders; select (1",
        "select 1; delete from orders",
        "select 1) as esc_row_; commit; begin; delete from orders; --",
        "select * from orders for update",
        "select change()",
        "select nextval('numbers')",
        "select set_config('transaction_read_only', 'off', true) from orders",
        "set transaction read write",
        "copy orders to stdout",
        "copy (select 1) to program 'true'",
        "do $$ begin delete from orders; commit; end $$",
        "call nothing()",
        "",
    ] {
        let error = shop.ask(statement, &[]).await.unwrap_err();
        assert!(matches!(error, ForeignError::Refused(_)), "{statement}: {error:?}");
    }
    let left = shop.ask("select count(*) as orders, min(state) as state from orders", &[]).await.unwrap();
    assert_eq!(values(&left), [json!({"orders": 2, "state": "shipped"})]);
    let next = shop.ask("select last_value, is_called from numbers", &[]).await.unwrap();
    assert_eq!(values(&next), [json!({"last_value": 1, "is_called": false})]);
    shop.stack.close().await.unwrap();
}

#[tokio::test]
async fn an_answer_is_bounded_and_so_is_the_wait_for_it() {
    let shop = Shop::new().await;
    let many = "select n from generate_series(1, 1000000) n";
    let few = shop.ask(many, &[]).await.unwrap();
    assert_eq!((few.rows.len(), few.more), (10, true));
    let short = shop.ask_with(many, &[], |question| (question.rows, question.bytes) = (1000, 100)).await.unwrap();
    assert!(short.more && short.rows.iter().map(|row| row.get().len()).sum::<usize>() <= 100, "{short:?}");
    let error = shop.ask("select repeat('x', 5000000) as x", &[]).await.unwrap_err();
    assert!(matches!(error, ForeignError::TooLarge(1000)), "{error}");
    let within = Duration::from_secs(1);
    let slow = shop.ask_with("select pg_sleep(600)", &[], |question| question.within = within).await.unwrap_err();
    assert!(matches!(slow, ForeignError::TimedOut(_)) && slow.is_transient(), "{slow:?}");
    // Nobody listens on the port of "discard".
    let question = ForeignQuestion {
        url: "postgres://u:hunter22@127.0.0.1:9/none",
        statement: "select 1",
        parameters: &[],
        rows: 1,
        bytes: 10,
        within: Duration::from_secs(30),
    };
    let error = ask_foreign(question).await.unwrap_err();
    assert!(matches!(error, ForeignError::Unreachable(_)) && !error.to_string().contains("hunter22"), "{error:?}");
    shop.stack.close().await.unwrap();
}
