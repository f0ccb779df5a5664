use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::*;

const O200K: Counter = Counter::Own(Encoding::O200k);
const CL100K: Counter = Counter::Own(Encoding::Cl100k);

#[test]
fn by_length_it_is_a_quarter_of_the_bytes() {
    let counter = Counter::ESTIMATE;
    assert_eq!(counter.count(""), 0);
    assert_eq!(counter.count("a"), 1);
    assert_eq!(counter.count("abcde"), 2);
    assert_eq!(counter.bytes(2), 8);
    assert_eq!(counter.count_all(&["a", "b", "cde"]), 2, "all of it, not each");
    assert_eq!(Counter::ByLength(500).count("abcde"), 3);
    assert_eq!(Counter::ByLength(500).bytes(3), 6);
    assert_eq!(Counter::ByLength(0).bytes(1), 1000, "no density divides by nothing");
}

#[test]
fn a_tokenizer_is_known_by_the_models_name() {
    for (model, counter) in [
        ("openai:gpt-5-mini", O200K),
        ("openai:gpt-5.1", O200K),
        ("openai-chat:gpt-4o-2024-08-06", O200K),
        ("openai:gpt-4.1", O200K),
        ("openai:o3", O200K),
        ("openai:o4-mini", O200K),
        ("openai:gpt-4", CL100K),
        ("openai:gpt-4-turbo", CL100K),
        ("openai:gpt-3.5-turbo", CL100K),
        ("openrouter:openai/gpt-5-mini", O200K),
        ("groq:openai/gpt-oss-120b", O200K),
        ("ollama:gpt-oss:20b", O200K),
        ("openai:ft:gpt-4o-mini:mine::1", O200K),
        ("record:tape/openai:gpt-5", O200K),
        ("gpt-5", O200K),
    ] {
        assert_eq!(Counter::of(model), counter, "{model}");
    }
    for model in [
        "anthropic:claude-haiku-4-5",
        "gemini:gemini-2.5-pro",
        "openai:gpt-6",
        "openai:gpt-4.7",
        "openai:o30",
        "mine:o3x",
        "scripted:gpt-5",
        "replay:gpt-5",
        "record:gpt-5/anthropic:claude-haiku-4-5",
        "",
    ] {
        assert_eq!(Counter::of(model), Counter::ESTIMATE, "{model}");
    }
}

/// What OpenAI's own code counts with its own tables, as `tiktoken-rs` 0.12 carries both.
const GOLDEN: [(&str, u64, u64); 12] = [
    ("hello world", 2, 2),
    ("tiktoken is great!", 6, 6),
    ("antidisestablishmentarianism", 6, 6),
    ("2 + 2 = 4", 7, 7),
    ("お誕生日おめでとう", 8, 9),
    ("Сборка упала на третьем шаге.", 11, 16),
    ("error[E0382]: borrow of moved value: `state`\n  --> src/main.rs:12:9\n", 23, 23),
    (r#"{"call_id":"0192f3","tool":"shell.run","arguments":{"command":"cargo test --all"}}"#, 23, 23),
    ("👩\u{200d}👩\u{200d}👧\u{200d}👦 🎉🎉", 15, 24),
    ("\t\t  \n\n  x  ", 5, 5),
    // Words that mean something to a model are words in a text.
    ("<|endoftext|>", 7, 7),
    ("don't WON'T I'll 12345678", 8, 10),
];

#[test]
fn it_counts_as_openai_does() {
    for (text, o200k, cl100k) in GOLDEN {
        assert_eq!((O200K.count(text), CL100K.count(text)), (o200k, cl100k), "{text:?}");
    }
    assert_eq!(Counter::ESTIMATE.name(), None);
    assert_eq!((O200K.name(), CL100K.name()), (Some("o200k_base"), Some("cl100k_base")));
}

#[test]
fn text_that_is_dear_is_counted_as_such() {
    let russian = "Сборка упала на третьем шаге. ".repeat(40);
    let noise: String = (0..4000_u32)
        .map(|n| char::from(b'!' + u8::try_from(n.wrapping_mul(2_654_435_761) >> 25).unwrap() % 90))
        .collect();
    assert!(O200K.count(&noise) > Counter::ESTIMATE.count(&noise) * 3 / 2, "{}", O200K.count(&noise));
    assert!(O200K.count(&russian) < Counter::ESTIMATE.count(&russian), "{}", O200K.count(&russian));
}

#[test]
fn a_long_text_is_counted_in_pieces_and_loses_nothing_by_it() {
    let words: String = (0..12_000).map(|n| format!("line {n} of the output\n")).collect();
    let (long, short) = (
        O200K.count(&words[..200_000]),
        words[..200_000].split_inclusive(' ').map(|word| O200K.count(word)).sum::<u64>(),
    );
    assert!(long <= short, "joined it takes no more than word by word");
    let whole = Encoding::O200k.table().unwrap().bpe.count(&words[..200_000]) as u64;
    assert!(long.abs_diff(whole) <= 2, "{long} in pieces, {whole} at once");
    assert_eq!(O200K.count(&words[..200_000]), long, "and the same the second time");
    let parts: String = pieces(&words).collect();
    assert_eq!(parts, words);
}

/// Byte pairs over one endless word are what makes tokenizers hang or run out of stack.
#[test]
fn what_no_tokenizer_likes_is_counted_all_the_same() {
    const MIB: usize = 1 << 20;
    for text in [
        "a".repeat(MIB),
        "\u{1F600}".repeat(MIB / 4),
        " ".repeat(MIB),
        "\n".repeat(MIB),
        "^".repeat(MIB),
        "ab".repeat(MIB / 2),
        "\u{301}".repeat(MIB / 2),
        (0..MIB).map(|n| char::from(b'a' + u8::try_from(n.wrapping_mul(2_654_435_761) >> 24 & 0xF).unwrap())).collect(),
    ] {
        for counter in [O200K, CL100K] {
            let count = counter.count(&text);
            let begins: String = text.chars().take(4).collect();
            assert!(count > 1000 && count <= text.len() as u64, "{count} tokens of {begins:?}");
        }
    }
}

#[test]
fn what_lies_beyond_is_as_dense_as_what_was_counted() {
    let text = "word ".repeat(400_000);
    let (count, bytes) = (O200K.count(&text), text.len() as u64);
    assert!(count.abs_diff(bytes / 5) < bytes / 100, "{count} of {bytes} bytes");
    assert_eq!(scaled(u64::MAX, usize::MAX, 1), u64::MAX);
}

fn prompt(bytes: usize) -> Prompt {
    let tool = ToolDecl { name: "t".to_owned(), description: "d".to_owned(), schema: json!({"type": "object"}) };
    Prompt {
        system: "s".repeat(bytes / 2),
        user: "u".repeat(bytes - bytes / 2),
        tools: Arc::new([tool]),
        tool_tokens: 0,
        max_output_tokens: 0,
        run_id: kernel::RunId::mint(),
        turn: 1,
        ask: 0,
    }
}

#[test]
fn what_a_provider_counted_is_believed_within_reason() {
    let densities = Densities::default();
    let claude = "anthropic:claude-haiku-4-5";
    assert_eq!(densities.counter("agent", claude), Counter::ESTIMATE);
    densities.learn("agent", claude, &prompt(20_000), 8_000);
    let Counter::ByLength(first) = densities.counter("agent", claude) else { panic!("it is not public") };
    assert!((390..=400).contains(&first), "{first}: the tools count, too");
    assert_eq!(densities.counter("other", claude), Counter::ESTIMATE, "another agent speaks otherwise");
    densities.learn("agent", claude, &prompt(20_000), 4_000);
    let Counter::ByLength(second) = densities.counter("agent", claude) else { panic!("it is not public") };
    assert!((330..first).contains(&second), "{second}: one count moves it by a quarter");
    for (tokens, density) in [(u64::MAX, BELIEVED.1), (1, BELIEVED.0)] {
        let densities = Densities::default();
        densities.learn("agent", claude, &prompt(20_000), tokens);
        assert_eq!(densities.counter("agent", claude), Counter::ByLength(density));
    }
}

#[test]
fn nothing_is_learned_where_it_is_known_or_must_not_change() {
    let densities = Densities::default();
    for (model, bytes, tokens) in [
        ("openai:gpt-5", 20_000, 9_000),
        ("scripted:demo", 20_000, 9_000),
        ("replay:tape", 20_000, 9_000),
        ("anthropic:claude-haiku-4-5", 100, 90),
        ("anthropic:claude-haiku-4-5", 20_000, 0),
    ] {
        densities.learn("agent", model, &prompt(bytes), tokens);
        assert_eq!(densities.counter("agent", model), Counter::of(model), "{model}");
    }
}

#[test]
fn what_is_remembered_has_a_bound() {
    let densities = Densities::default();
    for number in 0..2 * REMEMBERED + 1 {
        densities.learn(&number.to_string(), "anthropic:m", &prompt(TELLING_BYTES), 2000);
    }
    assert!(densities.known().len() <= REMEMBERED);
    let table = Encoding::Cl100k.table().unwrap();
    for number in 0..LONG_TEXTS + 10 {
        table.count_long(&number.to_string());
    }
    assert!(table.long.lock().unwrap().len() <= LONG_TEXTS);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever the text is, it is counted, and never as more tokens than it has bytes.
    #[test]
    fn any_text_is_counted(text in "(?s).{0,300}", times in 1_usize..200) {
        let text = text.repeat(times);
        for counter in [O200K, CL100K] {
            let count = counter.count(&text);
            prop_assert!(count <= text.len() as u64);
            prop_assert_eq!(count == 0, text.is_empty());
        }
        prop_assert_eq!(pieces(&text).collect::<String>(), text);
    }
}
