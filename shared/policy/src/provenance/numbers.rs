//! Numbers in texts, exact to six places.

use serde_json::Number;

/// Millionths in one.
const ONE: i128 = 1_000_000;
/// Numbers that are kept of one text.
const MAX: usize = 500;

/// A number that a text or a result holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// In millionths.
    pub micros: i128,
    /// Whether it is a percentage.
    pub percent: bool,
}

/// A JSON number, if six places say all of it.
pub fn exact(number: &Number) -> Option<i128> {
    parse(&number.to_string())
}

/// Whether a text is a number and nothing else.
pub fn is_number(text: &str) -> bool {
    text.bytes().any(|byte| byte.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b',' | b'-' | b'+' | b'e' | b'E'))
}

/// The number that a word is, in millionths.
fn parse(word: &str) -> Option<i128> {
    let (sign, digits) = word.strip_prefix('-').map_or((1, word), |digits| (-1, digits));
    let (whole, places) = digits.split_once('.').unwrap_or((digits, ""));
    let grouped = whole.contains(',');
    let groups_fit =
        !grouped || whole.split(',').enumerate().all(|(at, group)| (at == 0 && group.len() <= 3) || group.len() == 3);
    let whole = whole.replace(',', "");
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || whole.len() > 18 || places.len() > 6 || !groups_fit || !digits(&whole) || !digits(places) {
        return None;
    }
    let whole: i128 = whole.parse().ok()?;
    let places: i128 = format!("{places:0<6}").parse().ok()?;
    Some(sign * (whole * ONE + places))
}

/// The numbers in a normalised text.
pub fn figures(text: &str) -> Vec<Figure> {
    let words = text.split([' ', '(', ')', '"', '\'', ';', '[', ']']);
    let figures = words.filter_map(|word| {
        let word = word
            .trim_start_matches(['$', '€', '£', '+', '~'])
            .trim_end_matches(['.', ',', ':', '!', '?', '€', '$', '£']);
        let (word, percent) = word.strip_suffix('%').map_or((word, false), |word| (word, true));
        parse(word).map(|micros| Figure { micros, percent })
    });
    figures.take(MAX).collect()
}

/// How `wanted` follows from one recorded number and one or two that an operator named: a sum, a difference, a percentage,
/// or a percentage and a sum. At least one figure must be the operator's, so that no record decides the outcome alone.
pub fn derive(wanted: i128, recorded: i128, named: &[Figure]) -> Option<&'static str> {
    let plain = || named.iter().filter(|figure| !figure.percent).map(|figure| figure.micros);
    if plain().any(|amount| recorded + amount == wanted) {
        return Some("the sum of it and an amount that the operator named");
    }
    if plain().any(|amount| recorded - amount == wanted || amount - recorded == wanted) {
        return Some("the difference of it and an amount that the operator named");
    }
    let shares = named.iter().filter(|figure| figure.percent);
    for share in shares {
        // Beyond this nobody computes by hand, and the product would no longer fit.
        let Some(product) = recorded.checked_mul(share.micros) else { continue };
        let part = product / (100 * ONE);
        if part == wanted || recorded + part == wanted {
            return Some("the percentage of it that the operator named");
        }
        if plain().any(|amount| part + amount == wanted) {
            return Some("the percentage of it and an amount, both of which the operator named");
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_people_write_them() {
        let read = |text: &str| figures(text).into_iter().map(|f| (f.micros, f.percent)).collect::<Vec<_>>();
        assert_eq!(
            read("pay $1,200.50, then 5% or -3."),
            [(1_200_500_000, false), (5_000_000, true), (-3_000_000, false)]
        );
        assert!(read("1,2 12,34,5 1.2.3 0x10 1e5 v2").is_empty());
        assert_eq!(exact(&Number::from_f64(200.29).unwrap()), Some(200_290_000));
    }

    #[test]
    fn sums_need_a_figure_of_the_operator() {
        let named = figures("an additional 19.5% of the amount plus a fee of 5.29");
        assert!(derive(200_290_000, 1_000_000_000, &named).is_some());
        assert!(derive(200_290_000, 1_000_000_000, &[]).is_none());
        assert!(derive(i128::from(i64::MAX), i128::from(i64::MAX), &named).is_none());
    }
}
