//! Answers as the outside gives them on its worst days: read from a socket, byte for byte.

use std::net::SocketAddr;
use std::time::Duration;

use kernel::Trust;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::house::House;

/// A server that answers every connection with these bytes, then does something bad.
async fn answering(answer: Vec<u8>, then: Then) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            tokio::spawn(answer_one(socket, answer.clone(), then));
        }
    });
    at
}

#[derive(Clone, Copy)]
enum Then {
    Close,
    Reset,
    Hang,
    Drip,
    /// As fast as it is taken.
    Flood,
    /// Heads without end.
    Heads,
}

async fn answer_one(mut socket: TcpStream, answer: Vec<u8>, then: Then) {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if socket.read_buf(&mut request).await.unwrap_or(0) == 0 {
            return;
        }
    }
    // The other side may have given up.
    let _ = socket.write_all(&answer).await;
    match then {
        Then::Close => {}
        Then::Reset => socket.set_zero_linger().unwrap(),
        Then::Hang => std::future::pending().await,
        Then::Flood => while socket.write_all(&[b'x'; 4096]).await.is_ok() {},
        Then::Heads => while socket.write_all(b"X-More: and more\r\n").await.is_ok() {},
        Then::Drip => {
            while socket.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

fn tool(name: &str, at: SocketAddr, more: &str) -> (String, String) {
    let yaml = format!(
        "name: {name}\ndescription: Looks.\neffect: read\nidempotent: true\ntimeout: 60s\nretry: {{ attempts: 1 }}\n\
         input: {{ type: object, additionalProperties: false, properties: {{}} }}\n\
         run: {{ http: {{ method: GET, url: \"http://{at}/x\", allow_private: true{more} }} }}\n"
    );
    (name.to_owned(), yaml)
}

fn packed(length: usize) -> Vec<u8> {
    use std::io::Write as _;
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    packer.write_all(&vec![b'0'; length]).unwrap();
    packer.finish().unwrap()
}

/// What is expected of one answer: how the call ends, with which code, and what the model reads.
struct Drill {
    name: &'static str,
    answer: Vec<u8>,
    then: Then,
    end: (&'static str, &'static str),
    said: &'static str,
}

fn drills() -> Vec<Drill> {
    let drill = |name, answer: &[u8], then, end, said| Drill { name, answer: answer.to_vec(), then, end, said };
    let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n".as_slice();
    let with = |rest: &[u8]| [head, rest].concat();
    let bomb = packed(64 << 20);
    let gzip = format!("Content-Encoding: gzip\r\nContent-Length: {}\r\n\r\n", bomb.len());
    let failed = |code| ("tool.failed", code);
    let done = ("tool.completed", "");
    vec![
        drill(
            "x.later",
            b"HTTP/1.1 429 Too Many\r\nRetry-After: 3600\r\nContent-Length: 4\r\n\r\nbusy",
            Then::Close,
            failed("http_status"),
            "asks to wait 3600 s",
        ),
        drill(
            "x.broken",
            b"HTTP/1.1 500 Oops\r\nContent-Length: 5\r\n\r\nouch!",
            Then::Close,
            failed("http_status"),
            "HTTP 500",
        ),
        drill("x.reset", b"", Then::Reset, failed("connection_broken"), "connection broke"),
        drill("x.silent", b"", Then::Hang, failed("timeout"), "no answer within"),
        drill("x.short", &with(b"Content-Length: 1000\r\n\r\nonly this"), Then::Close, failed("connection_broken"), ""),
        drill("x.long", &with(b"Content-Length: 4\r\n\r\nfour, and more"), Then::Close, done, "four"),
        drill(
            "x.lying",
            &with(b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nfive!"),
            Then::Close,
            failed("connection_broken"),
            "",
        ),
        drill("x.drip", &with(b"\r\n"), Then::Drip, failed("timeout"), "no answer within"),
        drill("x.flood", &with(b"\r\n"), Then::Flood, done, "there was more than is read"),
        drill("x.heads", &with(b""), Then::Heads, failed("connection_broken"), ""),
        drill(
            "x.round",
            b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n",
            Then::Close,
            failed("redirect_refused"),
            "",
        ),
        drill("x.bomb", &with(&[gzip.as_bytes(), &bomb].concat()), Then::Close, done, "there was more than is read"),
        drill("x.header", &with(b"X-Odd: \xff\xfe\xc3\r\nContent-Length: 2\r\n\r\nok"), Then::Close, done, "ok"),
        drill(
            "x.type",
            b"HTTP/1.1 200 OK\r\nContent-Type: \xff\xfe\r\nContent-Length: 2\r\n\r\nok",
            Then::Close,
            done,
            "ok",
        ),
        drill(
            "x.away",
            b"HTTP/1.1 302 Found\r\nLocation: http://\xff.example/\r\n\r\n",
            Then::Close,
            failed("redirect_refused"),
            "",
        ),
        drill(
            "x.inward",
            b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/keys\r\n\r\n",
            Then::Close,
            failed("redirect_refused"),
            "",
        ),
        drill("x.noise", b"\x00\x01\x02 this is no HTTP at all\r\n\r\n", Then::Close, failed("connection_broken"), ""),
        drill(
            "x.chunk",
            &with(b"Transfer-Encoding: chunked\r\n\r\nZZZ\r\nno\r\n"),
            Then::Close,
            failed("connection_broken"),
            "",
        ),
        drill(
            "x.binary",
            b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: 4\r\n\r\n\x89PNG",
            Then::Close,
            done,
            "[4 bytes of image/png",
        ),
        drill("x.nul", &with(b"Content-Length: 5\r\n\r\na\0b\xffc"), Then::Close, done, "a\u{FFFD}b\u{FFFD}c"),
    ]
}

#[tokio::test]
async fn whatever_a_server_answers_the_call_ends_in_time_and_says_how() {
    let drills = drills();
    let mut tools = Vec::new();
    for drill in &drills {
        let at = answering(drill.answer.clone(), drill.then).await;
        let (name, yaml) = tool(drill.name, at, "");
        // Nothing but their time-out ends these.
        let waits = matches!(drill.then, Then::Hang | Then::Drip);
        tools.push((name, if waits { yaml.replace("timeout: 60s", "timeout: 3s") } else { yaml }));
    }
    let declared: Vec<_> = tools.iter().map(|(name, yaml)| (name.as_str(), yaml.clone())).collect();
    let house = House::new(&[], &declared, "{}").await;
    let executor = house.executor();
    let calls: Vec<_> = drills.iter().map(|drill| house.call(drill.name, json!({}), Trust::Operator)).collect();
    let ids: Vec<_> = calls.iter().map(|call| call.call_id).collect();
    let run = house.run(calls).await;
    for (drill, id) in drills.iter().zip(ids) {
        let (end, code, block) = house.end_of(run, id).await;
        assert_eq!((end, code.as_str()), drill.end, "{}: {}", drill.name, block.text);
        assert!(block.text.contains(drill.said), "{}: {}", drill.name, block.text);
        assert!(block.text.len() < 20_000, "{}", drill.name);
    }
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_redirect_that_is_allowed_leads_only_outwards_and_takes_nothing_along() {
    // To another place of this machine: followed by nobody, whatever the tool's file says.
    let inner = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret".to_vec(), Then::Close).await;
    let location = format!("HTTP/1.1 302 Found\r\nLocation: http://{inner}/\r\n\r\n");
    let outer = answering(location.into_bytes(), Then::Close).await;
    let (name, yaml) = tool("x.any", outer, ", redirects: any");
    let house = House::new(&[], &[(name.as_str(), yaml)], "{}").await;
    let executor = house.executor();
    let (run, id) = house.run_one("x.any", json!({}), Trust::Operator).await;
    let (end, code, block) = house.end_of(run, id).await;
    assert_eq!((end, code.as_str()), ("tool.failed", "private_address"), "{}", block.text);
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_body_is_read_up_to_what_its_tool_says() {
    let body = "x".repeat(5000);
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n{body}");
    let at = answering(answer.into_bytes(), Then::Close).await;
    let (name, yaml) = tool("x.some", at, ", max_bytes: 1000");
    let house = House::new(&[], &[(name.as_str(), yaml)], "{}").await;
    let executor = house.executor();
    let (run, id) = house.run_one("x.some", json!({}), Trust::Operator).await;
    let (end, _, block) = house.end_of(run, id).await;
    assert_eq!((end, block.text.matches('x').count()), ("tool.completed", 1000));
    assert!(block.text.contains("there was more than is read"));
    house.close(vec![executor]).await;
}
